"""How a reward function wants to be called, read from its signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from midthought.errors import RewardError

_WANTED = "write it as f(trajectory) or f(trajectory, environment)"


def takes_environment(function: Callable[..., Any], name: str = "reward_fn") -> bool:
    """Whether a reward function wants the environment after the trajectory.

    It does where its second positional parameter has no default, or is named `environment` or `env`. RewardError naming
    `name` where the function can be called in neither way.
    """
    if not callable(function):
        raise RewardError(f"reward function {name!r} is {function!r:.80} and cannot be called; {_WANTED}")
    try:
        signature = inspect.signature(function)
    except ValueError:  # written in C
        raise RewardError(f"reward function {name!r}: {function!r} has no signature; {_WANTED}") from None
    places = [each for each in signature.parameters.values() if each.kind in _POSITIONAL]
    second = places[1] if len(places) > 1 else None
    wants = second is not None and (second.default is second.empty or second.name in ("environment", "env"))
    try:
        signature.bind(*[None] * (1 + wants))
    except TypeError:
        raise RewardError(f"reward function {name!r} takes {signature}; {_WANTED}") from None
    return wants


_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
