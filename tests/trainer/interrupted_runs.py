"""Runs of a small model that are interrupted in their last iteration, to be damaged and resumed."""

import copy
from pathlib import Path
from typing import Any

import pytest
from one_thread import in_one_thread
from safetensors.torch import load_file
from small_environments import QUESTIONS, lines, settings, without_clocks

from midthought import Trainer

DEMONSTRATIONS = [
    [{"role": "user", "content": row["question"]}, {"role": "assistant", "content": row["answer"]}] for row in QUESTIONS
]


class PowerCut(Trainer):
    """Ends before the checkpoint of iteration 4."""

    def save_checkpoint(self, path: Any = None) -> Path:
        if self.iteration == 4:
            raise RuntimeError("power cut")
        return super().save_checkpoint(path)


class Runs:
    """Runs of one small model: two supervised steps, then four iterations with a checkpoint after each."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self._model, self._tokenizer = model, tokenizer

    def trainer(self, run: Path, kind: Any = Trainer, *, resume: bool = True, seed: int = 0, **options: Any) -> Trainer:
        config = settings(num_train_iters=4, validate_every=2, kl_coef=0.05, seed=seed)
        config.checkpoint.save_interval, config.checkpoint.keep_last_n = 1, 3
        given = {"model": copy.deepcopy(self._model), "tokenizer": self._tokenizer, "run_path": run, "resume": resume}
        return kind(config, dataset=QUESTIONS, validation=QUESTIONS, progress=False, **given, **options)

    def train(self, run: Path, **options: Any) -> None:
        with in_one_thread(), self.trainer(run, **options) as trainer:
            trainer.sft(DEMONSTRATIONS, num_steps=2, batch_tokens=300, warmup_steps=0)
            trainer.fit()

    def stopped(self, run: Path, seed: int = 0) -> Path:
        with pytest.raises(RuntimeError, match="power cut"):
            self.train(run, kind=PowerCut, resume=False, seed=seed)
        return run


def left(run: Path) -> dict[str, Any]:
    """Metrics, shown episodes and weights of a finished run, without times."""

    tensors = load_file(run / "policy/model.safetensors")
    weights = {name: tensor.numpy().tobytes() for name, tensor in tensors.items()}
    metrics, episodes = (without_clocks(lines(run / name)) for name in ("metrics.jsonl", "trajectories.jsonl"))
    return {"metrics": metrics, "episodes": [{**row, "events": []} for row in episodes], "weights": weights}
