"""A really started vLLM: what it records, what new weights do to it, and training through it. Each server takes a minute."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from playing import EveryFew, Look
from small_qwen import make_model, token_logprobs, vllm_settings
from test_episode_rollout import run
from vllm_python import PYTHON, needs_vllm

from benchmarks.exactness import branches
from midthought import RayPPOTrainer
from midthought.engines.engine import Sampling
from midthought.engines.inference_engines import VLLMInferenceEngine
from midthought.engines.servers.engine import ServerEngine
from midthought.engines.servers.launch import start_server
from midthought.engines.servers.server import ServerOptions
from midthought.engines.servers.vllm import VLLMServer
from midthought.engines.weight_publication import PublishedPolicy
from midthought.errors import EngineError
from midthought.models.pretrained import save_model
from midthought.tokenization import Renderer
from midthought.types import Trajectory

pytestmark = needs_vllm
ROWS = [{"question": f"Who found tide clock {number}?", "answer": "Ada"} for number in range(4)]


def reward(trajectory: Trajectory) -> float:
    return float(sum(trajectory.token_ids) % 7)


@pytest.fixture(autouse=True)
def _little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")


@pytest.fixture(scope="module")
def model(renderer: Renderer) -> Any:
    return make_model(len(renderer.tokenizer), tied=False)


@pytest.fixture(scope="module")
def engine(model: Any, renderer: Renderer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VLLMInferenceEngine]:
    folder = tmp_path_factory.mktemp("served") / "model"
    save_model(model, renderer.tokenizer, folder)
    limits = {"max_seq_len": 512, "max_num_seqs": 16, "server_flags": ["--max-num-batched-tokens", "512"]}
    with VLLMInferenceEngine(folder, server_python=PYTHON, dtype="float32", **limits) as made:
        yield made


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_what_it_records_is_what_a_plain_forward_pass_gives(engine, model, renderer, temperature):
    limits = {"num_episodes": 8, "max_tokens": 150, "max_segment_length": 24, "temperature": temperature}
    found = run(engine.core, renderer, call_format=EveryFew(num_calls=3), **limits)
    assert [trajectory.error for trajectory in found] == [None] * 8
    assert sum(trajectory.num_calls for trajectory in found) >= 8
    for trajectory in found:
        expected = token_logprobs(model, trajectory.token_ids, temperature)
        mask = torch.tensor(trajectory.loss_mask[1:])
        assert (torch.tensor(trajectory.sampled_logprobs[1:]) - expected)[mask].abs().max() < 1e-3


def test_a_server_of_a_tied_model_follows_what_is_stored_apart_and_is_found_out_where_it_is_not(
    renderer: Renderer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = make_model(len(renderer.tokenizer), tied=True)
    save_model(policy, renderer.tokenizer, tmp_path / "model")
    options = ServerOptions(dtype="float32", max_seq_len=512, max_num_seqs=8, accepts_weights=True)
    server = start_server(VLLMServer, tmp_path / "model", options, python=PYTHON)
    probe_ids = renderer.control("Who found the tide clock? " * 40)[:320]

    def synced() -> ServerEngine:
        servers = ServerEngine(VLLMServer, server.url, str(tmp_path / "model"), eos_token_ids=[], max_seq_len=512)
        return servers.follow(PublishedPolicy(policy, probe_ids=probe_ids, tolerance=1e-4))

    assert server.url.startswith("unix:")  # its weight routes ask for no key: this user alone may reach them
    try:
        engine = synced()
        with torch.no_grad():
            for weight in policy.parameters():
                weight.add_(0.1 * torch.randn_like(weight))
        engine.update_weights()
        assert engine.policy_version == 1
        engine.shutdown()
        monkeypatch.setattr(
            "midthought.engines.weight_publication.write_model", lambda model, path: model.save_pretrained(path)
        )
        with pytest.raises(EngineError, match="tied to its embedding"):
            synced()
    finally:
        server.stop()


@pytest.mark.parametrize("lora_rank", [0, 4])
def test_two_updates_through_it_keep_recomputed_and_sampled_together(lora_rank: int) -> None:
    config = vllm_settings(3, 3e-3, server_python=PYTHON, server_flags=["--max-model-len", "1024"])
    config = config.merged({"model": {"hidden_size": 64, "num_layers": 2, "vocab_size": 400, "lora_rank": lora_rank}})
    tools = {"tools": [Look()], "call_format": EveryFew(num_calls=2)}
    with RayPPOTrainer(config, dataset=ROWS, reward_fn=reward, **tools) as trainer:
        weights = [weight for weight in trainer.learner.policy.parameters() if weight.requires_grad]
        before = [weight.detach().clone() for weight in weights]
        history = trainer.fit()
        moved = max(float((new.detach() - old).abs().max()) for new, old in zip(weights, before, strict=True))
        assert trainer.source.policy_version == 3
        prompt = trainer.renderer.prompt([{"role": "user", "content": ROWS[0]["question"]}])
        version = asyncio.run(trainer.source.parts.engine.sample(0, prompt, Sampling(max_tokens=2))).policy_version
    assert version == 3
    assert moved > 1e-3  # old weights would not do
    assert [figures["logprob_difference_max"] < 1e-2 for figures in history] == [True] * 3, history
    assert sum(figures["episode/calls"] for figures in history) > 1


def test_what_it_samples_for_an_agent_with_branches_is_what_is_recomputed() -> None:
    config = vllm_settings(2, 3e-3, server_python=PYTHON, server_flags=["--max-model-len", "512"])
    config = config.merged({"model": {"hidden_size": 64, "num_layers": 2, "vocab_size": 400}})
    with RayPPOTrainer(config, agent=branches, dataset=ROWS, reward_fn=reward) as trainer:
        history = trainer.fit()
    assert [figures["logprob_difference_max"] < 1e-3 for figures in history] == [True] * 2, history
    assert all(figures["agent/continued"] == 5 / 6 and figures["episode/failed"] == 0 for figures in history)
