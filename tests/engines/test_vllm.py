"""vLLM: what is asked of it, and what is made of its answers. A real server: test_real_vllm.py."""

import math
import sys
import warnings
from typing import Any

import pytest
import torch
from fake_server import FakeServer
from server_engines import IMPATIENT, PROMPT, engine_for, interpreter, sample, written

from midthought.config import InferenceConfig
from midthought.engines import inference_engines
from midthought.engines.create import BACKENDS, create_inference_engine
from midthought.engines.engine import Sampling
from midthought.engines.inference_engines import SGLangInferenceEngine, VLLMInferenceEngine
from midthought.engines.servers.connection import RetryPolicy
from midthought.engines.servers.engine import ServerEngine
from midthought.engines.servers.launch import start_server
from midthought.engines.servers.process import ServerProcess, free_port
from midthought.engines.servers.server import ServerOptions
from midthought.engines.servers.vllm import VLLMServer
from midthought.errors import EngineError, MissingExtraError, SettingsError
from midthought.tokenization import Renderer
from midthought.types import Completion, Finish

pytest.importorskip("httpx")


def test_a_request_says_everything_that_the_servers_defaults_could_change():
    sampling = Sampling(max_tokens=5, temperature=0.5, top_p=0.9, top_k=40, min_p=0.1, seed=11)
    assert VLLMServer.body("tiny", (1, 2), sampling, [7]) == {
        "model": "tiny",
        "prompt": [1, 2],
        "add_special_tokens": False,
        "max_tokens": 5,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.1,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "seed": 11,
        "ignore_eos": True,
        "stop_token_ids": [7],
        "skip_special_tokens": False,
        "logprobs": 0,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "stream": True,
    }


def test_an_event_is_read_as_documented():
    read = VLLMServer.reader([1, 2])
    logprobs = {"token_logprobs": [-0.25, None, -9999.0]}
    first = {
        "text": "x",
        "token_ids": [5, 6, 7],
        "logprobs": logprobs,
        "finish_reason": None,
        "prompt_token_ids": [1, 2],
    }
    chunk = read({"choices": [first]})
    assert (chunk.token_ids, chunk.ended_by) == ([5, 6, 7], None)
    assert chunk.logprobs[0] == -0.25 and math.isnan(chunk.logprobs[1]) and chunk.logprobs[2] == -math.inf
    last = {"token_ids": [], "logprobs": None, "finish_reason": "stop", "stop_reason": 9}
    assert read({"choices": [last]}).stop_token_id == 9
    assert read({"choices": [], "usage": {}}).token_ids == ()


def test_a_server_that_changes_the_prompt_or_knows_no_token_ids_is_an_error():
    def changed(event: dict[str, Any]) -> dict[str, Any]:
        return {**event, "choices": [{**event["choices"][0], "prompt_token_ids": [0, *PROMPT]}]}

    def without_ids(event: dict[str, Any]) -> dict[str, Any]:
        return {**event, "choices": [{**event["choices"][0], "token_ids": None}]}

    for alter, words in [(changed, "prompt of 3 tokens and continued another"), (without_ids, "no token ids")]:
        with FakeServer() as server:
            server.alter = alter
            with pytest.raises(EngineError, match=words):
                sample(engine(server))
            assert len(server.requests) == 1


def test_an_end_of_sequence_token_that_is_named_but_not_listed_is_recorded_without_a_probability():
    def hidden(event: dict[str, Any]) -> dict[str, Any]:
        choice = dict(event["choices"][0])
        if choice["finish_reason"] == "stop":
            choice |= {"token_ids": [], "logprobs": {"token_logprobs": []}}
        return {**event, "choices": [choice]}

    with FakeServer(policy=lambda context: len(context)) as server:
        server.alter = hidden
        completion = sample(engine(server, eos_token_ids=[5]), 6)
    assert (completion.token_ids, completion.finish) == ((3, 4, 5), Finish.END)
    assert completion.sampled_logprobs[:2] == (-0.5, -0.5)
    assert math.isnan(completion.sampled_logprobs[2])


def engine(server: FakeServer, model: str = "tiny", **options: Any) -> ServerEngine:
    patience = RetryPolicy(**IMPATIENT, max_attempts=2)
    return ServerEngine(VLLMServer, server.url, model, **{"eos_token_ids": [], "retry_policy": patience, **options})


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
@pytest.mark.parametrize("records", ["model", "temperature", "processed"])
def test_what_is_recorded_is_of_the_distribution_sampled_from_or_nan(sampling, probabilities, needed, records):
    is_exact = records in ("processed", needed) or not needed
    with FakeServer(logits=LOGITS, records=records) as server, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        server_engine = engine_for(server)
        completions: list[Completion] = []
        for number in range(60):  # until every token that can be drawn was drawn
            completions.append(sample(server_engine, max_tokens=1, seed=number, **sampling))
            if number >= 9 and len({completion.token_ids[0] for completion in completions}) >= len(probabilities):
                break
    assert [str(warning.message).count("processed_logprobs") for warning in caught] == ([] if is_exact else [1])
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
            engine(server, model).check()
            assert len(sample(engine(server, model), 6).token_ids) == 6
        with pytest.raises(SettingsError, match=r"does not serve 'tinny' but 'tiny'; .*served_model_name"):
            engine(server, "tinny").check()
        with pytest.raises(SettingsError, match="tinny"):
            sample(engine(server, "tinny"))


def test_a_server_that_does_not_say_how_long_a_sequence_may_be_needs_a_limit():
    with FakeServer(max_model_len=None) as server:
        with pytest.raises(SettingsError, match="set max_seq_len"):
            engine(server).check()
        engine(server, max_seq_len=9).check()


def test_a_server_for_training_with_a_shorter_context_than_the_episodes_says_so():
    with FakeServer(max_model_len=50) as server, warnings.catch_warnings():
        warnings.simplefilter("error")
        for options in ({"max_seq_len": 99}, {"max_seq_len": 50, "training_temperature": 1.0}):
            engine(server, **options).check()
        with pytest.raises(UserWarning, match=r"context of 50 tokens, the run 99: .*end there; .*--max-model-len"):
            engine(server, max_seq_len=99, training_temperature=1.0).check()


def test_another_tokenizer_is_an_error_and_an_unknown_one_a_warning():
    with FakeServer(tokenize=lambda text: [ord(letter) for letter in text]) as server:
        engine(server, probe=("abc", [97, 98, 99])).check()
        for ids, place in [([97, 98], 2), ([97, 90, 99], 1), ([], 0)]:
            with pytest.raises(
                SettingsError, match=f"another tokenizer than ours.* first difference is at token {place}"
            ):
                engine(server, probe=("abc", ids)).check()
        server.tokenize = None
        with pytest.warns(UserWarning, match="does not report its tokenization"):
            engine(server, probe=("abc", [1])).check()


def test_silent_servers_are_named_and_asked_when_they_answer():
    port = free_port()
    silent = f"http://127.0.0.1:{port}"
    with pytest.raises(EngineError, match=f"no server answers.*{silent}"):
        ServerEngine(VLLMServer, silent, "tiny", eos_token_ids=[]).check()
    with FakeServer() as server:
        patience = RetryPolicy(**IMPATIENT, max_attempts=2)
        both = ServerEngine(VLLMServer, [silent, server.url], "tiny", eos_token_ids=[], retry_policy=patience)
        with pytest.warns(UserWarning, match=f"continuing without {silent}"):
            both.check()
        assert len(sample(both).token_ids) == 12
        with FakeServer(model="another", port=port):  # what answers there at last is not ours
            both = ServerEngine(VLLMServer, [silent, server.url], "tiny", eos_token_ids=[], retry_policy=patience)
            assert len(sample(both).token_ids) == 12
    with FakeServer() as server, pytest.raises(EngineError, match="refuses the request"):
        ServerEngine(VLLMServer, f"{server.url}/elsewhere", "tiny", eos_token_ids=[]).check()


# -- the engine that users hold ------------------------------------------------------------------------------------


@pytest.fixture
def tokenizes(renderer: Renderer) -> Any:
    return lambda text: renderer.tokenizer(text, add_special_tokens=False).input_ids


def test_it_is_made_by_name_and_generates(renderer, tokenizes, monkeypatch):
    monkeypatch.setitem(BACKENDS, "vllm", VLLMInferenceEngine)
    answer = renderer.control("Ada.<|im_end|>")
    prompts = ["Who?", [{"role": "user", "content": "Who else?"}]]
    encoded: list[list[int]] = []

    def policy(context: list[int]) -> int:
        prompt = next(token_ids for token_ids in encoded if context[: len(token_ids)] == token_ids)
        return answer[len(context) - len(prompt)]

    with FakeServer(policy=policy, tokenize=tokenizes) as server:
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
    for flags in (
        f"--model {tmp_path}",
        "--max-num-seqs 3",
        "--max-model-len 100",
        "--gpu-memory-utilization 0.3",
        "--seed 5",
    ):
        assert f" {flags}" in words
    for has_gpu in (True, False):  # vLLM on a CPU ends at the parts of a prompt
        monkeypatch.setattr(torch.cuda, "is_available", lambda has_gpu=has_gpu: has_gpu)
        assert ("--no-enable-chunked-prefill" in VLLMServer.command("model", ServerOptions())[0]) == (not has_gpu)
