"""Text for observations of Gymnasium spaces, and actions for text. Recognizes a space by its class; does not import Gymnasium."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from midthought.errors import SettingsError

MAX_NUMBERS = 256
"""Numbers of one Box, MultiDiscrete or MultiBinary space that are written as text; a larger space is an error."""
_SUPPORTED = "Text, Discrete, MultiDiscrete, MultiBinary, Box, Tuple, Dict"
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")


def observation_writer(space: Any) -> Callable[[Any], str]:
    """Returns a function from an observation to text: a string as it is, a number, or JSON; 4 significant digits.

    Raises `SettingsError` for images, for other spaces than Text, Discrete, MultiDiscrete, MultiBinary, Box, Tuple and Dict, and
    for spaces of more than `MAX_NUMBERS` numbers. The returned function raises ValueError for an observation outside the space.
    """
    _check(space, "observation_to_text")

    def write(observation: Any) -> str:
        try:
            value = _as_json(space, observation)
        except (TypeError, ValueError, KeyError, IndexError):
            raise ValueError(
                f"the environment observed {observation!r:.80}, which is not in its space {space}; correct the space, or give "
                "observation_to_text=…"
            ) from None
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

    return write


def action_reader(space: Any) -> Callable[[str], Any]:
    """Returns a function from text to an action. It raises ValueError, with the expected form, for any other text.

    Discrete: the last integer of the text. MultiDiscrete, MultiBinary and Box: the numbers of the text. Raises `SettingsError` as
    `observation_writer` does, and for Tuple, Dict and arrays of several dimensions.
    """
    _check(space, "text_to_action")
    if _kind(space) in ("Tuple", "Dict") or len(space.shape or ()) > 1:
        raise SettingsError(f"an action of {space} is more than a list of numbers; give text_to_action=…")
    expected = described(space)

    def read(text: str) -> Any:
        action = _action_in(space, text)
        if action is None or not space.contains(action):
            raise ValueError(f"answer with {expected}")
        return action

    return read


def name_reader(space: Any, names: Sequence[str]) -> Callable[[str], Any]:
    """Returns a function from text to an action of a Discrete space: the last of `names` in the text, in any case.

    Raises `SettingsError` if `space` is not Discrete or has another number of actions.
    """
    if _kind(space) != "Discrete" or len(names) != space.n:
        raise SettingsError(f"action_names has {len(names)} names; the action space is {space}, one name per action")
    pattern = re.compile("|".join(sorted(map(re.escape, names), key=len, reverse=True)), re.IGNORECASE)
    numbers = {name.lower(): int(space.start) + number for number, name in enumerate(names)}

    def read(text: str) -> Any:
        found = pattern.findall(text)
        if not found:
            raise ValueError(f"answer with {listed(names)}")
        return numbers[found[-1].lower()]

    return read


def listed(names: Sequence[str]) -> str:
    """Returns `a, b or c`."""
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def described(space: Any) -> str:
    """Returns the form of an action for the model: `an integer from 0 to 3`."""
    kind = _kind(space)
    if kind == "Text":
        return f"{space.min_length} to {space.max_length} of these characters: {space.characters}"
    if kind == "Discrete":
        return f"an integer from {space.start} to {space.start + space.n - 1}"
    num = space.shape[0] if space.shape else 1
    noun = "integer" if kind != "MultiBinary" and _is_whole(space) else "number"
    many = f"a list of {num} {noun}s" if num > 1 else f"1 {noun}"
    if kind == "MultiBinary":
        return f"{many}, each 0 or 1"
    if kind == "MultiDiscrete":
        limits = zip(space.start, space.start + space.nvec - 1, strict=True)
        return f"{many}: {', '.join(f'{low} to {high}' for low, high in limits)}"
    if num == 0:
        return "an empty list"
    low, high = np.ravel(space.low), np.ravel(space.high)
    bounds = "" if not np.isfinite([*low, *high]).all() else f", from {_short(low)} to {_short(high)}"
    return many + bounds


def _check(space: Any, parameter: str) -> None:
    kind = _kind(space)
    if kind in ("Text", "Discrete"):
        return
    if kind in ("Tuple", "Dict"):
        for part in space.spaces.values() if kind == "Dict" else space.spaces:
            _check(part, parameter)
        return
    if kind not in ("MultiDiscrete", "MultiBinary", "Box"):
        raise SettingsError(f"{space} cannot be converted to text; supported: {_SUPPORTED}; give {parameter}=…")
    if kind == "Box" and len(space.shape) >= 2 and space.dtype == np.uint8:
        raise SettingsError(f"{space} is an image; policies read text only; give {parameter}=…")
    if np.prod(space.shape) > MAX_NUMBERS:
        raise SettingsError(f"{space} has more than {MAX_NUMBERS} numbers, too many for a text; give {parameter}=…")


def _kind(space: Any) -> str:
    """Returns the name of the space's class in `gymnasium.spaces`, also for subclasses."""
    names = [each.__name__ for each in type(space).__mro__ if each.__module__.startswith("gymnasium.spaces")]
    return names[0] if names else type(space).__name__


def _as_json(space: Any, value: Any) -> Any:
    kind = _kind(space)
    if kind == "Text":
        return str(value)
    if kind == "Discrete":
        return int(value)
    if kind == "Tuple":
        return [_as_json(part, each) for part, each in zip(space.spaces, value, strict=True)]
    if kind == "Dict":
        return {str(key): _as_json(part, value[key]) for key, part in space.spaces.items()}
    array = np.asarray(value)
    return _rounded(array.tolist()) if array.dtype.kind == "f" else array.tolist()


def _rounded(value: Any) -> Any:
    return [_rounded(part) for part in value] if isinstance(value, list) else float(f"{value:.4g}")


def _action_in(space: Any, text: str) -> Any:
    """Returns what the text contains for this space; None for nothing."""
    if _kind(space) == "Text":
        return text if space.contains(text) else text.strip()
    is_discrete = _kind(space) == "Discrete"
    numbers = np.array([float(each) for each in _NUMBER.findall(_THOUSANDS.sub("", text) if is_discrete else text)])
    if is_discrete or space.shape == ():
        if not numbers.size:
            return None
        numbers = numbers[-1]
    if not np.isfinite(numbers).all():
        return None
    if _is_whole(space) and (np.round(numbers).clip(-(2**53), 2**53) != numbers).any():
        return None
    return space.dtype.type(numbers) if is_discrete else numbers.astype(space.dtype)


def _is_whole(space: Any) -> bool:
    """Whether the numbers of a space are integers."""
    return np.dtype(space.dtype).kind in "iub"


def _short(bounds: np.ndarray) -> str:
    return f"{bounds[0]:.4g}" if (bounds == bounds[0]).all() else f"[{', '.join(f'{each:.4g}' for each in bounds)}]"
