"""Adapter from Gymnasium environments. Needs the extra `gym`, which is imported only when used."""

from __future__ import annotations

import contextlib
import functools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from midthought.config import EnvironmentConfig
from midthought.config.references import optional
from midthought.data.final_answers import last_number
from midthought.env.environment import BaseEnvironment, StepResult
from midthought.errors import SettingsError

MAX_NUMBERS = 256
"""Numbers of one Box space that are written as text; a larger space is an error."""


class GymnasiumEnvironment(BaseEnvironment):
    """Adapter for a `gymnasium.Env`. Observations become text, the policy's text becomes an action.

    An observation is its text, or JSON with 4 significant digits. An action of a Text space is the text, of a Discrete space the
    last integer of the text; the prompt states the form. An action for which `text_to_action` raises ValueError, KeyError or
    IndexError, or one outside the space, is not executed: the observation is the reason, the reward is 0, and it counts as a
    step. Actions of Dict and Tuple spaces are not checked. `done` is `terminated or truncated`; `info["truncated"]` is true if
    only a limit ended the episode. Besides the limits of `gym_env`, `config.max_steps` holds.

    Args:
        gym_env: a single environment. It is deep-copied for every episode; if that fails, give the trainer a factory.
        observation_to_text: converts an observation; required for images and for more than `MAX_NUMBERS` numbers.
        text_to_action: converts the policy's text to an action; required for other spaces.
        action_names: different names of the actions of a Discrete space, such as `["left", "down", "right", "up"]`, in order. The
            last name in the policy's text counts, as a whole word; case does not matter.

    Raises `SettingsError` for a space that needs a function, an environment of another package or of many copies
    (`gymnasium.vector`), and names that do not fit; `MissingExtraError` without Gymnasium.
    """

    def __init__(
        self,
        gym_env: Any,
        *,
        observation_to_text: Callable[[Any], str] | None = None,
        text_to_action: Callable[[str], Any] | None = None,
        action_names: Sequence[str] | None = None,
        config: EnvironmentConfig | None = None,
    ) -> None:
        super().__init__(config)
        _check_environment(gym_env)
        self.gym_env = gym_env
        if observation_to_text is None:
            _check_size(gym_env.observation_space)
        self._observation_to_text = observation_to_text or as_text
        if text_to_action is not None and action_names is not None:
            raise SettingsError("text_to_action and action_names say the same thing twice; give one of them")
        form, self._is_told = f"an action of {gym_env.action_space}", text_to_action is None
        if text_to_action is None:
            form, text_to_action = _action_reader(gym_env.action_space, action_names)
        self._form, self._text_to_action = form, text_to_action

    def get_prompt_prefix(self) -> str:
        """Returns the form of an action; empty for a Text space, and with a `text_to_action` function, whose form is not known
        here."""
        is_text = isinstance(self.gym_env.action_space, optional("gymnasium", "gym").spaces.Text)
        return f"Answer with {self._form}." if self._is_told and not is_text else ""

    def reset(self, seed: int | None = None) -> str:
        """Returns the first observation as text; `seed` is passed to Gymnasium."""
        observation, _ = self.gym_env.reset(seed=seed)
        return self._observation_to_text(observation)

    def step(self, action: str) -> StepResult:
        """Runs one step of the wrapped environment and adds `truncated` to its `info`."""
        try:
            gym_action = _contained(self.gym_env.action_space, self._text_to_action(action), self._form)
        except (ValueError, LookupError) as error:
            return f"Not an action: {error}", 0.0, False, {"truncated": False}
        observation, reward, terminated, truncated, info = self.gym_env.step(gym_action)
        done, is_cut = bool(terminated or truncated), bool(truncated and not terminated)
        return self._observation_to_text(observation), reward, done, {**(info or {}), "truncated": is_cut}

    def close(self) -> None:
        """Closes the wrapped environment."""
        self.gym_env.close()

    def get_state_description(self) -> str:
        """Returns `gym_env.render()` if it is text, else the last observation."""
        drawn = self.gym_env.render() if self.gym_env.render_mode == "ansi" else None
        return drawn if isinstance(drawn, str) else super().get_state_description()


def as_text(observation: Any) -> str:
    """Returns a text as it is, anything else as JSON. Raises `SettingsError` for what JSON does not have."""
    try:
        return observation if isinstance(observation, str) else json.dumps(_plain(observation), ensure_ascii=False)
    except TypeError:
        problem = f"the environment observed {observation!r:.80}, which cannot be converted to text"
        raise SettingsError(f"{problem}; give observation_to_text=…") from None


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def _check_size(space: Any) -> None:
    """Raises `SettingsError` for images and for too many numbers, also in a part of the space."""
    parts = getattr(space, "spaces", ())
    for part in parts.values() if isinstance(parts, Mapping) else parts:
        _check_size(part)
    shape = () if parts else space.shape or ()
    if len(shape) >= 2 and space.dtype == np.uint8:
        raise SettingsError(f"{space} is an image; policies read text only; give observation_to_text=…")
    if np.prod(shape) > MAX_NUMBERS:
        remedy = "give observation_to_text=…"
        raise SettingsError(f"{space} has more than {MAX_NUMBERS} numbers, too many for a text; {remedy}")


def _action_reader(space: Any, names: Sequence[str] | None) -> tuple[str, Callable[[str], Any]]:
    """Returns the form of an action for the prompt, and a function from text to an action: None if the text has none."""
    spaces = optional("gymnasium", "gym").spaces
    is_discrete = isinstance(space, spaces.Discrete)
    if names is not None:
        if not is_discrete or not len(names) == len({name.lower() for name in names}) == space.n:
            wanted = f"the action space is {space}, one name per action, all different"
            raise SettingsError(f"action_names has {len(names)} names; {wanted}")
        form = " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))
        return form, functools.partial(_named_action, space, names)
    if isinstance(space, spaces.Text):
        expected = f"{space.min_length} to {space.max_length} of these characters: {space.characters}"
        return expected, lambda text: text if space.contains(text) else text.strip()
    if not is_discrete:
        raise SettingsError(f"an action of {space} has no form as text here; give text_to_action=…")
    return f"an integer from {space.start} to {space.start + space.n - 1}", _last_integer


def _contained(space: Any, action: Any, form: str) -> Any:
    """Returns the action, of a Box with its dtype. Raises ValueError if it is outside the space."""
    if getattr(space, "spaces", None):  # parts may have other dtypes
        return action
    if space.shape and space.dtype.kind == "f":
        with contextlib.suppress(TypeError):  # no numbers: it is outside
            action = np.asarray(action, dtype=space.dtype)
    if action is None or not space.contains(action):
        raise ValueError(f"answer with {form}")
    return action


def _named_action(space: Any, names: Sequence[str], text: str) -> int | None:
    pattern = "|".join(sorted(map(re.escape, names), key=len, reverse=True))
    found = re.findall(rf"(?<!\w)(?:{pattern})(?!\w)", text, re.IGNORECASE)
    return int(space.start) + [name.lower() for name in names].index(found[-1].lower()) if found else None


def _last_integer(text: str) -> int | None:
    number = last_number(text)
    return int(number) if number is not None and number.denominator == 1 else None


def _check_environment(gym_env: Any) -> None:
    gymnasium = optional("gymnasium", "gym")
    if isinstance(gym_env, gymnasium.vector.VectorEnv):
        remedy = "give one, the trainer copies it for every episode"
        raise SettingsError(f"{gym_env} contains several environments; {remedy}")
    if not isinstance(gym_env, gymnasium.Env):
        raise SettingsError(
            f"{gym_env!r} is not a gymnasium.Env; an environment of the old package gym is wrapped by "
            "gymnasium.make('GymV26Environment-v0', env=…) of the package shimmy"
        )
