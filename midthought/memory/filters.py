"""Which chunks a search may find: those of some episodes and speakers. Knows no table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from midthought.errors import SettingsError


@dataclass(frozen=True, slots=True)
class Filters:
    """A chunk passes if its episode and its speaker are among those named, letter by letter; nothing named lets all pass."""

    episodes: tuple[str, ...] = ()
    speakers: tuple[str, ...] = ()

    @classmethod
    def of(cls, episodes: Sequence[str], speakers: Sequence[str]) -> Filters:
        """Raises SettingsError where a name stands without its list: its letters would be taken for names."""
        for name, given in (("episodes", episodes), ("speakers", speakers)):
            if isinstance(given, str):
                raise SettingsError(f"{name}={given!r} is a text; give a list of names, such as [{given!r}]")
        return cls(tuple(dict.fromkeys(episodes)), tuple(dict.fromkeys(speakers)))

    def to_sql(self) -> str | None:
        """The condition as LanceDB takes it, None where all pass."""
        named = (("episode", self.episodes), ("speaker", self.speakers))
        return " AND ".join(is_among(column, values) for column, values in named if values) or None


def is_among(column: str, values: Sequence[str]) -> str:
    """`column IN ('…', …)`. Nothing in a value has power: in SQL's texts only a quote has, and it is doubled."""
    storable = [value for value in values if _is_storable(value)]
    return f"{column} IN ({', '.join(map(quoted, storable))})" if storable else "false"


def quoted(value: str) -> str:
    """A text as SQL writes it."""
    return "'" + value.replace("'", "''") + "'"


def _is_storable(value: str) -> bool:
    """False where it holds half a surrogate pair: no column does, and the query could not be sent."""
    return not any("\ud800" <= letter <= "\udfff" for letter in value)
