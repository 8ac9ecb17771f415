"""`python -m benchmarks [part …]`, and commands that load no part: `gpu`, `same REV`, `real TASK`, `core`."""

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
    if words[:1] == ["same"]:
        from benchmarks.same import main as compare

        sys.exit(compare(words[1:]))
    if words[:1] == ["core"]:
        from benchmarks.core_size import main as count

        count()
        return
    if words[:1] == ["real"]:
        from benchmarks.real.command import main as learn

        sys.exit(learn(words[1:]))
    from benchmarks.parts import main as measure_parts

    measure_parts(words)


if __name__ == "__main__":
    main()
