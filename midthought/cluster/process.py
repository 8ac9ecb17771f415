"""What a process that this one starts takes over from it. Does not depend on Ray."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessSettings:
    """What other processes take over from the first one: folders for imports, and settings that change how passes round."""

    search_path: Sequence[str]
    num_threads: int
    is_deterministic: bool
    matmul_precision: str

    @classmethod
    def of_this_process(cls, num_threads: int | None = None) -> ProcessSettings:
        return cls(
            search_path=[os.path.abspath(folder) for folder in sys.path],
            num_threads=num_threads or torch.get_num_threads(),
            is_deterministic=torch.are_deterministic_algorithms_enabled(),
            matmul_precision=torch.get_float32_matmul_precision(),
        )

    def begin(self) -> None:
        """Makes the code of the first process importable here, and logs warnings."""
        sys.path += [folder for folder in self.search_path if folder not in sys.path]
        logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")

    def apply_numerics(self) -> None:
        """Makes this process round like the first one; the number of threads applies to the current thread."""
        torch.set_num_threads(self.num_threads)
        torch.use_deterministic_algorithms(self.is_deterministic)
        torch.set_float32_matmul_precision(self.matmul_precision)
