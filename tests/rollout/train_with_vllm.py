"""Run by an interpreter that has vLLM: trains small policies with in-process vLLM and writes what happened as JSON.

Arguments: the report's path, the number of iterations.
"""

import json
import sys
from pathlib import Path
from typing import Any

from playing import EveryFew, Look
from small_qwen import make_model, vllm_settings
from small_tokenizer import small_tokenizer

from midthought import RayPPOTrainer
from midthought.engines import weight_publication
from midthought.errors import EngineError

CASES: dict[str, dict[str, Any]] = {
    "full, untied": {},
    "full, tied": {"tied": True},
    "LoRA, tied, temperature 0.7": {"lora": {"r": 4}, "tied": True, "temperature": 0.7},
    "LoRA on the output layer, tied": {"lora": {"r": 4, "target_modules": ["q_proj", "lm_head"]}, "tied": True},
}


def make_policy(vocab_size: int, tied: bool, lora: dict[str, Any] | None) -> Any:
    model = make_model(vocab_size, tied=tied)
    if lora is None:
        return model
    from peft import LoraConfig, get_peft_model

    return get_peft_model(model, LoraConfig(**{"target_modules": ["q_proj", "v_proj", "down_proj"], **lora}))


def reward(trajectory: Any) -> float:
    return float(sum(trajectory.token_ids) % 7)


def make_trainer(num_iters: int, *, tied: bool = False, lora: Any = None, temperature: float = 1.0) -> RayPPOTrainer:
    tokenizer = small_tokenizer()
    config = vllm_settings(num_iters, 1e-3, in_process=True, temperature=temperature)
    rows = [{"question": f"Who found tide clock {number}?", "answer": "Ada"} for number in range(4)]
    return RayPPOTrainer(
        config,
        dataset=rows,
        reward_fn=reward,
        model=make_policy(len(tokenizer), tied, lora),
        tokenizer=tokenizer,
        tools=[Look()],
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


def update_that_loses_a_tensor() -> str:
    """Returns the error if one tensor of a whole model is not sent."""
    complete = weight_publication.merged_tensors
    weight_publication.merged_tensors = lambda *arguments, **options: (
        pair for pair in complete(*arguments, **options) if "layers.1.mlp.down_proj" not in pair[0]
    )
    try:
        make_trainer(1).close()
    except EngineError as error:
        return str(error)
    finally:
        weight_publication.merged_tensors = complete
    return ""


def main(target: str, num_iters: int) -> None:
    report: dict[str, Any] = {name: train(num_iters, **case) for name, case in CASES.items()}
    report["lost tensor"] = update_that_loses_a_tensor()
    Path(target).write_text(json.dumps(report), "utf-8")


main(sys.argv[1], int(sys.argv[2]))  # unguarded, as scripts of users often are: vLLM's processes must not run it again
