"""`python -m benchmarks [part …]` and `python -m benchmarks gpu`. The latter needs fewer packages: it loads no part."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence


def main(words: Sequence[str] | None = None) -> None:
    words = sys.argv[1:] if words is None else words
    if words[:1] == ["gpu"]:
        began = time.monotonic()
        from benchmarks.gpu.compiled_files import keep_compiled_files

        keep_compiled_files()
        from benchmarks.gpu.command import main as check_gpu

        sys.exit(check_gpu(words[1:], began=began))
    from benchmarks.parts import main as measure_parts

    measure_parts(words)


if __name__ == "__main__":
    main()
