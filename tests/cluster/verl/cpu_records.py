"""Writes what verl's trainer learns from into RECORDS/ROLE-NUMBER.pt, before each update: VERL_USE_EXTERNAL_MODULES names it.

Only for tests.
"""

from __future__ import annotations

import functools
import itertools
import os
from pathlib import Path
from typing import Any

import torch
from verl.workers.engine_workers import TrainingWorker

_numbers = itertools.count(1)
_train_batch = TrainingWorker.train_batch


@functools.wraps(_train_batch)
def train_batch(self: Any, data: Any) -> Any:
    columns = {name: list(value.unbind()) for name, value in data.items() if isinstance(value, torch.Tensor)}
    path = Path(os.environ["RECORDS"]) / f"{self.config.model_type}-{next(_numbers)}.pt"
    torch.save({name: [row.detach().clone() for row in rows] for name, rows in columns.items()}, path)
    return _train_batch(self, data)


TrainingWorker.train_batch = train_batch
