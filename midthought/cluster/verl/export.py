"""Writes a checkpoint of verl as a Hugging Face folder: `python -m midthought.cluster.verl.export CHECKPOINT FOLDER`.

verl merges the shards of its GPUs but leaves adapters in a folder of their own, without the name of their base. Here they are
merged into the weights. Needs no GPU.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

from midthought.cluster.verl.installed import require_verl
from midthought.errors import ModelPathError, SettingsError, UserError
from midthought.models.peft_folders import ADAPTER_CONFIG
from midthought.models.pretrained import load_model, load_tokenizer, save_model

_SHARDS, _ADAPTERS = "fsdp_config.json", "lora_adapter"


def export(checkpoint: Path, folder: Path) -> Path:
    """Writes the policy of `checkpoint` (`checkpoints/global_step_N`) into `folder`, which must be new or empty.

    A policy without adapters is written in bfloat16, a merged one in float32. Returns `folder`. Raises `ModelPathError` if the
    checkpoint holds no policy or verl cannot merge it, `SettingsError` if the folder is not empty, `MissingExtraError` without
    verl.
    """
    shards = next((place for place in (checkpoint / "actor", checkpoint) if (place / _SHARDS).is_file()), None)
    if shards is None:
        raise ModelPathError(
            f"{checkpoint} holds no policy that verl saved; give checkpoints/global_step_N of a bundle"
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise SettingsError(f"{folder} is not empty; give a new folder")
    words = ["merge", "--backend", "fsdp", "--local_dir", str(shards), "--target_dir", str(folder)]
    done = subprocess.run(
        [require_verl(), "-m", "verl.model_merger", *words], capture_output=True, text=True, check=False
    )
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise ModelPathError(f"verl cannot merge the shards in {shards}: {reason}")
    if (folder / _ADAPTERS).is_dir():
        _merge_adapters(folder)
    return folder


def _merge_adapters(folder: Path) -> None:
    """Merges the adapters in `folder/lora_adapter` into the model in `folder`."""
    adapters = folder / _ADAPTERS
    described = json.loads((adapters / ADAPTER_CONFIG).read_text("utf-8"))
    (adapters / ADAPTER_CONFIG).write_text(json.dumps({**described, "base_model_name_or_path": str(folder.resolve())}))
    merged, tokenizer = load_model(adapters), load_tokenizer(folder)
    shutil.rmtree(folder)
    save_model(merged, tokenizer, folder)


def main(words: list[str]) -> int:
    """Runs the command and returns its exit code."""
    if len(words) != 2:
        print("usage: python -m midthought.cluster.verl.export CHECKPOINT FOLDER", file=sys.stderr)
        return 2
    try:
        folder = export(Path(words[0]), Path(words[1]))
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{folder}: the policy as a Hugging Face folder. Continue with: midthought train RECIPE --from {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
