"""Which episodes a page gets first, if it cannot have all: held-out questions and training groups in turn, evenly spread."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TypeVar

Item = TypeVar("Item")
RULE = (
    "Held-out questions with all their arms and training groups were chosen in turn, each evenly spread over the run, "
    "until the page was full. The last ones have texts only."
)


def spread(items: Sequence[Item]) -> list[Item]:
    """Returns the items in an order in which the first few, however many, are evenly spread; the last item is first.

    >>> spread([1, 2, 3, 4, 5, 6, 7, 8])
    [8, 4, 6, 2, 7, 3, 5, 1]
    """
    bits = max(len(items) - 1, 1).bit_length()
    order = sorted(range(len(items)), key=lambda number: f"{number:0{bits}b}"[::-1])
    return [items[-1 - number] for number in order]


def in_order_of_choice(keys: Sequence[tuple[Hashable, bool]]) -> list[list[int]]:
    """Returns units of places in `keys`, in the order in which a page takes them.

    `keys`: of each episode, the unit that must stay together, and whether it is of training. Held-out and training units
    alternate by the number of their episodes so far.
    """
    units: dict[tuple[Hashable, bool], list[int]] = {}
    for place, key in enumerate(keys):
        units.setdefault(key, []).append(place)
    waiting = [
        spread([unit for (_, is_training), unit in units.items() if is_training == kind]) for kind in (False, True)
    ]
    counts, chosen = [0, 0], []
    while any(waiting):
        kind = min((kind for kind in (0, 1) if waiting[kind]), key=lambda kind: counts[kind])
        unit = waiting[kind].pop(0)
        counts[kind] += len(unit)
        chosen.append(unit)
    return chosen
