"""Run by an interpreter that has vLLM: trains small policies with in-process vLLM and writes what happened as JSON.

Arguments: the report's path, the number of iterations.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playing import EveryFew
from small_qwen import make_model
from small_tokenizer import small_tokenizer

from midthought import RayPPOTrainer, create_default_config
from midthought.engines.weight_sync import synced_engine
from midthought.errors import EngineError
from midthought.tools.function_tool import tool

CASES: dict[str, dict[str, Any]] = {
    "full, untied": {},
    "full, tied": {"tied": True},
    "LoRA, untied": {"lora": {"r": 4}},
    "LoRA, tied, temperature 0.7": {"lora": {"r": 4}, "tied": True, "temperature": 0.7},
    "DoRA, tied": {"lora": {"r": 4, "use_dora": True}, "tied": True},
    "LoRA on the output layer, tied": {"lora": {"r": 4, "target_modules": ["q_proj", "lm_head"]}, "tied": True},
}


@tool
def look(word: str) -> str:
    """Look a word up."""
    return f"the {word} clock"


def make_policy(vocab_size: int, tied: bool, lora: dict[str, Any] | None) -> Any:
    model = make_model(vocab_size, tied=tied)
    if lora is None:
        return model
    from peft import LoraConfig, get_peft_model

    return get_peft_model(model, LoraConfig(**{"target_modules": ["q_proj", "v_proj", "down_proj"], **lora}))


def reward(trajectory: Any) -> float:
    return float(sum(trajectory.token_ids) % 7)


def make_trainer(
    num_iters: int,
    *,
    tied: bool = False,
    lora: Any = None,
    temperature: float = 1.0,
    ray: dict[str, Any] | None = None,
    reward_fn: Any = reward,
) -> RayPPOTrainer:
    tokenizer = small_tokenizer()
    config = create_default_config(
        inference={
            "backend": "vllm",
            "in_process": True,
            "max_tokens": 60,
            "max_num_seqs": 16,
            "temperature": temperature,
        },
        training={
            "adv_estimator": "grpo",
            "group_size": 4,
            "batch_size": 16,
            "mini_batch_size": 8,
            "learning_rate": 1e-3,
            "num_train_iters_per_epoch": 1,
            "num_epochs": num_iters,
            "validate_every": 0,
        },
        ray=ray or {},
    )
    rows = [{"question": f"Who found tide clock {number}?", "answer": "Ada"} for number in range(4)]
    return RayPPOTrainer(
        config,
        dataset=rows,
        reward_fn=reward_fn,
        model=make_policy(len(tokenizer), tied, lora),
        tokenizer=tokenizer,
        tools=[look],
        call_format=EveryFew(),  # type: ignore[arg-type]
        progress=False,
    )


def train(num_iters: int, **case: Any) -> dict[str, Any]:
    with make_trainer(num_iters, **case) as trainer:
        weights = [weight for weight in trainer.learner.policy.parameters() if weight.requires_grad]
        before = [weight.detach().clone() for weight in weights]
        history = trainer.fit()
        return {
            "differences": [metrics["logprob_difference_max"] for metrics in history],
            "calls": sum(metrics["episode/calls"] for metrics in history),
            "moved": max(float((new.detach() - old).abs().max()) for new, old in zip(weights, before, strict=True)),
            "policy_version": trainer.source.policy_version,
        }


@dataclass
class NodeLogged:
    """A reward that logs the node on which the episode ran."""

    path: str

    def __call__(self, trajectory: Any) -> float:
        import ray

        with open(self.path, "a", encoding="utf-8") as file:
            file.write(ray.get_runtime_context().get_node_id() + "\n")
        return reward(trajectory)


def train_on_two_nodes(num_iters: int, folder: Path) -> dict[str, Any]:
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    for _ in range(2):
        cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    settings = {"use_ray": True, "num_actors": 2, "cpus_per_actor": 1.0, "address": cluster.address}
    log = folder / "nodes"
    try:
        case = train(num_iters, ray=settings, reward_fn=NodeLogged(str(log)), lora={"r": 4}, tied=True)
    finally:
        ray.shutdown()
        cluster.shutdown()
    nodes = log.read_text("utf-8").split()
    return case | {"episodes_by_node": [nodes.count(node) for node in sorted(set(nodes))]}


def update_that_loses_a_tensor() -> str:
    """Returns the error if one tensor of a whole model is not sent."""
    complete = synced_engine.merged_tensors
    synced_engine.merged_tensors = lambda *arguments, **options: (
        pair for pair in complete(*arguments, **options) if "layers.1.mlp.down_proj" not in pair[0]
    )
    try:
        make_trainer(1).close()
    except EngineError as error:
        return str(error)
    finally:
        synced_engine.merged_tensors = complete
    return ""


def main(target: str, num_iters: int) -> None:
    report: dict[str, Any] = {name: train(num_iters, **case) for name, case in CASES.items()}
    report["two Ray nodes"] = train_on_two_nodes(num_iters, Path(target).parent)
    report["lost tensor"] = update_that_loses_a_tensor()
    Path(target).write_text(json.dumps(report), "utf-8")


main(sys.argv[1], int(sys.argv[2]))  # unguarded, as scripts of users often are: vLLM's processes must not run it again
