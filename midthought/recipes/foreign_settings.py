"""Settings in a run folder that start a program, import code or send a key. The folder may be from someone else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from midthought.config import parse_assignments, read_yaml
from midthought.errors import SettingsError
from midthought.report.run_folder import flat_keys


def require_no_programs(run: Path, words: Sequence[str] = (), *, remedy: str = "") -> None:
    """Raises `SettingsError` if the settings of `run` name a program, code of its own or a key that `words` do not repeat.

    `remedy`: what permits them; by default, to repeat them.
    """
    file = run / "config.yaml"
    if not file.is_file():
        return
    given = flat_keys(parse_assignments(words))
    found = {key: value for key, value in _named(read_yaml(file)) if key not in given}
    if found:
        repeated = " ".join(f"{key}={value}" for key, value in found.items())
        raise SettingsError(
            f"{file} names programs, code or keys: {repeated}. A run folder starts no code and sends no key by itself; if you "
            f"trust it, {remedy or f'add {repeated}'}"
        )


def _named(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in flat_keys(values).items():
        name = key.rpartition(".")[2]
        is_code = name == "trackers" and any(
            ":" in str(each) for each in (value if isinstance(value, list) else [value])
        )
        is_key = (name == "api_key_env" and value) or "api_key_env=" in str(value)
        if is_code or is_key or (name == "server_python" and value):
            yield key, value
