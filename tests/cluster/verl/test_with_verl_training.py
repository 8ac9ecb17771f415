"""verl's own PPO trainer takes two steps from each bundle on a CPU: `train.sh` with a CPU platform and CPU rollout servers.

Everything but the platform and the servers is verl's: Ray workers, FSDP2, agent loop workers, reward loop, advantages, updates,
weight transfer, checkpoints.
"""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("verl", reason="verl is not installed here; see MIDTHOUGHT_VERL_PYTHON in test_real_verl.py")

import torch
from bundles import write_feedback, write_podcast

from midthought.models.pretrained import load_model, load_tokenizer, policy_folder
from midthought.tokenization import Renderer

HERE = Path(__file__).parent
SMALL = ("verl.gpus_per_node=1", "verl.num_agent_workers=1", "verl.offload=false", "training.batch_size=8",
         "training.mini_batch_size=8", "training.num_train_iters=2", "checkpoint.save_interval=2",
         "training.warmup_steps=0", "training.learning_rate=1e-3")  # fmt: skip
ON_CPU = [
    "trainer.device=cpu", "trainer.logger=[console]", "trainer.val_before_train=false", "trainer.test_freq=-1",
    "ray_kwargs.ray_init.num_cpus=8", "+ray_kwargs.ray_init.num_gpus=1", "+ray_kwargs.ray_init.include_dashboard=false",
    "data.dataloader_num_workers=0", "reward.num_workers=1", "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
    "actor_rollout_ref.rollout.calculate_log_probs=true",
]  # fmt: skip


def on_cpu(model: str, engine: str) -> list[str]:
    """Keys of one model: float32 with padded rows, because packed rows need flash attention."""
    return [
        f"{model}.use_remove_padding=false",
        f"+{model}.override_config.attn_implementation=eager",
        f"{engine}.use_torch_compile=false",
        f"+{engine}.mixed_precision.param_dtype=fp32",
    ]


def train(bundle: Path, *words: str) -> None:
    """Runs the bundle's script with verl on a CPU."""
    records = bundle / "records"
    records.mkdir()
    more = {
        "PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parents[1])]),
        "VERL_USE_EXTERNAL_MODULES": "cpu_platform,cpu_rollout,cpu_records",  # verl imports them in each process
        "VERL_PLATFORM": "cpu",
        "VERL_ENGINE_DEVICE": "cuda",
        "OMP_NUM_THREADS": "1",
        "RECORDS": str(records),
    }
    actor = on_cpu("actor_rollout_ref.model", "actor_rollout_ref.actor.fsdp_config")
    command = ["bash", str(bundle / "train.sh"), *ON_CPU, "actor_rollout_ref.actor.strategy=fsdp2", *actor, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **more})
    assert done.returncode == 0, (done.stdout + done.stderr)[-12000:]


def merged(shards: Path, folder: Path) -> Path:
    """Merges the shards of a checkpoint, as the bundle's script says."""
    words = ["merge", "--backend", "fsdp", "--local_dir", str(shards), "--target_dir", str(folder)]
    subprocess.run([sys.executable, "-m", "verl.model_merger", *words], check=True)
    return folder


def learned(bundle: Path, role: str) -> list[list[dict[str, Any]]]:
    """The rows of the role's updates, in order of the updates."""
    paths = sorted((bundle / "records").glob(f"{role}-*.pt"), key=lambda path: int(path.stem.rpartition("-")[2]))
    columns = [torch.load(path) for path in paths]
    return [[dict(zip(each, row, strict=True)) for row in zip(*each.values(), strict=True)] for each in columns]


def texts_of(row: dict[str, Any], renderer: Renderer) -> list[tuple[int, str]]:
    """The response as (mask, text) in order: 1 for what is trained on, 0 for what the loop inserted."""
    pieces = itertools.groupby(
        zip(row["response_mask"].tolist(), row["responses"].tolist(), strict=True), lambda p: p[0]
    )
    return [(mask, renderer.decode([token_id for _, token_id in piece])) for mask, piece in pieces]


def require_servers_weights(rows: Sequence[dict[str, Any]], tolerance: float) -> None:
    """The servers' log-probabilities of the sampled tokens are the trainer's, so they have its weights."""
    for row in rows:
        sampled = row["response_mask"].bool()
        torch.testing.assert_close(
            row["rollout_log_probs"][sampled], row["old_log_probs"][sampled], atol=tolerance, rtol=0
        )


def require_logprobs_of(model: Any, rows: Sequence[dict[str, Any]], *, same: bool) -> None:
    """Whether the trainer's log-probabilities of the sampled tokens equal the log-probabilities of `model`."""
    differences = []
    for row in rows:
        with torch.no_grad():
            logprobs = torch.log_softmax(model(row["input_ids"][None]).logits[0, :-1].float(), -1)
        ours = logprobs.gather(1, row["input_ids"][1:, None])[-len(row["responses"]) :, 0]
        sampled = row["response_mask"].bool()
        differences.append(float((ours - row["old_log_probs"])[sampled].abs().max()))
    assert (max(differences) < 2e-3) if same else (min(differences) > 2e-2), differences


def require_trained(bundle: Path, model: Any, tokenizer: Any, exported: Path, *, has_adapters: bool = False) -> None:
    """Both steps used the weights of their time, and `--from` takes the exported policy, which is a trained one."""
    tolerance = 0.15 if has_adapters else 2e-3  # verl rounds merged weights to bfloat16 before it sends them
    first, second = learned(bundle, "language_model")
    require_logprobs_of(model, first, same=True)
    require_logprobs_of(model, second, same=False)
    for rows in (first, second):
        require_servers_weights(rows, tolerance)
    folder = policy_folder(exported, ("warmup", "policy"))
    policy, before = load_model(folder), model.state_dict()
    near = (
        {"rtol": 2**-8, "atol": 0.0} if has_adapters else {"rtol": 0.0, "atol": 0.0}
    )  # an exported base is in bfloat16
    changed = {name for name, each in policy.state_dict().items() if not torch.allclose(each, before[name], **near)}
    assert changed == {name for name in before if not has_adapters or name.endswith("_proj.weight")}
    require_logprobs_of(policy, second, same=False)
    assert load_tokenizer(folder).get_vocab() == tokenizer.get_vocab()


@pytest.mark.slow
def test_it_trains_the_podcast_bundle_with_ppo_and_a_critic(
    tmp_path: Path, model: Any, model_path: Path, tokenizer: Any, renderer: Renderer
) -> None:
    bundle = write_podcast(tmp_path, "cluster", f"model.local_path={model_path}", *SMALL)
    train(bundle, "critic.strategy=fsdp2", *on_cpu("critic.model", "critic.fsdp"), "trainer.critic_warmup=0")
    updates = learned(bundle, "language_model")
    assert [len(rows) for rows in updates] == [8, 8]
    for rows in updates:
        rewards = []
        for row in rows:
            [(_, call), (inserted, result), (sampled, answer)] = texts_of(row, renderer)
            assert call.startswith('<think>#call memory_retrieval {"query": "') and call.endswith("}")
            assert not inserted and re.match(r"\s*#memory_retrieval_result:\n\[1\] (?:speaker: .*; )?episode: ", result)
            assert sampled and answer.startswith("</think>")
            rewards.append(float(row["rm_scores"].sum()))
            assert rewards[-1] == float(row["rm_scores"][-1])
        # right answer 1, well-formed thought 0.1, one call -0.1; every second answer is dictated
        assert sorted(rewards)[4:] == pytest.approx([1.0] * 4) and max(sorted(rewards)[:4]) < 0.5
    critic = learned(bundle, "value_model")
    assert [len(rows) for rows in critic] == [8, 8] and all(float(row["returns"].abs().max()) > 0 for row in critic[0])
    require_trained(bundle, model, tokenizer, bundle / "checkpoints" / "global_step_2" / "actor" / "huggingface")


@pytest.mark.slow
@pytest.mark.parametrize("lora_rank", [0, 4])
def test_it_trains_the_feedback_bundle_with_grpo(
    lora_rank: int, tmp_path: Path, model: Any, model_path: Path, tokenizer: Any, renderer: Renderer
) -> None:
    words = (
        f"model.local_path={model_path}",
        "training.group_size=4",
        "verl.num_nodes=1",
        "verl.tensor_parallel=1",
        f"model.lora_rank={lora_rank}",
    )
    faster = ["training.learning_rate=1e-2"] if lora_rank else []
    bundle = write_feedback(tmp_path, "cluster", *words, *SMALL, *faster)
    train(bundle, f"actor_rollout_ref.model.lora.merge={bool(lora_rank)}")  # the test's servers receive merged weights
    updates = learned(bundle, "language_model")
    assert [len(rows) for rows in updates] == [8, 8] and not learned(bundle, "value_model")
    for rows in updates:
        for row in rows:
            [(_, call), (inserted, result), (sampled, _)] = texts_of(row, renderer)
            assert "get_feedback" in call and not inserted and "get_feedback" not in result and sampled
        groups: dict[tuple[int, ...], list[tuple[float, float]]] = {}
        for row in rows:
            advantage = row["advantages"][row["response_mask"].bool()]
            assert float(advantage.max() - advantage.min()) < 1e-5
            group = groups.setdefault(tuple(row["prompts"].tolist()), [])
            group.append((float(row["rm_scores"].sum()), float(advantage[0])))
        for group in groups.values():
            rewards, advantages = torch.tensor(group).T
            torch.testing.assert_close(advantages, (rewards - rewards.mean()) / (rewards.std() + 1e-6))
            assert float(rewards.std()) > 0
        assert len(groups) == 2
    actor = bundle / "checkpoints" / "global_step_2" / "actor"
    policy = merged(actor, tmp_path / "merged") / "lora_adapter" if lora_rank else actor / "huggingface"
    require_trained(bundle, model, tokenizer, policy, has_adapters=bool(lora_rank))
