"""Episodes and speakers that a search is restricted to: unknown ones are named with similar ones. Reads all names of a memory."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Collection, Iterable, Sequence

from midthought.errors import SettingsError
from midthought.memory.remote import RemoteMemory
from midthought.memory.store import MemoryStore

_NUM_SHOWN = 3


def require_known(store: MemoryStore | RemoteMemory, episodes: Sequence[str], speakers: Sequence[str]) -> None:
    """Raises SettingsError, with similar names, if a title or speaker is in no chunk: filters compare names exactly."""
    if not episodes and not speakers:
        return
    titles, voices = store.names()
    for wrong in (each for each in episodes if each not in titles):
        meant = _titles_of(store, wrong) or _near(wrong, titles)
        raise SettingsError(f"no episode has the title {wrong!r}. {_suggestion(meant, titles, 'titles')}")
    for wrong in (each for each in speakers if each not in voices):
        raise SettingsError(f"no speaker has the name {wrong!r}. {_suggestion(_near(wrong, voices), voices, 'names')}")


def _titles_of(store: MemoryStore | RemoteMemory, stem: str) -> list[str]:
    """Returns the title of the transcript of this name, if there is one."""
    with contextlib.suppress(ValueError):  # a service refuses some texts as ids
        return [chunk.episode for chunk in store.get([f"{stem}_0"]).values()]
    return []


def _near(wrong: str, known: Iterable[str]) -> list[str]:
    """Returns known names that contain this one, or one of whose words it is similar to; the most similar first."""
    plain = wrong.casefold()

    def likeness(name: str) -> float:
        name = name.casefold()
        parts = [name, *name.split()]
        return 1 if plain in name else max(difflib.SequenceMatcher(None, plain, part).ratio() for part in parts)

    ordered = sorted(((likeness(name), name) for name in known), key=lambda pair: (-pair[0], pair[1]))
    return [name for alike, name in ordered if alike >= 0.6][:_NUM_SHOWN]


def _suggestion(meant: Sequence[str], known: Collection[str], what: str) -> str:
    if meant:
        return f"Did you mean {' or '.join(map(repr, meant))}?"
    shown = ", ".join(map(repr, sorted(known)[:_NUM_SHOWN])) or "none"
    return f"The memory has {len(known):,} {what}: {shown}{', …' if len(known) > _NUM_SHOWN else ''}"
