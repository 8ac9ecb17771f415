"""Differences between the settings of a run and those it is resumed with, and which of them are allowed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from midthought.config.algorithms import AlgorithmSection, algorithm_values
from midthought.config.section import HARMLESS, Section
from midthought.errors import SettingsError


@dataclass(frozen=True, slots=True)
class Change:
    """One setting that differs."""

    name: str
    """`section.key`."""
    before: Any
    now: Any
    is_harmless: bool
    """Whether the field is declared as `Harmless`."""

    def __str__(self) -> str:
        return f"{self.name}: {self.before!r} before, {self.now!r} now"


def changes_between(recorded: Mapping[str, Any], settings: Section) -> list[Change]:
    """Returns the recorded settings that are others now, in order, or that do not exist any more. Newer ones are ignored."""
    found = []
    for name, section in settings:
        before = recorded.get(name)
        if isinstance(section, Section) and isinstance(before, Mapping):
            now, fields = section.model_dump(mode="json"), type(section).model_fields
            for key, value in before.items():
                if value != (present := now.get(key, "no such setting any more")):
                    is_harmless = key in fields and HARMLESS in fields[key].metadata
                    found.append(Change(f"{name}.{key}", value, present, is_harmless))
    return found


def unset_values(settings: Section, recorded: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns the recorded values, by section, of the settings that were not set and are not harmless. A value of the preset of
    `training.algorithm` counts as not set if the record has the same algorithm."""
    found = {}
    for name, section in settings:
        before = recorded.get(name)
        if isinstance(section, Section) and isinstance(before, Mapping):
            is_training = isinstance(section, AlgorithmSection)
            preset = algorithm_values(type(section), before.get("algorithm")) if is_training else {}
            is_same = bool(preset) and getattr(section, "algorithm", None) == before["algorithm"]
            found[name] = {
                key: before[key]
                for key, field in type(section).model_fields.items()
                if key in before
                and HARMLESS not in field.metadata
                and (key not in section.model_fields_set or (is_same and preset.get(key) == getattr(section, key)))
            }
    return found


def require_true_or_false(resume: object) -> None:
    """Raises `SettingsError` for any other value of `resume`."""
    if not isinstance(resume, bool):
        remedy = "give True or False; run_path=FOLDER with resume=True continues the run in that folder"
        raise SettingsError(f"resume={resume!r:.80}: {remedy}")


def require_allowed(changes: Iterable[Change], *, allow: bool) -> None:
    """Raises `SettingsError` with every change that alters what a run learns, unless changes are allowed."""
    harmful = [change for change in changes if not change.is_harmless]
    if harmful and not allow:
        lines = "".join(f"\n  {change}" for change in harmful)
        raise SettingsError(
            f"the run started with other settings, and these change what it learns:{lines}\nResume with the settings it "
            "started with, or allow the changes: --allow-changes (allow_changes=True); they are then recorded with the step"
        )
