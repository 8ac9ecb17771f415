"""vLLM and SGLang: what is asked of them, and what is made of their answers. A real vLLM: test_real_vllm.py. No real SGLang runs
without a GPU."""

import math
import re
import sys
import warnings
from typing import Any

import pytest
import torch
from fake_server import FakeServer
from server_engines import PROMPT, engine_for, interpreter, sample, written

from midthought.config import InferenceConfig
from midthought.engines import inference_engines
from midthought.engines.create import create_inference_engine
from midthought.engines.engine import Sampling
from midthought.engines.inference_engines import SGLangInferenceEngine, VLLMInferenceEngine
from midthought.engines.servers.launch import start_server
from midthought.engines.servers.process import ServerProcess
from midthought.engines.servers.server import ServerOptions
from midthought.engines.servers.sglang import SGLangServer
from midthought.engines.servers.streams import RetryableError
from midthought.engines.servers.vllm import VLLMServer
from midthought.errors import EngineError, MissingExtraError, SettingsError
from midthought.types import Completion, Finish

pytest.importorskip("httpx")


COMMON = {
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 40,
    "min_p": 0.1,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "stop_token_ids": [7],
    "skip_special_tokens": False,
}


def test_a_request_says_everything_that_the_servers_defaults_could_change():
    sampling = Sampling(max_tokens=5, temperature=0.5, top_p=0.9, top_k=40, min_p=0.1, seed=2**40 + 11)
    assert VLLMServer.body("tiny", (1, 2), sampling, [7], None) == {
        **COMMON,
        "model": "tiny",
        "prompt": [1, 2],
        "add_special_tokens": False,
        "max_tokens": 5,
        "seed": 2**40 + 11,
        "ignore_eos": True,
        "logprobs": 0,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "stream": True,
    }
    own = {"max_new_tokens": 5, "sampling_seed": 11, "ignore_eos": False}
    asked = {"input_ids": [1, 2], "sampling_params": COMMON | own, "return_logprob": True, "stream": True}
    assert SGLangServer.body("tiny", (1, 2), sampling, [7], None) == asked
    greedy = Sampling(max_tokens=5, temperature=0.0, top_p=0.9, top_k=40, min_p=0.1)
    body = SGLangServer.body("tiny", (1, 2), greedy, [7], "an adapter")
    params = body["sampling_params"]
    assert (params["top_p"], params["top_k"], params["min_p"], body["lora_path"]) == (1.0, -1, 0.0, "an adapter")


# -- answers -------------------------------------------------------------------------------------------------------


def test_an_event_is_read_as_documented():
    read = VLLMServer.reader([1, 2])
    logprobs = {"token_logprobs": [-0.25, None, -9999.0]}
    first = {"token_ids": [5, 6, 7], "logprobs": logprobs, "finish_reason": None, "prompt_token_ids": [1, 2]}
    chunk = read({"choices": [first]})
    assert (chunk.token_ids, chunk.ended_by) == ([5, 6, 7], None)
    assert chunk.logprobs[0] == -0.25 and math.isnan(chunk.logprobs[1]) and chunk.logprobs[2] == -math.inf
    last = {"token_ids": [], "logprobs": None, "finish_reason": "stop", "stop_reason": 9}
    assert read({"choices": [last]}).stop_token_id == 9
    assert read({"choices": [], "usage": {}}).token_ids == ()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompt_token_ids": [0, *PROMPT]}, "prompt of 3 tokens and continued another"),
        ({"token_ids": None}, "no token ids"),
    ],
)
def test_a_server_that_changes_the_prompt_or_knows_no_token_ids_is_an_error(changes, message):
    with FakeServer(alter=lambda event: {**event, "choices": [{**event["choices"][0], **changes}]}) as server:
        with pytest.raises(EngineError, match=message):
            sample(engine_for(server, max_attempts=2))
        assert len(server.requests) == 1


def test_an_end_of_sequence_token_that_is_named_but_not_listed_is_recorded_without_a_probability():
    def hidden(event: dict[str, Any]) -> dict[str, Any]:
        choice = dict(event["choices"][0])
        if choice["finish_reason"] == "stop":
            choice |= {"token_ids": [], "logprobs": {"token_logprobs": []}}
        return {**event, "choices": [choice]}

    with FakeServer(policy=len, alter=hidden) as server:
        completion = sample(engine_for(server, eos=[5]), 6)
    assert (completion.token_ids, completion.finish) == ((3, 4, 5), Finish.END)
    assert completion.sampled_logprobs[:2] == (-0.5, -0.5)
    assert math.isnan(completion.sampled_logprobs[2])


def sglang_event(
    listed: list[Any], completion_tokens: int, reason: Any = None, prompt_tokens: int = 3
) -> dict[str, Any]:
    return {
        "text": "…",
        "meta_info": {
            "finish_reason": reason,
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "output_token_logprobs": listed,
        },
    }


A, B, C = [-0.1, 5, None], [-0.2, 6, None], [None, 7, None]


@pytest.mark.parametrize(
    "events",
    [
        [([A], 1), ([A, B], 2), ([A, B, C], 3)],  # all so far
        [([A], 1), ([B], 2), ([C], 3)],  # the new ones
        [([A, B], 1), ([A, B], 2), ([A, B, C], 3)],  # all so far, and one that came while it was written
        [([], 0), ([A, B, C], 3), ([A, B, C], 3)],
        [([A, B], 2), ([], 2), ([C], 3)],
    ],
)
def test_cumulative_and_incremental_events_give_the_same_tokens(events):
    read = SGLangServer.reader(PROMPT)
    chunks = [read(sglang_event(listed, num_all)) for listed, num_all in events]
    assert [token_id for chunk in chunks for token_id in chunk.token_ids] == [5, 6, 7]
    logprobs = [logprob for chunk in chunks for logprob in chunk.logprobs]
    assert logprobs[:2] == [-0.1, -0.2] and math.isnan(logprobs[2])


def test_events_that_do_not_fit_together_and_refusals_are_told_apart():
    with pytest.raises(ValueError, match="1 tokens listed, 4 sampled, 0 seen"):
        SGLangServer.reader(PROMPT)(sglang_event([A], 4))
    with pytest.raises(EngineError, match="prompt of 3 tokens and continued one of 4"):
        SGLangServer.reader(PROMPT)(sglang_event([A], 1, prompt_tokens=4))
    without = sglang_event([A], 1)
    del without["meta_info"]["output_token_logprobs"]
    with pytest.raises(EngineError, match="no log-probabilities"):
        SGLangServer.reader(PROMPT)(without)
    for status, error in [(400, EngineError), (503, RetryableError), (None, RetryableError)]:
        with pytest.raises(error, match="too long"):
            SGLangServer.reader(PROMPT)(
                sglang_event([A], 1, {"type": "abort", "message": "too long", "status_code": status})
            )


def test_where_the_server_stops_at_a_token_that_is_no_end_for_us_it_goes_on():
    with FakeServer("sglang", len, server_eos=[4, 5]) as server:
        completion = sample(engine_for(server, eos=[7]), 6)
        assert (completion.token_ids, completion.finish) == ((3, 4, 5, 6, 7), Finish.END)
        assert server.prompts == [PROMPT, [*PROMPT, 3, 4], [*PROMPT, 3, 4, 5]]


def test_a_server_that_ends_without_a_token_again_and_again_is_given_up():
    ended = sglang_event([], 0, {"type": "stop", "matched": "NaN happened"})
    with (
        FakeServer("sglang", len, server_eos=[3], alter=lambda _: ended) as server,
        pytest.raises(EngineError, match=r"2 requests failed.*ended without a token"),
    ):
        sample(engine_for(server, max_attempts=2), 6)


# -- whose log-probabilities ---------------------------------------------------------------------------------------

LOGITS = [2.0, 1.0, 0.0, -1.0]
"""At temperature 1 they have probabilities 0.644, 0.237, 0.087, 0.032; at 2: 0.455, 0.276, 0.167, 0.102."""


CHANGES = [
    ({}, [0.644, 0.237, 0.087, 0.032], ""),
    ({"temperature": 0.0, "top_p": 0.5, "top_k": 1, "min_p": 0.5}, [0.644], ""),
    ({"temperature": 2.0}, [0.455, 0.276, 0.167, 0.102], "temperature"),
    ({"top_p": 0.8}, [0.731, 0.269], "processed"),
    ({"temperature": 2.0, "top_p": 0.8}, [0.506, 0.308, 0.186], "processed"),
    ({"top_k": 2}, [0.731, 0.269], "processed"),
    ({"min_p": 0.1}, [0.665, 0.245, 0.090], "processed"),
]
"""How is drawn, the probabilities of what can be drawn, and the least that a server must record to give them."""


@pytest.mark.parametrize(("sampling", "probabilities", "needed"), CHANGES)
@pytest.mark.parametrize(
    ("kind", "records"),
    [("vllm", "model"), ("vllm", "temperature"), ("vllm", "processed"), ("sglang", "temperature")],
)
def test_what_is_recorded_is_of_the_distribution_sampled_from_or_nan(sampling, probabilities, needed, kind, records):
    is_exact = records in ("processed", needed) or not needed
    with FakeServer(kind, logits=LOGITS, records=records) as server, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        server_engine = engine_for(server)
        completions: list[Completion] = []
        for number in range(60):  # until every token that can be drawn was drawn
            completions.append(sample(server_engine, max_tokens=1, seed=number, **sampling))
            if number >= 9 and len({completion.token_ids[0] for completion in completions}) >= len(probabilities):
                break
    given = ", ".join(f"{name}={value:g}" for name, value in sampling.items())
    words = f"what it samples with {given}; .*processed_logprobs.* NaN is recorded instead"
    assert [bool(re.search(words, str(each.message))) for each in caught] == ([] if is_exact else [True])
    assert {completion.token_ids[0] for completion in completions} == set(range(len(probabilities)))
    for completion in completions:
        token_id, logprob = completion.token_ids[0], completion.sampled_logprobs[0]
        assert abs(math.exp(logprob) - probabilities[token_id]) < 1e-3 if is_exact else math.isnan(logprob)


def test_a_prompt_that_leaves_no_doubt_is_no_reason_to_distrust_a_server():
    class Sure(FakeServer):
        def look_up(self, context: list[int], adapter: str | None) -> list[float]:
            return [90.0, 0.0] if len(context) in (1, 3) else [1.0, 0.0]

    with Sure(logits=[0.0], records="processed") as server, warnings.catch_warnings():
        warnings.simplefilter("error")
        completion = sample(engine_for(server), 6, temperature=0.5)
    assert all(map(math.isfinite, completion.sampled_logprobs))


# -- is it the right server ----------------------------------------------------------------------------------------


def test_the_model_is_found_by_its_name_or_by_the_folder_it_came_from(tmp_path):
    with FakeServer(root=str(tmp_path)) as server:
        for model in ("tiny", str(tmp_path), str(tmp_path / "x" / "..")):
            assert len(sample(engine_for(server, model=model), 6).token_ids) == 6
        wrong = engine_for(server, model="tinny")
        for use in (wrong.check, lambda: sample(wrong)):
            with pytest.raises(SettingsError, match=r"does not serve 'tinny' but 'tiny'; .*served_model_name"):
                use()


def test_a_server_that_does_not_say_how_long_a_sequence_may_be_needs_a_limit():
    with FakeServer(max_model_len=None) as server:
        with pytest.raises(SettingsError, match="set max_seq_len"):
            engine_for(server).check()
        engine_for(server, limits={"max_seq_len": 9}).check()


def test_a_server_for_training_with_a_shorter_context_than_the_episodes_says_so():
    with FakeServer(max_model_len=50) as server, warnings.catch_warnings():
        warnings.simplefilter("error")
        for limits in ({"max_seq_len": 99}, {"max_seq_len": 50, "training_temperature": 1.0}):
            engine_for(server, limits=limits).check()
        with pytest.raises(UserWarning, match=r"context of 50 tokens, the run 99: .*end there; .*--max-model-len"):
            engine_for(server, limits={"max_seq_len": 99, "training_temperature": 1.0}).check()


def test_another_tokenizer_is_an_error_and_an_unknown_one_a_warning():
    def check(*ids: int) -> None:
        engine_for(server, limits={"probe": ("abc", ids)}).check()

    with FakeServer(tokenize=lambda text: [ord(letter) for letter in text]) as server:
        check(97, 98, 99)
        for ids, place in [([97, 98], 2), ([97, 90, 99], 1), ([], 0)]:
            message = f"another tokenizer than ours.* first difference is at token {place}"
            with pytest.raises(SettingsError, match=message):
                check(*ids)
        server.tokenize = None
        with pytest.warns(UserWarning, match="does not report its tokenization"):
            check(1)


def test_silent_servers_are_named_and_asked_when_they_answer():
    other = FakeServer(model="another")
    with pytest.raises(EngineError, match=f"no server answers.*{other.url}"):
        engine_for(other).check()
    with FakeServer() as server:
        both = engine_for(other, server, model="tiny")
        with pytest.warns(UserWarning, match=f"continuing without {other.url}"):
            both.check()
        assert len(sample(both).token_ids) == 12
        with other:  # what answers there at last is not ours
            assert len(sample(engine_for(other, server, model="tiny")).token_ids) == 12
        with pytest.raises(EngineError, match="refuses the request"):
            engine_for(f"{server.url}/elsewhere").check()


# -- the engine that users hold ------------------------------------------------------------------------------------


def test_it_is_made_by_name_and_generates(renderer):
    answer = renderer.control("Ada.<|im_end|>")
    prompts = ["Who?", [{"role": "user", "content": "Who else?"}]]
    encoded: list[list[int]] = []

    def policy(context: list[int]) -> int:
        prompt = next(token_ids for token_ids in encoded if context[: len(token_ids)] == token_ids)
        return answer[len(context) - len(prompt)]

    def tokenize(text: str) -> list[int]:
        return renderer.tokenizer(text, add_special_tokens=False).input_ids

    with FakeServer(policy=policy, tokenize=tokenize) as server:
        config = {"base_url": [server.url], "served_model_name": "tiny", "temperature": 1.0, "top_p": 1.0}
        with create_inference_engine("", backend="vllm", config=config, tokenizer=renderer.tokenizer) as engine:
            encoded += [engine.encode(prompt) for prompt in prompts]  # type: ignore[arg-type]
            output = engine.generate(prompts, max_tokens=50)  # type: ignore[arg-type]
        assert server.prompts in (encoded, encoded[::-1])
    assert output.sequences == ["Ada.", "Ada."]
    assert output.finishes == [Finish.END, Finish.END]
    assert output.tokens.tolist() == [answer, answer]
    assert output.log_probs.tolist() == [[-0.5] * len(answer)] * 2
    with pytest.raises(EngineError, match="shut down"):
        engine.generate("Who?")


@pytest.mark.parametrize(
    ("engine_class", "remedies"),
    [
        (VLLMInferenceEngine, r"vllm is not installed.*base_url=.*midthought\[vllm\].*server_python"),
        (SGLangInferenceEngine, r"sglang is not installed.*base_url=.*midthought\[sglang\]"),
    ],
)
def test_without_the_package_and_without_a_server_the_ways_out_are_named(engine_class, remedies, renderer, monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    monkeypatch.setitem(sys.modules, "sglang", None)
    with pytest.raises(MissingExtraError, match=remedies):
        engine_class("tiny", tokenizer=renderer.tokenizer)


def test_flags_for_a_server_that_is_started_here_are_refused_for_a_running_one(renderer):
    options: dict[str, Any] = {"base_url": "http://host", "server_flags": ["--seed", "5"]}
    with pytest.raises(SettingsError, match=r"^server_flags=\['--seed', '5'\] with base_url='http://host': .* leave"):
        create_inference_engine("m", "vllm", options, tokenizer=renderer.tokenizer)


def test_a_server_is_started_with_the_right_flags_and_ended(renderer, tmp_path, monkeypatch, caplog):
    options: dict[str, Any] = {"server_python": interpreter(tmp_path)}
    options |= {"max_seq_len": 100, "max_num_seqs": 3, "dtype": "float32", "server_flags": ["--seed", "5"]}
    servers: list[ServerProcess] = []

    def start(*args: Any, **more: Any) -> ServerProcess:
        servers.append(start_server(*args, **more))
        return servers[-1]

    monkeypatch.setattr(inference_engines, "start_server", start)
    section = InferenceConfig(gpu_memory_utilization=0.3, server_wait_seconds=7.0)
    with pytest.warns(UserWarning, match="does not report its tokenization"):
        engine = create_inference_engine(tmp_path, "vllm", section, tokenizer=renderer.tokenizer, **options)
    assert engine.core.retry_policy.max_outage_seconds == 7.0
    with engine:
        output = engine.generate("Who?", max_tokens=4, temperature=1.0, top_p=1.0)
        assert output.tokens[0].tolist() == written(output.lengths[0], renderer.control("Who?"))
        assert [server.is_running for server in servers] == [True]
        words = servers[0].log_path.read_text()
    assert [server.is_running for server in servers] == [False]
    assert f"vllm starts, which can take minutes; its log: {servers[0].log_path}" in caplog.text
    given = ("--max-num-seqs 3", "--max-model-len 100", "--gpu-memory-utilization 0.3", "--seed 5")
    assert all(f" {flags}" in words for flags in (f"--model {tmp_path}", *given))
    for has_gpu in (True, False):  # vLLM on a CPU ends at the parts of a prompt
        monkeypatch.setattr(torch.cuda, "is_available", lambda has_gpu=has_gpu: has_gpu)
        assert ("--no-enable-chunked-prefill" in VLLMServer.command("model", ServerOptions())[0]) == (not has_gpu)
