"""Arguments under the names of other packages: a decorator that translates them to ours, in one place."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
Result = TypeVar("Result")


def also_named(
    removed: Mapping[str, str] | None = None, /, **names: str | tuple[str, ...]
) -> Callable[[Callable[P, Result]], Callable[P, Result]]:
    """Returns a decorator: the function takes the keyword argument `theirs` as `ours`, for every `theirs=ours`.

    `ours` may be several names, which all get the value unless they are given themselves. A `theirs` of None counts as not
    given. `removed` maps names without a counterpart to the remedy. Raises TypeError for such a name, and if an argument is
    given under two names.

    >>> @also_named({"verbose": "use logging"}, colour="color")
    ... def paint(color: str = "white") -> str:
    ...     return color
    >>> paint(colour="red")
    'red'
    >>> paint(verbose=True)
    Traceback (most recent call last):
    TypeError: paint takes no verbose; use logging
    """
    ours = {name: (target,) if isinstance(target, str) else target for name, target in names.items()}

    def decorate(function: Callable[P, Result]) -> Callable[P, Result]:
        @functools.wraps(function)
        def translated(*args: P.args, **kwargs: P.kwargs) -> Result:
            if not kwargs.keys().isdisjoint(accepted):
                kwargs = _translated(function.__qualname__, kwargs, ours, removed or {})  # type: ignore[assignment]
            return function(*args, **kwargs)

        accepted = {*ours, *(removed or {})}
        return translated

    return decorate


def _translated(
    function: str, given: Mapping[str, Any], ours: Mapping[str, tuple[str, ...]], removed: Mapping[str, str]
) -> dict[str, Any]:
    kept = {name: value for name, value in given.items() if name not in ours}
    several: dict[str, Any] = {}
    for name in given:
        if name in removed:
            raise TypeError(f"{function} takes no {name}; {removed[name]}")
        targets = ours.get(name, ())
        if given[name] is None or not targets:
            continue
        if len(targets) > 1:
            several |= dict.fromkeys(targets, given[name])
        elif targets[0] in kept:
            raise TypeError(
                f"{function}: {name} is another name of {targets[0]}, and both were given; give one of them"
            )
        else:
            kept[targets[0]] = given[name]
    return {**several, **kept}
