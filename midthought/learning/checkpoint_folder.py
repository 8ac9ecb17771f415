"""Checkpoints: folders of safetensors and JSON, written atomically, verified on reading. No pickle.

    step_000040/  policy/ (a Hugging Face model, or with LoRA its adapters as PEFT writes them; the tokenizer)
                  critic.safetensors   optimizer.safetensors
                  learner.json (counters)   random.json   state.json (the caller's)   manifest.json (sizes and SHA-256)

Does not depend on a training loop: the caller defines what `state` means (cursor, best metric, …).
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from midthought.errors import CheckpointError, ModelPathError, UserError
from midthought.files.output_folder import MANIFEST, damage_in, recover, remove, replaced
from midthought.files.regular import read_regular_text, value_errors
from midthought.learning.model import has_adapters
from midthought.learning.remote_learner import AnyLearner
from midthought.models.gguf import quiet_transformers
from midthought.models.peft_folders import ADAPTER_FILE, load_adapters, save_adapters
from midthought.models.pretrained import load_weights, require_finite

_STEP_FOLDER = re.compile(r"step_(\d+)")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose files are complete and unchanged."""

    path: Path
    state: dict[str, Any]
    """The `state` that was passed to `save_checkpoint`."""

    @property
    def policy_path(self) -> Path:
        """A Hugging Face model, or a PEFT folder of adapters that names its base model; `load_model` loads both."""
        return self.path / "policy"

    def restore(self, learner: AnyLearner) -> None:
        """Restores weights, optimizer, counters and the random states of python, numpy and torch.

        On the same machine, training then continues bitwise as it would have without stopping. Raises CheckpointError
        if the learner's models are different.
        """
        remedy = "resume with the settings that it was written with"
        try:
            has_some = (self.policy_path / ADAPTER_FILE).exists()
            if has_some != has_adapters(learner.policy):
                raise CheckpointError(
                    f"checkpoint {self.path} holds {'' if has_some else 'no '}adapters, unlike this run; {remedy}"
                )
            if has_some:
                load_adapters(learner.policy, self.policy_path)
            else:
                load_weights(learner.policy, self.policy_path, is_checked=True)
            critic_file = self.path / "critic.safetensors"
            if critic_file.exists() != (learner.critic is not None):
                has = "a" if critic_file.exists() else "no"
                raise CheckpointError(f"checkpoint {self.path} holds {has} critic, unlike this run; {remedy}")
            if learner.critic is not None:
                learner.critic.load_state_dict(load_file(critic_file))
        except (RuntimeError, ModelPathError, SafetensorError) as error:
            raise CheckpointError(
                f"checkpoint {self.path} is of other models ({_one_line(error)}); {remedy}"
            ) from error
        with value_errors(f"checkpoint {self.path}"):
            counters = _read_json(self.path / "learner.json")
            learner.load_state_dict({**counters, "moments": load_file(self.path / "optimizer.safetensors")})
            _restore_random_states(_read_json(self.path / "random.json"))


def save_checkpoint(
    path: str | Path, learner: AnyLearner, *, tokenizer: Any | None = None, state: Mapping[str, Any] | None = None
) -> Path:
    """Writes a checkpoint to a folder next to `path`, flushes it to disk, and renames it; an older one is replaced.

    `state` has JSON values. Raises `TrainingStoppedError` if a weight is not finite, `OutputPathError` if something other than
    a checkpoint is at `path`, `StorageError` or `CheckpointError` if writing fails. In these cases no partial files remain, and
    `path` is unchanged.
    """
    path = Path(path)
    for name, model in (("policy", learner.policy), ("critic", learner.critic)):
        if model is not None:
            require_finite(model, f"checkpoint {path}, {name}")
    try:
        with replaced(path, "checkpoint") as folder:
            _write_parts(folder, learner, tokenizer, dict(state or {}))
    except UserError:
        raise
    except OSError as error:
        raise CheckpointError(
            f"checkpoint {path} cannot be written ({_one_line(error)}); free or change the place"
        ) from error
    return path


def load_checkpoint(path: str | Path) -> Checkpoint:
    """Opens a checkpoint after checking every file's size and hash.

    Raises CheckpointError, with the file and the remedy, if it is missing, incomplete, damaged or of another format.
    """
    path = Path(path)
    recover(path)
    if not (path / MANIFEST).is_file():
        raise CheckpointError(f"{path} is no checkpoint: it holds no {MANIFEST}; give a folder that `train` wrote")
    if found := damage_in(path):
        raise CheckpointError(f"checkpoint {path} {found}; take an earlier checkpoint of the run")
    return Checkpoint(path, _read_json(path / "state.json"))


def step_path(run_dir: str | Path, step: int) -> Path:
    """Returns the path of this step's checkpoint in a run's folder."""
    return Path(run_dir) / "checkpoints" / f"step_{step:06d}"


def step_of(path: Path) -> int:
    """Returns the step of a checkpoint at a `step_path`."""
    return int(path.name.removeprefix("step_"))


def step_paths(run_dir: str | Path, *, with_damaged: bool = False) -> list[Path]:
    """Returns the run's checkpoints, earliest first; those without a manifest only `with_damaged`."""
    folder = Path(run_dir) / "checkpoints"
    entries = folder.iterdir() if folder.is_dir() else []
    found = [(int(match[1]), entry) for entry in entries if (match := _STEP_FOLDER.fullmatch(entry.name))]
    return [entry for _, entry in sorted(found) if with_damaged or (entry / MANIFEST).is_file()]


def latest(run_dir: str | Path) -> Path | None:
    """Returns the run's newest checkpoint, or None if there is none."""
    return next(reversed(step_paths(run_dir)), None)


def keep_last(run_dir: str | Path, num_kept: int, best: str | Path | None = None) -> list[Path]:
    """Deletes all but the newest `num_kept` checkpoints and the `best` one. Returns the deleted paths."""
    if num_kept < 1:
        raise ValueError(f"num_kept must be at least 1, got {num_kept}")
    kept_best = None if best is None else Path(best).resolve()
    doomed = [path for path in step_paths(run_dir)[:-num_kept] if path.resolve() != kept_best]
    for path in doomed:
        (path / MANIFEST).unlink()
        remove(path)
    return doomed


# -- parts -------------------------------------------------------------------------------------------------------


def _write_parts(folder: Path, learner: AnyLearner, tokenizer: Any | None, state: dict[str, Any]) -> None:
    if has_adapters(learner.policy):
        save_adapters(learner.policy, folder / "policy")
    else:
        with quiet_transformers():
            learner.policy.save_pretrained(folder / "policy")
    if tokenizer is not None:
        tokenizer.save_pretrained(folder / "policy")
    if learner.critic is not None:
        weights = {  # copies: tied weights share memory, and are stored twice
            name: tensor.detach().to("cpu", copy=True).contiguous()
            for name, tensor in learner.critic.state_dict().items()
        }
        save_file(weights, folder / "critic.safetensors")
    counters = learner.state_dict()
    moments = {name: tensor.detach().cpu().contiguous() for name, tensor in counters.pop("moments").items()}
    save_file(moments, folder / "optimizer.safetensors")
    _write_json(folder / "learner.json", counters)
    _write_json(folder / "random.json", _random_states())
    _write_json(folder / "state.json", state)


def _random_states() -> dict[str, Any]:
    version, words, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    states: dict[str, Any] = {
        "python": [version, list(words), gauss],
        "numpy": [name, np.asarray(keys).tolist(), int(position), int(has_gauss), float(cached)],
        "torch": _as_hex(torch.get_rng_state()),
    }
    if torch.cuda.is_available():
        states["cuda"] = [_as_hex(state) for state in torch.cuda.get_rng_state_all()]
    return states


def _restore_random_states(states: Mapping[str, Any]) -> None:
    version, words, gauss = states["python"]
    random.setstate((version, tuple(words), gauss))
    name, keys, position, has_gauss, cached = states["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), position, has_gauss, cached))
    torch.set_rng_state(_from_hex(states["torch"]))
    if "cuda" in states and torch.cuda.device_count() == len(states["cuda"]):
        torch.cuda.set_rng_state_all([_from_hex(state) for state in states["cuda"]])


def _as_hex(state: torch.Tensor) -> str:
    return state.cpu().numpy().tobytes().hex()


def _from_hex(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8).clone()


# -- files -------------------------------------------------------------------------------------------------------


def _write_json(file: Path, content: Any) -> None:
    file.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def _read_json(file: Path) -> Any:
    try:
        return json.loads(read_regular_text(file))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{file} cannot be read ({_one_line(error)}); take an earlier checkpoint of the run"
        ) from error


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
