"""`python -m benchmarks.exactness [--vllm] [--architectures]`: sampled against recomputed log-probabilities.

Every case is a GRPO run of four iterations by `RayPPOTrainer`, whose logged `logprob_difference_mean` and `_max` are
|sampled - recomputed| over the tokens of an iteration, in nats: in the first iteration before training, in the fourth after
three updates. `moved` is the mean |Δ log-probability| of fixed tokens that these updates caused. `--vllm`: the engine is a
vLLM server, from the interpreter that MIDTHOUGHT_VLLM_PYTHON names. `--architectures`: small random models of many
architectures instead of one model in many ways. `--agent`: the episodes are those of an agent with branches (`branches`).
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import torch
import transformers
from transformers import AutoModelForCausalLM

from benchmarks.table import describe_machine
from midthought import RayPPOTrainer, create_default_config
from midthought.models.small_model import make_policy, make_tokenizer
from midthought.types import Task, Trajectory

KINDS: dict[str, dict[str, Any] | None] = {
    "full": None,
    "LoRA": {},
    "LoRA + DoRA": {"use_dora": True},
    "LoRA + `modules_to_save`": {"modules_to_save": ["lm_head"]},
}
DTYPES = ("float32", "bfloat16")
TEMPERATURES = (1.0, 0.7, 1.3)
LIMITS = {"float32": ("max", 1e-4), "bfloat16": ("mean", 0.02)}
"""Of the local engine: which figure may be how large."""
LEARNING_RATES = {False: 2e-4, True: 3e-3}
"""Without and with adapters: three updates change log-probabilities by a tenth of a nat or more."""
WORDS = ["Who found tide clock", "Ada", "0 1 2 3 4 5 6 7 8 9"]
SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "max_position_embeddings": 512,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
    "initializer_range": 0.1,
}
_EXPERTS: dict[str, Any] = {"moe_intermediate_size": 32, "num_experts_per_tok": 2}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "Qwen3": {"head_dim": 16, "tie_word_embeddings": True},
    "Qwen2": {},
    "Llama": {},
    "Mistral": {"sliding_window": 16},
    "Gemma2": {"head_dim": 16, "query_pre_attn_scalar": 16},
    "Gemma3Text": {"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 16},
    "Phi3": {},
    "Qwen3Moe": {"head_dim": 16, "num_experts": 4, **_EXPERTS},
    "Mixtral": {"num_local_experts": 4},
    "DeepseekV3": {
        "num_key_value_heads": 4,
        "n_routed_experts": 4,
        "n_group": 2,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "kv_lora_rank": 16,
        "q_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 16,
        **_EXPERTS,
    },
    "GptOss": {"head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 16},
    "Olmo2": {},
    "Granite": {},
    "Qwen3Next": {
        "head_dim": 16,
        "num_experts": 4,
        "shared_expert_intermediate_size": 32,
        "decoder_sparse_step": 1,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "layer_types": ["linear_attention", "full_attention"],
        **_EXPERTS,
    },
    "Mamba2": {"num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 1, "chunk_size": 16},
    "GPT2": {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 512},
}
"""Settings beside `SIZES` of transformers' `…Config`."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One run."""

    model: str
    kind: str
    dtype: str
    temperature: float
    engine: str = "local"
    episodes: str = "native"
    runner: str = ""
    mean: tuple[float, float] = (0.0, 0.0)
    """|sampled - recomputed|, nats: before training, after three updates."""
    max: tuple[float, float] = (0.0, 0.0)
    moved: float = 0.0
    not_run: str = ""
    warnings: list[str] = field(default_factory=list)

    @property
    def is_met(self) -> bool | None:
        """None without a limit."""
        if self.not_run or self.engine != "local":
            return None
        figure, limit = LIMITS[self.dtype]
        return all(value <= limit for value in getattr(self, figure))

    def to_markdown(self) -> str:
        names = [self.model, self.kind, self.dtype, f"{self.temperature:g}", self.engine, self.episodes, self.runner]
        if self.not_run:
            return f"| {' | '.join(names)} | not run: {self.not_run} | | | | |"
        figures = [f"{self.mean[0]:.1e}", f"{self.max[0]:.1e}", f"{self.mean[1]:.1e}", f"{self.max[1]:.1e}"]
        met = {None: "", True: "", False: " **over the limit**"}[self.is_met]
        return f"| {' | '.join([*names, *figures])} | {self.moved:.2f}{met} |"


HEAD = (
    "| model | trained | type | temperature | engine | episodes | runner "
    "| mean before | max before | mean after | max after | moved |\n" + "| --- " * 12 + "|"
)


def cases(arguments: argparse.Namespace) -> Iterator[Case]:
    if arguments.architectures:
        for name, kind, dtype in itertools.product(ARCHITECTURES, ("full", "LoRA"), DTYPES):
            yield Case(model=name, kind=kind, dtype=dtype, temperature=1.0)
        return
    base = Case(
        model="Qwen3, 8 layers",
        kind="full",
        dtype="float32",
        temperature=1.0,
        engine="vLLM" if arguments.vllm else "local",
        episodes="agent" if arguments.agent else "native",
    )
    for kind, dtype, temperature in itertools.product(KINDS, DTYPES, TEMPERATURES):
        yield replace(base, kind=kind, dtype=dtype, temperature=temperature)


def make_model(case: Case, tokenizer: Any) -> Any:
    """Random weights; raises where transformers or PEFT cannot make it."""
    torch.manual_seed(0)
    if case.model in ARCHITECTURES:
        sizes = {**SIZES, "vocab_size": len(tokenizer), **ARCHITECTURES[case.model]}
        model = AutoModelForCausalLM.from_config(getattr(transformers, f"{case.model}Config")(**sizes)).eval()
    else:
        model = make_policy(tokenizer, hidden_size=256, num_layers=8, num_heads=4, max_length=512, seed=0)
    model = model.to(getattr(torch, case.dtype))
    options = KINDS[case.kind]
    if options is None:
        return model
    import peft

    excluded = ["out_proj"] if "mamba" in model.config.model_type else None
    lora: dict[str, Any] = {"r": 8, "lora_alpha": 16, "target_modules": "all-linear", "exclude_modules": excluded}
    return peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **lora, **options))


def branches(task: Task, client: Any) -> float | None:
    """An agent: a conversation in both dialects, four ways to go on at the same time, and a compaction. Gives no reward."""

    def user(text: str) -> dict[str, str]:
        return {"role": "user", "content": text}

    def ask(path: str, *messages: dict[str, str], **options: int) -> list[dict[str, str]]:
        body = {"model": client.model, "messages": messages, "max_tokens": 24, **options}
        with httpx.Client(headers={"x-api-key": client.api_key}, timeout=600) as http:
            found = http.post(client.anthropic_base_url + path, json=body).raise_for_status().json()
        if path == chat:
            texts = [choice["message"]["content"] for choice in found["choices"]]
        else:
            texts = ["".join(block["text"] for block in found["content"])]
        return [*messages, {"role": "assistant", "content": texts[-1]}]

    chat, anthropic = "/v1/chat/completions", "/v1/messages"
    second = ask(anthropic, *ask(chat, user(task.prompt)), user("Go on."))
    ways: list[tuple[str, str, dict[str, int]]] = [
        (chat, "Why?", {"n": 2}),
        (anthropic, "Why?", {}),
        (anthropic, "How?", {}),
    ]
    with ThreadPoolExecutor() as pool:
        *_, last = pool.map(lambda way: ask(way[0], *second, user(way[1]), **way[2]), ways)
    ask(chat, user("In short."), *last[-1:], user("Go on."))
    return None


def reward(trajectory: Trajectory) -> float:
    """Of the tokens alone, different for nearly all episodes: something to learn, whatever the model."""
    return (sum(trajectory.token_ids) % 97) / 97


def run(case: Case, tokenizer: Any) -> Case:
    config = create_default_config(
        inference={"max_tokens": 48, "max_num_seqs": 16, "temperature": case.temperature},
        training={
            "adv_estimator": "grpo",
            "group_size": 4,
            "batch_size": 16,
            "mini_batch_size": 16,
            "warmup_steps": 0,
            "num_train_iters": 4,
            "validate_every": 0,
            "learning_rate": LEARNING_RATES[case.kind != "full"],
        },
    )
    if case.engine == "vLLM":
        flags = ["--max-model-len", "512"]
        config = config.merged(
            {
                "inference": {
                    "backend": "vllm",
                    "server_python": os.environ["MIDTHOUGHT_VLLM_PYTHON"],
                    "server_flags": flags,
                }
            }
        )
    try:
        model = make_model(case, tokenizer)
    except Exception as error:
        return replace(case, not_run=f"{type(error).__name__}: {error}".splitlines()[0][:100])
    fixed = torch.arange(96).view(2, 48) % len(tokenizer)
    rows = [{"question": f"Who found tide clock {number}?", "answer": "Ada"} for number in range(4)]
    options: dict[str, Any] = {"agent": branches} if case.episodes == "agent" else {}
    with (
        warnings.catch_warnings(record=True) as caught,
        RayPPOTrainer(
            config, dataset=rows, reward_fn=reward, model=model, tokenizer=tokenizer, progress=False, **options
        ) as trainer,
    ):
        warnings.simplefilter("always")
        before = logprobs(model, fixed)
        history = trainer.fit()
        moved = (logprobs(model, fixed) - before).abs().mean().item()
        runner = runner_of(trainer.source.parts.engine) if case.engine == "local" else "server"
    first, last = history[0], history[3]
    return replace(
        case,
        runner=runner,
        mean=(first["logprob_difference_mean"], last["logprob_difference_mean"]),
        max=(first["logprob_difference_max"], last["logprob_difference_max"]),
        moved=moved,
        warnings=sorted({str(each.message) for each in caught if each.category is UserWarning}),
    )


def logprobs(model: Any, token_ids: torch.Tensor) -> torch.Tensor:
    """`[B, T - 1]` of each next token."""
    with torch.no_grad():
        found = model(input_ids=token_ids).logits[:, :-1].float().log_softmax(-1)
    return found.gather(-1, token_ids[:, 1:, None])[..., 0]


def runner_of(engine: Any) -> str:
    runner = engine._cache_manager.runner
    if not runner.keeps_cache:
        return "no cache"
    return "fused" if runner._decoder is not None else "own layers"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm", action="store_true")
    parser.add_argument("--architectures", action="store_true")
    parser.add_argument("--agent", action="store_true")
    parser.add_argument("--only", default="", help="cases whose line holds this text")
    parser.add_argument("--out", type=Path, default=Path("runs/bench"))
    arguments = parser.parse_args()
    tokenizer = make_tokenizer([*WORDS * 40], 400)
    print(HEAD, flush=True)
    found: list[Case] = []
    name = "exactness" + "".join(f"-{way}" for way in ("vllm", "architectures", "agent") if getattr(arguments, way))
    arguments.out.mkdir(parents=True, exist_ok=True)
    for case in cases(arguments):
        if arguments.only in case.to_markdown():
            found.append(run(case, tokenizer))
            print(found[-1].to_markdown(), flush=True)
            content = {"machine": describe_machine("cpu"), "cases": [asdict(each) for each in found]}
            (arguments.out / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n", "utf-8")
    lines = [HEAD, *(case.to_markdown() for case in found), ""]
    (arguments.out / f"{name}.md").write_text("\n".join(lines), "utf-8")


if __name__ == "__main__":
    main()
