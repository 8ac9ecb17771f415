"""Adapter from Gymnasium environments. Needs the extra `gym`, which is imported only when used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from midthought.config import EnvironmentConfig
from midthought.config.references import optional
from midthought.env.environment import BaseEnvironment, StepResult
from midthought.env.gym_spaces import action_reader, described, listed, name_reader, observation_writer
from midthought.errors import SettingsError


class GymnasiumEnvironment(BaseEnvironment):
    """Adapter for a `gymnasium.Env`. Observations become text, the policy's text becomes an action.

    Observations of the spaces Text, Discrete, MultiDiscrete, MultiBinary, Box (at most 256 numbers, no images), and Tuple and
    Dict of them are converted by `gym_spaces`; so are actions, except of Tuple, Dict and arrays of several dimensions, and the
    prompt states their form. An action for which `text_to_action` raises ValueError or KeyError, or one outside the space, is not
    executed: the observation is the reason, the reward is 0, and it counts as a step. `done` is `terminated or truncated`;
    `info["truncated"]` says which. Besides the limits of `gym_env`, `config.max_steps` holds.

    Args:
        gym_env: a single environment. It is deep-copied for every episode; if that fails, give the trainer a factory.
        observation_to_text: converts an observation; required for other spaces, for example images.
        text_to_action: converts the policy's text to an action; required for other spaces.
        action_names: names of the actions of a Discrete space, such as `["left", "down", "right", "up"]`, in order. The last name
            in the policy's text counts.

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
        space = gym_env.action_space
        self.gym_env = gym_env
        self._observation_to_text = observation_to_text or observation_writer(gym_env.observation_space)
        self._instructions = ""
        if text_to_action is not None:
            if action_names is not None:
                raise SettingsError("text_to_action and action_names say the same thing twice; give one of them")
            self._text_to_action = text_to_action
        elif action_names is not None:
            self._text_to_action = name_reader(space, action_names)
            self._instructions = f"Answer with {listed(action_names)}."
        else:
            self._text_to_action = action_reader(space)
            is_text = isinstance(space, optional("gymnasium", "gym").spaces.Text)
            self._instructions = "" if is_text else f"Answer with {described(space)}."

    def get_prompt_prefix(self) -> str:
        """Returns the form of an action; empty with a `text_to_action` function, whose form is not known here."""
        return self._instructions

    def reset(self, seed: int | None = None) -> str:
        """Returns the first observation as text; `seed` is passed to Gymnasium."""
        observation, _ = self.gym_env.reset(seed=seed)
        return self._observation_to_text(observation)

    def step(self, action: str) -> StepResult:
        """Runs one step of the wrapped environment and adds `truncated` to its `info`."""
        try:
            gym_action = self._text_to_action(action)
        except (ValueError, KeyError) as error:
            return f"Not an action: {error}", 0.0, False, {"truncated": False}
        observation, reward, terminated, truncated, info = self.gym_env.step(gym_action)
        done = bool(terminated or truncated)
        return self._observation_to_text(observation), reward, done, {**(info or {}), "truncated": bool(truncated)}

    def close(self) -> None:
        """Closes the wrapped environment."""
        self.gym_env.close()

    def get_state_description(self) -> str:
        """Returns `gym_env.render()` if it is text, else the last observation."""
        drawn = self.gym_env.render() if self.gym_env.render_mode == "ansi" else None
        return drawn if isinstance(drawn, str) else super().get_state_description()


def _check_environment(gym_env: Any) -> None:
    gymnasium = optional("gymnasium", "gym")
    if isinstance(gym_env, gymnasium.vector.VectorEnv):
        raise SettingsError(
            f"{gym_env} contains several environments; give one, the trainer copies it for every episode"
        )
    if not isinstance(gym_env, gymnasium.Env):
        raise SettingsError(
            f"{gym_env!r} is not a gymnasium.Env; an environment of the old package gym is wrapped by "
            "gymnasium.make('GymV26Environment-v0', env=…) of the package shimmy"
        )
