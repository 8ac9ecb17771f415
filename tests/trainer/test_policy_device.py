"""Where the trainer's model computes. The device `meta`, which torch has everywhere, stands for a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from midthought.config import ConfigStore
from midthought.pretrained import save_model
from midthought.trainer.initial_policy import find_policy

TEXTS = ["a small sea", "the sea is small"]


def found(**model: Any) -> Any:
    config = ConfigStore.model_validate({"model": {"vocab_size": 300, "hidden_size": 32, **model}})
    return find_policy(config, None, None, texts=lambda: TEXTS)


@pytest.mark.parametrize(("device", "expected"), [("auto", "cpu"), ("cpu", "cpu"), ("meta", "meta")])
def test_a_made_model_is_where_the_settings_say(device: str, expected: str) -> None:
    assert found(device=device)[0].device.type == expected


def test_a_loaded_model_is_where_the_settings_say(tmp_path: Path) -> None:
    save_model(*found(), tmp_path / "model")
    assert found(local_path=str(tmp_path / "model"), device="meta")[0].device.type == "meta"
