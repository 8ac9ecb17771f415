"""`python -m benchmarks.weight_update`, run by an interpreter that has vLLM: seconds until in-process vLLM has new weights.

For each model size, medians over alternating rounds of: through shared memory, through a folder on the disk, and a whole
update of a training run (shared memory, and the check that vLLM computes with the weights).
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from midthought.engines.shared_tensors import SharedTensors
from midthought.engines.vllm_in_process import VLLMInProcessEngine
from midthought.engines.weight_publication import PublishedPolicy, write_model
from midthought.models.peft_folders import merged_tensors

MODELS = {"100 MB": (512, 8), "1 GB": (1280, 14)}
"""Hidden size and number of layers."""


def make_policy(hidden_size: int, num_layers: int) -> Any:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(
        Qwen3Config(
            vocab_size=4096,
            hidden_size=hidden_size,
            num_hidden_layers=num_layers,
            num_attention_heads=8,
            num_key_value_heads=4,
            head_dim=64,
            intermediate_size=3 * hidden_size,
            max_position_embeddings=512,
            tie_word_embeddings=False,
        )
    )


def measure(name: str, num_rounds: int, disk: Path) -> str:
    policy = make_policy(*MODELS[name])
    num_bytes = sum(weight.numel() * weight.element_size() for weight in policy.parameters())
    seconds: dict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="bench-weights-", dir=disk) as folder:
        write_model(policy, Path(folder) / "start")
        engine = VLLMInProcessEngine(
            Path(folder) / "start", eos_token_ids=[], max_seq_len=512, max_num_seqs=8, dtype="float32"
        )
        engine.start()
        engine.follow(PublishedPolicy(policy, probe_ids=range(3, 300)))

        def call(method: str, *arguments: Any) -> None:
            engine._loop.run(engine._running_llm().collective_rpc(method, args=arguments))

        def through_memory() -> None:
            shared = SharedTensors(merged_tensors(policy))
            call("load_shared_weights", dict(shared.manifest))
            shared.close()

        def through_disk() -> None:
            shutil.rmtree(Path(folder) / "update", ignore_errors=True)
            write_model(policy, Path(folder) / "update")
            call("reload_weights", None, str(Path(folder) / "update"))

        ways = {"shared memory": through_memory, "disk": through_disk, "whole update": engine.update_weights}
        for number in range(num_rounds + 1):
            for way, update in ways.items():
                began = time.perf_counter()
                update()
                if number:  # the first round allocates
                    seconds[way].append(time.perf_counter() - began)
        engine.shutdown()
    found = {way: f"{statistics.median(each):.2f} ({min(each):.2f} … {max(each):.2f})" for way, each in seconds.items()}
    return f"| {num_bytes / 1e6:,.0f} MB | {' | '.join(found[way] for way in ways)} |"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.weight_update", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--disk", type=Path, default=Path.cwd(), help="a folder on a real disk")
    arguments = parser.parse_args()
    rows = [measure(name, arguments.rounds, arguments.disk) for name in MODELS]
    print("| weights | shared memory | disk | whole update, with the check |", "|---|---|---|---|", *rows, sep="\n")


if __name__ == "__main__":
    main()
