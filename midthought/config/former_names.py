"""Settings of the setup package under the names of their sections there: how each is read and written under ours."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from midthought.errors import SettingsError

Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class FormerName:
    """A setting that has another name or form here."""

    remedy: str
    """What to write instead."""
    changes: Callable[[Any, Values], Values]
    """From its value and the section's present values to the new values of present keys. Raises SettingsError."""
    read: Callable[[Any], Any]
    """Its value, from the section."""


def in_present_names(names: Mapping[str, FormerName], given: Values, present: Values) -> dict[str, Any]:
    """Returns `given` with present keys only, and warns of every former name. `present` are the section's values so far."""
    found = dict(given)
    for name in [name for name in names if name in given]:
        value = found.pop(name)
        warn_of_former(name, names[name], stacklevel=4)
        found |= names[name].changes(value, {**present, **found})
    return found


def warn_of_former(name: str, former: FormerName, *, stacklevel: int = 3) -> None:
    """Warns that a setting has another name here."""
    warnings.warn(f"the setting {name} has another name now: {former.remedy}", stacklevel=stacklevel)


def _no_remote_code(value: Any, _: Values) -> Values:
    if value is not False:
        raise SettingsError(
            f"trust_remote_code={value!r}: code that comes with a model is never run; set local_path to a model whose "
            "architecture transformers contains, or give Trainer(model=…, tokenizer=…) a model that you loaded yourself"
        )
    return {}


def _switch(name: str, key: str, off: Any, on: Any) -> Callable[[Any, Values], Values]:
    """A boolean `name`: false means `key=off`; true replaces only that value, by `on`."""

    def changes(value: Any, present: Values) -> Values:
        if not isinstance(value, bool):
            raise SettingsError(f"{name}={value!r}: give true or false, or set {key}")
        if not value:
            return {key: off}
        return {key: on} if present.get(key, off) == off else {}

    return changes


MODEL = {
    "model_name": FormerName("local_path", lambda value, _: {"local_path": value}, lambda section: section.local_path),
    "trust_remote_code": FormerName("nothing, it is always off", _no_remote_code, lambda _: False),
}
INFERENCE = {
    "multi_turn": FormerName(
        "max_turns, 1 for a single turn",
        _switch("multi_turn", "max_turns", off=1, on=5),
        lambda section: section.max_turns > 1,
    )
}
TRAINING = {
    "use_kl_in_reward": FormerName(
        "kl_coef, 0 for no penalty",
        _switch("use_kl_in_reward", "kl_coef", off=0.0, on=0.01),
        lambda section: section.kl_coef > 0,
    )
}
