"""vLLM: what is asked of it, what is made of its answers, and a real server where there is one."""

from __future__ import annotations

import asyncio
import math
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from fake_server import FakeServer, hashed

from midthought.errors import EngineError, MissingExtraError, SettingsError
from midthought.inference.engine import Sampling
from midthought.inference.engines import BACKENDS, create_inference_engine
from midthought.inference.server_process import free_port
from midthought.inference.servers import Patience
from midthought.inference.vllm import VLLMDialect, VLLMEngine, VLLMInferenceEngine, start_server
from midthought.text import Renderer
from midthought.types import Completion, Finish

pytest.importorskip("httpx")

PROMPT = [3, 1, 2]
IMPATIENT = Patience(pause_seconds=0.01, max_pause_seconds=0.05, max_attempts=2)


def engine_for(server: FakeServer, **options: Any) -> VLLMEngine:
    return VLLMEngine(
        server.url, options.pop("model", "tiny"), **{"eos_token_ids": [], "patience": IMPATIENT, **options}
    )


def sample(engine: VLLMEngine, max_tokens: int = 6, **sampling: Any) -> Completion:
    return asyncio.run(engine.sample(0, PROMPT, Sampling(max_tokens=max_tokens, **sampling)))


def test_a_request_says_everything_that_the_servers_defaults_could_change() -> None:
    sampling = Sampling(max_tokens=5, temperature=0.5, top_p=0.9, seed=11)
    assert VLLMDialect().body("tiny", (1, 2), sampling, [7]) == {
        "model": "tiny",
        "prompt": [1, 2],
        "add_special_tokens": False,
        "max_tokens": 5,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 0,
        "min_p": 0.0,
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


def test_an_event_is_read_as_documented() -> None:
    read = VLLMDialect().reader([1, 2])
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


def test_a_server_that_changes_the_prompt_or_knows_no_token_ids_is_an_error() -> None:
    def changed(event: dict[str, Any]) -> dict[str, Any]:
        return {**event, "choices": [{**event["choices"][0], "prompt_token_ids": [0, *PROMPT]}]}

    def without_ids(event: dict[str, Any]) -> dict[str, Any]:
        return {**event, "choices": [{**event["choices"][0], "token_ids": None}]}

    for alter, words in [(changed, "prompt of 3 tokens and continued another"), (without_ids, "no token ids")]:
        with FakeServer() as server:
            server.alter = alter
            with pytest.raises(EngineError, match=words):
                sample(engine_for(server))
            assert len(server.requests) == 1


def test_an_end_of_sequence_token_that_is_named_but_not_listed_is_recorded_without_a_probability() -> None:
    def hidden(event: dict[str, Any]) -> dict[str, Any]:
        choice = dict(event["choices"][0])
        if choice["finish_reason"] == "stop":
            choice |= {"token_ids": [], "logprobs": {"token_logprobs": []}}
        return {**event, "choices": [choice]}

    with FakeServer(policy=lambda context: len(context)) as server:
        server.alter = hidden
        completion = sample(engine_for(server, eos_token_ids=[5]))
    assert (completion.token_ids, completion.finish) == ((3, 4, 5), Finish.END)
    assert completion.sampled_logprobs[:2] == (-0.5, -0.5)
    assert math.isnan(completion.sampled_logprobs[2])


# -- whose log-probabilities ---------------------------------------------------------------------------------------

LOGITS = [2.0, 1.0, 0.0, -1.0]
"""At temperature 1 they have probabilities 0.644, 0.237, 0.087, 0.032; at 2: 0.455, 0.276, 0.167, 0.102."""


@pytest.mark.parametrize(
    ("sampling", "probabilities"),
    [
        ({}, [0.644, 0.237, 0.087, 0.032]),
        ({"temperature": 0.0, "top_p": 0.5}, [0.644]),
        ({"temperature": 2.0}, [0.455, 0.276, 0.167, 0.102]),
        ({"top_p": 0.8}, [0.731, 0.269]),
        ({"temperature": 2.0, "top_p": 0.8}, [0.506, 0.308, 0.186]),
    ],
)
@pytest.mark.parametrize("records", ["model", "temperature", "processed"])
def test_what_is_recorded_is_of_the_distribution_sampled_from_or_nan(
    sampling: dict[str, float], probabilities: list[float], records: Any
) -> None:
    is_exact = {
        "model": sampling.get("temperature", 1.0) == 0 or not sampling,
        "temperature": sampling.get("temperature", 1.0) == 0 or "top_p" not in sampling,
        "processed": True,
    }[records]
    with FakeServer(logits=LOGITS, records=records) as server, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        engine = engine_for(server)
        completions = [sample(engine, max_tokens=40, **sampling) for _ in range(2)]
    assert [str(warning.message).count("processed_logprobs") for warning in caught] == ([] if is_exact else [1])
    for completion in completions:
        assert set(completion.token_ids) == set(range(len(probabilities)))
        for token_id, logprob in zip(completion.token_ids, completion.sampled_logprobs, strict=True):
            assert abs(math.exp(logprob) - probabilities[token_id]) < 1e-3 if is_exact else math.isnan(logprob)


def test_a_prompt_that_leaves_no_doubt_is_no_reason_to_distrust_a_server() -> None:
    class Sure(FakeServer):
        def draw(self, context: list[int], temperature: float, top_p: float, seed: int) -> tuple[int, float]:
            self.logits = [90.0, 0.0] if len(context) in (1, 3) else [1.0, 0.0]
            return super().draw(context, temperature, top_p, seed)

    with Sure(logits=[0.0], records="processed") as server, warnings.catch_warnings():
        warnings.simplefilter("error")
        completion = sample(engine_for(server), temperature=0.5)
    assert all(map(math.isfinite, completion.sampled_logprobs))


# -- is it the right server ----------------------------------------------------------------------------------------


def test_the_model_is_found_by_its_name_or_by_the_folder_it_came_from(tmp_path: Path) -> None:
    with FakeServer(root=str(tmp_path)) as server:
        for model in ("tiny", str(tmp_path), str(tmp_path / "x" / "..")):
            engine = engine_for(server, model=model)
            asyncio.run(engine.check())
            assert len(sample(engine).token_ids) == 6
        with pytest.raises(SettingsError, match=r"does not serve 'tinny' but 'tiny'; .*served_model_name"):
            asyncio.run(engine_for(server, model="tinny").check())
        with pytest.raises(SettingsError, match="tinny"):
            sample(engine_for(server, model="tinny"))


def test_a_server_that_does_not_say_how_long_a_sequence_may_be_needs_a_limit() -> None:
    with FakeServer(max_model_len=None) as server:
        with pytest.raises(SettingsError, match="give max_seq_len"):
            asyncio.run(engine_for(server).check())
        asyncio.run(engine_for(server, max_seq_len=9).check())


def test_another_tokenizer_is_an_error_and_an_unknown_one_a_warning() -> None:
    with FakeServer(tokenize=lambda text: [ord(letter) for letter in text]) as server:
        asyncio.run(engine_for(server, probe=("abc", [97, 98, 99])).check())
        for ids, place in [([97, 98], 2), ([97, 90, 99], 1), ([], 0)]:
            with pytest.raises(SettingsError, match=f"another tokenizer than ours.* first another one at {place}"):
                asyncio.run(engine_for(server, probe=("abc", ids)).check())
        server.tokenize = None
        with pytest.warns(UserWarning, match="does not tell how it tokenizes"):
            asyncio.run(engine_for(server, probe=("abc", [1])).check())


def test_silent_servers_are_named_and_asked_when_they_answer() -> None:
    port = free_port()
    silent = f"http://127.0.0.1:{port}"
    with pytest.raises(EngineError, match=f"no server answers.*{silent}"):
        asyncio.run(VLLMEngine(silent, "tiny", eos_token_ids=[]).check())
    with FakeServer() as server:
        engine = VLLMEngine([silent, server.url], "tiny", eos_token_ids=[], patience=IMPATIENT)
        with pytest.warns(UserWarning, match=f"going on without {silent}"):
            asyncio.run(engine.check())
        assert len(sample(engine).token_ids) == 6
        with FakeServer(model="another", port=port):  # what answers there at last is not ours
            engine = VLLMEngine([silent, server.url], "tiny", eos_token_ids=[], patience=IMPATIENT)
            assert len(sample(engine).token_ids) == 6
    with FakeServer() as server, pytest.raises(EngineError, match="refuses the request"):
        asyncio.run(VLLMEngine(f"{server.url}/elsewhere", "tiny", eos_token_ids=[]).check())


# -- the engine that users hold ------------------------------------------------------------------------------------


@pytest.fixture
def tokenizes(renderer: Renderer) -> Any:
    return lambda text: renderer.tokenizer(text, add_special_tokens=False).input_ids


def test_it_is_made_by_name_and_generates(renderer: Renderer, tokenizes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BACKENDS, "vllm", VLLMInferenceEngine)
    answer = renderer.control("Ada.<|im_end|>")
    prompts = ["Who?", [{"role": "user", "content": "Who else?"}]]
    encoded: list[list[int]] = []

    def policy(context: list[int]) -> int:
        prompt = next(token_ids for token_ids in encoded if context[: len(token_ids)] == token_ids)
        return answer[len(context) - len(prompt)]

    with FakeServer(policy=policy, tokenize=tokenizes) as server:
        config = {
            "base_url": [server.url],
            "served_model_name": "tiny",
            "temperature": 1.0,
            "top_p": 1.0,
            "max_attempts": 2,
        }
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


def test_what_is_wrong_is_said_when_it_is_made(renderer: Renderer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BACKENDS, "vllm", VLLMInferenceEngine)
    with FakeServer(tokenize=lambda text: [1, 2, 3]) as server:
        options = {"tokenizer": renderer.tokenizer, "base_url": server.url}
        with pytest.raises(SettingsError, match="does not serve 'big' but 'tiny'"):
            VLLMInferenceEngine("big", **options)
        with pytest.raises(SettingsError, match="another tokenizer"):
            VLLMInferenceEngine("tiny", **options)
        with pytest.raises(SettingsError, match="max_tokens=0"):
            VLLMInferenceEngine("tiny", **options, max_tokens=0)
        with pytest.raises(SettingsError, match=r"unknown option 'base_ur'.*'base_url'"):
            create_inference_engine("tiny", backend="vllm", config={"base_ur": server.url})
    with pytest.raises(SettingsError, match="max_attempts"):
        VLLMInferenceEngine("tiny", "http://127.0.0.1:1", tokenizer=renderer.tokenizer, max_attempts=0)


def test_without_the_package_and_without_a_server_both_ways_out_are_named(
    renderer: Renderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(MissingExtraError, match=r"vllm is not installed.*base_url=.*midthought\[vllm\].*server_python"):
        VLLMInferenceEngine("tiny", tokenizer=renderer.tokenizer)


def fake_python(folder: Path) -> str:
    """An interpreter that has a vLLM of our own."""
    path = folder / "python"
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{Path(__file__).with_name("fake_server.py")}" "$@"\n')
    path.chmod(0o755)
    return str(path)


def test_a_server_is_started_with_the_right_flags_and_ended(renderer: Renderer, tmp_path: Path) -> None:
    options: dict[str, Any] = {"server_python": fake_python(tmp_path), "server_log": tmp_path / "log"}
    options |= {"max_seq_len": 100, "max_num_seqs": 3, "dtype": "float32", "server_flags": ["--seed", "5"]}
    with pytest.warns(UserWarning, match="does not tell how it tokenizes"):
        engine = VLLMInferenceEngine(tmp_path, tokenizer=renderer.tokenizer, **options)
    with engine:
        output = engine.generate("Who?", max_tokens=4, temperature=1.0, top_p=1.0)
        context = renderer.control("Who?")
        for token_id in output.tokens[0].tolist():
            assert token_id == hashed(context, 50)
            context.append(token_id)
        server = engine._server
        assert server is not None and server.is_running
    assert not server.is_running
    words = (tmp_path / "log").read_text().split()
    assert words[:4] == ["started", "with", "-m", "vllm.entrypoints.openai.api_server"]
    for flag, value in [
        ("--model", str(tmp_path)),
        ("--host", "127.0.0.1"),
        ("--dtype", "float32"),
        ("--max-num-seqs", "3"),
        ("--logprobs-mode", "processed_logprobs"),
        ("--max-model-len", "100"),
        ("--seed", "5"),
    ]:
        assert words[words.index(flag) + 1] == value


def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'No module named vllm' >&2\nexit 1\n")
    python.chmod(0o755)
    with pytest.raises(EngineError, match="No module named vllm"):
        start_server(tmp_path, python=str(python), log_path=tmp_path / "log")


# -- the real thing ------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(
    not os.environ.get("MIDTHOUGHT_VLLM_PYTHON"),
    reason="MIDTHOUGHT_VLLM_PYTHON does not name the interpreter of an environment that has vLLM",
)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_a_real_server_records_what_a_plain_forward_pass_gives(
    renderer: Renderer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, temperature: float
) -> None:
    import torch
    from test_rollout import EveryFew, run
    from transformers import AutoModelForCausalLM, Qwen3Config

    from midthought.pretrained import save_model

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(renderer.tokenizer),
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=64,
        intermediate_size=96,
        max_position_embeddings=1024,
        initializer_range=0.2,
        tie_word_embeddings=False,
    )
    model = AutoModelForCausalLM.from_config(config).eval()
    save_model(model, renderer.tokenizer, tmp_path / "model")
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    with VLLMInferenceEngine(
        tmp_path / "model",
        server_python=os.environ["MIDTHOUGHT_VLLM_PYTHON"],
        dtype="float32",
        max_seq_len=512,
        max_num_seqs=16,
    ) as engine:
        limits = {"num_episodes": 8, "max_tokens": 150, "max_segment_length": 24, "temperature": temperature}
        found = run(engine.core, renderer, notation=EveryFew(num_calls=3), **limits)
    assert [trajectory.error for trajectory in found] == [None] * 8
    assert sum(trajectory.num_calls for trajectory in found) >= 8
    for trajectory in found:
        with torch.no_grad():
            logits = model(torch.tensor([trajectory.token_ids]), use_cache=False).logits[0].float() / temperature
        expected = logits[:-1].log_softmax(-1).gather(-1, torch.tensor(trajectory.token_ids[1:])[:, None])[:, 0]
        mask = torch.tensor(trajectory.loss_mask[1:])
        assert (torch.tensor(trajectory.sampled_logprobs[1:]) - expected)[mask].abs().max() < 1e-3
