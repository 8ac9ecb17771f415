"""`python benchmarks/gpu/reduced_wheel.py WHEEL CUDA`: keeps one CUDA version's library in a wheel of bitsandbytes.

The whole wheel is ten times larger. `CUDA` is torch's version there, e.g. 13.0. Needs nothing but
Python.
"""

from __future__ import annotations

import sys
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile


def reduce_wheel(path: Path, cuda_version: str) -> None:
    """Rewrites the wheel in place. Exits with a message if it has no library for this CUDA version."""
    kept_name = f"libbitsandbytes_cuda{cuda_version.replace('.', '')}.so"
    with ZipFile(path) as wheel:
        names = wheel.namelist()
        if not any(name.endswith(f"/{kept_name}") for name in names):
            sys.exit(
                f"{path.name} has no {kept_name}: give the CUDA version of torch, e.g. 13.0, or another bitsandbytes"
            )
        dropped = {name for name in names if name.endswith(".so") and not name.endswith((f"/{kept_name}", "_cpu.so"))}
        files = {name: wheel.read(name) for name in names if name not in dropped}
    for name in files:
        if name.endswith(".dist-info/RECORD"):
            lines = files[name].decode().splitlines(keepends=True)
            files[name] = "".join(line for line in lines if line.split(",")[0] not in dropped).encode()
    with ZipFile(path, "w", ZIP_DEFLATED) as wheel:
        for name, contents in files.items():
            wheel.writestr(name, contents)


if __name__ == "__main__":
    reduce_wheel(Path(sys.argv[1]), sys.argv[2])
