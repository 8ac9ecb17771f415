"""Settings of the setup package under the names of their sections there: how each is read and written under ours."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from midthought.errors import SettingsError

Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class FormerName:
    """A setting that has another name or form here."""

    remedy: str
    """What to write instead."""
    key: str = ""
    """Its present name. Empty: there is no such setting, and its value is false."""
    off: Any = None
    """Value of `key` for false, if the former setting is a boolean; true replaces only this value, by `on`."""
    on: Any = None

    def changes(self, name: str, value: Any, present: Values) -> Values:
        """Returns new values of present keys, from the section's present values. Raises SettingsError."""
        if not self.key:
            if value is not False:
                raise SettingsError(
                    f"{name}={value!r}: code that comes with a model is never run; set local_path to a model whose "
                    "architecture transformers contains, or give Trainer(model=…, tokenizer=…) a model that you loaded yourself"
                )
            return {}
        if self.off is None:
            return {self.key: value}
        if not isinstance(value, bool):
            raise SettingsError(f"{name}={value!r}: give true or false, or set {self.key}")
        is_changed = not value or present.get(self.key, self.off) == self.off
        return {self.key: self.on if value else self.off} if is_changed else {}

    def read(self, section: Any) -> Any:
        """Returns its value, from the section."""
        found = getattr(section, self.key) if self.key else False
        return found if self.off is None else found > self.off


def in_present_names(names: Mapping[str, FormerName], given: Values, present: Values) -> dict[str, Any]:
    """Returns `given` with present keys only, and warns of every former name. `present` are the section's values so far."""
    found = {str(name): value for name, value in given.items()}
    for name in [name for name in names if name in found]:
        value = found.pop(name)
        warn_of_former(name, names[name], stacklevel=4)
        found |= names[name].changes(name, value, {**present, **found})
    return found


def warn_of_former(name: str, former: FormerName, *, stacklevel: int = 3) -> None:
    """Warns that a setting has another name here."""
    warnings.warn(f"the setting {name} has another name now: {former.remedy}", stacklevel=stacklevel)


MODEL = {
    "model_name": FormerName("local_path", "local_path"),
    "trust_remote_code": FormerName("nothing, it is always off"),
}
INFERENCE = {"multi_turn": FormerName("max_turns, 1 for a single turn", "max_turns", off=1, on=5)}
TRAINING = {"use_kl_in_reward": FormerName("kl_coef, 0 for no penalty", "kl_coef", off=0.0, on=0.01)}
