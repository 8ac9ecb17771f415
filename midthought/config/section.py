"""Base class of the sections: settings that are validated on every assignment. Settings that may be `auto` or harmless. The page
that documents them."""

from __future__ import annotations

import dataclasses
import json
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, PrivateAttr, ValidationError

from midthought.errors import SettingsError, near_names

Values = Mapping[str, Any]
AUTO_BRANCH = "literal['auto']"
"""How pydantic names the branch `auto` of a setting's type."""
HARMLESS = "may change in a resumed run"
"""Marks the type of a field that changes where and how fast a run computes, what it logs, or how long it runs, not what it
learns."""
Value = TypeVar("Value")
Harmless = Annotated[Value, HARMLESS]
"""`Harmless[int]`: a setting that a resumed run may change. Any other setting needs `allow_changes`."""
Auto = Literal["auto"]
"""The run chooses a value for its hardware before it starts (`midthought.plan.choices`), and records it."""


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


def settled(value: Value | Auto, otherwise: Value | None = None) -> Value:
    """The value of a setting that may be `auto`; `otherwise` if no run has replaced it. Raises SettingsError if that is None."""
    if value != "auto":
        return value
    if otherwise is None:
        raise SettingsError(
            "a setting is still 'auto': no run has chosen its value (midthought.plan.choices); set a value"
        )
    return otherwise


class _DataclassFields:
    """The fields of a section as `dataclasses.fields` reads them, so that `asdict` and `replace` work as in the setup package."""

    def __get__(self, section: Any, owner: type[Section]) -> dict[str, dataclasses.Field[Any]]:
        names = getattr(owner, "model_fields", {})
        return dataclasses.make_dataclass(owner.__name__, names).__dataclass_fields__  # type: ignore[attr-defined]


class Section(BaseModel):
    """A group of settings. An unknown key or a wrong value raises `SettingsError` at the assignment."""

    model_config = ConfigDict(
        extra="forbid",
        validate_assignment=True,
        validate_default=True,
        use_attribute_docstrings=True,
        allow_inf_nan=False,
        protected_namespaces=(),
    )
    former_names: ClassVar[Mapping[str, FormerName]] = {}
    """Settings of the setup package that have another name here. Reading and writing them warns."""
    test_sizes: ClassVar[Mapping[str, int]] = {}
    """Settings that are numbers of test questions, with the largest value of `auto`."""
    _is_frozen: bool = PrivateAttr(False)
    __dataclass_fields__: ClassVar[Any] = _DataclassFields()
    __dataclass_params__: ClassVar[Any] = dataclasses.make_dataclass("_", ()).__dataclass_params__  # type: ignore[attr-defined]

    def __new__(cls, *_: Any, **__: Any) -> Self:
        if "__dataclass_fields__" in cls.__dict__:
            # a subclass with @dataclass, as in the setup package: pydantic has read its fields already
            for name in ("__dataclass_fields__", "__init__", "__repr__", "__eq__"):
                if name in cls.__dict__:
                    delattr(cls, name)
        return super().__new__(cls)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**in_present_names(self.former_names, values, {}))
        except ValidationError as error:
            raise SettingsError(_explain(type(self), error)) from None

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if (former := type(self).former_names.get(name)) is not None:
                warn_of_former(name, former)
                return former.read(self)
            return super().__getattr__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in type(self).former_names:
            for key, changed in in_present_names(self.former_names, {name: value}, self.__dict__).items():
                setattr(self, key, changed)
            return
        if name in type(self).model_fields and self._is_frozen:
            raise SettingsError(
                f"{name}={value!r}: this copy of the settings is frozen; change the settings of the trainer"
            )
        before, were_set = dict(self.__dict__), set(self.model_fields_set)
        try:
            super().__setattr__(name, value)
        except ValidationError as error:
            self.__dict__.update(before)  # model validators run after the assignment
            self.model_fields_set.intersection_update(were_set)
            raise SettingsError(_explain(type(self), error)) from None

    def changed(self, **values: Any) -> Self:
        """Returns a validated copy with these values. Raises `SettingsError`."""
        return type(self)(**{**self.given(), **values})

    def copied(self, values: Mapping[str, Any]) -> Self:
        """Returns an assignable copy with these valid values, which are not validated again; for a section in it: the section, or
        a mapping of its values."""
        given = [(name, value, values.get(name, {})) for name, value in self if isinstance(value, Section)]
        inner = {name: value.copied(new) for name, value, new in given if not isinstance(new, Section)}
        copy = self.model_copy(update={**values, **inner}, deep=True)
        copy._is_frozen = False
        return copy

    def given(self) -> dict[str, Any]:
        """Returns the settings that were set, as nested plain values. A setting may be set to its default."""
        plain, found = self.model_dump(mode="json"), {}
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            if isinstance(value, Section):
                found[name] = value.given()
            elif name in self.model_fields_set or value != field.get_default(call_default_factory=True):
                found[name] = plain[name]
        return found

    def freeze(self) -> Self:
        """Makes later assignments to this section, and to sections in it, raise `SettingsError`. Returns the section."""
        for value in self.__dict__.values():
            if isinstance(value, Section):
                value.freeze()
        self._is_frozen = True
        return self


def _unknown_key(section: type[Section], name: str, value: Any) -> str:
    named = re.fullmatch("(.+)(?:Config|Section)", section.__name__)
    where = named[1].lower() if named else "settings"
    kinds = {key: kind for key, field in section.model_fields.items() if (kind := section_of(field.annotation))}
    first, _, rest = name.partition(".")
    if first in kinds and rest:
        return f"{name}={value!r:.40}: sections are nested mappings; write {{{first!r}: {{{rest!r}: …}}}}"
    for owner, kind in kinds.items():
        if name in kind.model_fields:
            return f"unknown key {name!r} in {where}. Did you mean {owner}.{name}?"
    return f"unknown key {name!r} in {where}. {near_names(name, section.model_fields)}"


def section_of(annotation: Any) -> type[Section] | None:
    """Returns the class of a section from the type of a field; None for a setting."""
    return annotation if isinstance(annotation, type) and issubclass(annotation, Section) else None


def _explain(section: type[Section], error: ValidationError) -> str:
    lines = []
    problems = error.errors()
    or_auto = {problem["loc"][:-1] for problem in problems if problem["loc"][-1:] == (AUTO_BRANCH,)}
    for problem in problems:
        place, given = problem["loc"], problem["input"]
        if place[-1:] == (AUTO_BRANCH,):
            continue  # the error of the other branch of the union has the message
        takes_auto = place[:-1] in or_auto
        key = ".".join(str(part) for part in (place[:-1] if takes_auto else place))
        cause = problem.get("ctx", {}).get("error")
        if isinstance(cause, SettingsError):  # from a section inside this one
            lines.append(str(cause) if str(cause).startswith("unknown key") else f"{key}.{cause}")
            continue
        if problem["type"] in {"extra_forbidden", "no_such_attribute"}:
            lines.append(_unknown_key(section, key, given))
            continue
        message = problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "literal_error":
            known = [part.strip(" '") for part in problem["ctx"]["expected"].replace(" or ", ", ").split(",")]
            message = near_names(str(given), known)
        elif problem["type"] == "list_type":
            message = f"should be a list; write [{given}]"
        elif problem["type"] == "model_type" and (kind := section_of(section.model_fields[key].annotation)):
            message = f"{key} is a section; set one of its keys, for example {key}.{next(iter(kind.model_fields))}=…"
        shown = f"{key}={given!r}: " if key else ""
        lines.append(f"{shown}{message}{', or be auto' if takes_auto else ''}")
    return "; ".join(lines)


def settings_page(store: type[Section], title: str, skipped: frozenset[str] = frozenset()) -> str:
    """Returns the page of the settings as Markdown, from the docstrings of the fields: a table of keys, defaults and meanings for
    every section that is not in `skipped`."""
    lines = [f"## {title}", ""]
    for name, field in store.model_fields.items():
        if name not in skipped and (kind := section_of(field.annotation)):
            lines += [
                f"### `{name}`",
                _one_line(kind.__doc__),
                "",
                "| key | default | |",
                "| --- | --- | --- |",
                *_rows(kind),
                "",
            ]
    return "\n".join(lines)


def _rows(section: type[Section]) -> Iterator[str]:
    for key, field in section.model_fields.items():
        default = json.dumps(field.get_default(call_default_factory=True), ensure_ascii=False)
        meaning = _one_line(field.description).replace("|", "\\|") + (" ↻" if HARMLESS in field.metadata else "")
        yield f"| `{key}` | `{default}` | {meaning} |"


def _one_line(text: str | None) -> str:
    return " ".join((text or "").split())
