"""Adapters from and to Gymnasium environments. Needs the extra `gym`, which is imported only when used."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ClassVar

from midthought.config import EnvironmentConfig
from midthought.env.environment import BaseEnvironment, StepResult
from midthought.env.episode import call_blocking, takes_seed
from midthought.errors import MissingExtraError, SettingsError


class GymnasiumEnvironment(BaseEnvironment):
    """Adapter for a `gymnasium.Env` whose observations and actions are text or are converted to and from text.

    An action for which `text_to_action` raises ValueError or KeyError (or, without it, one outside the Text space) is not
    executed: the observation is the reason, the reward is 0, and it counts as a step. `done` is `terminated or truncated`;
    `info["truncated"]` distinguishes them. `config.max_steps` applies in addition to the limits of `gym_env`.

    Args:
        gym_env: created or deep-copied for every episode, like every environment.
        observation_to_text: converts an observation; required unless the observation space is Text.
        text_to_action: converts to an action; required unless the action space is Text.

    Raises `SettingsError` if a required function is missing, and `MissingExtraError`.
    """

    def __init__(
        self,
        gym_env: Any,
        *,
        observation_to_text: Callable[[Any], str] | None = None,
        text_to_action: Callable[[str], Any] | None = None,
        config: EnvironmentConfig | None = None,
    ) -> None:
        super().__init__(config)
        text_space = _gymnasium().spaces.Text
        for space, function, parameter in (
            (gym_env.observation_space, observation_to_text, "observation_to_text"),
            (gym_env.action_space, text_to_action, "text_to_action"),
        ):
            if function is None and not isinstance(space, text_space):
                raise SettingsError(f"{gym_env} speaks {space}, not text; give {parameter}=…")
        self.gym_env = gym_env
        self._observation_to_text = observation_to_text or str
        self._text_to_action = text_to_action or functools.partial(_inside_space, gym_env.action_space)

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
        return self._observation_to_text(observation), reward, done, {**info, "truncated": bool(truncated)}

    def get_state_description(self) -> str:
        """Returns `gym_env.render()` if it is text, else the last observation."""
        drawn = self.gym_env.render() if self.gym_env.render_mode == "ansi" else None
        return drawn if isinstance(drawn, str) else super().get_state_description()


def as_gymnasium(environment: BaseEnvironment) -> Any:
    """Returns a `gymnasium.Env` for `environment`; both spaces are Text and contain every str.

    An end with `info["truncated"]` is `truncated`, any other `terminated`. `reset(seed=…)` is passed to environments that take a
    seed; later resets without one continue its random sequence. `async def` environments are awaited. Raises
    `MissingExtraError`.
    """
    gymnasium = _gymnasium()

    class AnyText(gymnasium.spaces.Text):  # type: ignore[misc, name-defined, unused-ignore]
        """Contains every str; samples are short texts of letters and spaces."""

        def __init__(self) -> None:
            super().__init__(max_length=32, min_length=0, charset="abcdefghijklmnopqrstuvwxyz ")

        def contains(self, x: Any) -> bool:
            return isinstance(x, str)

    class AsGymnasium(gymnasium.Env):  # type: ignore[misc, name-defined, unused-ignore]
        metadata: ClassVar = {"render_modes": ["ansi"], "render_fps": 1}
        render_mode = "ansi"

        def __init__(self) -> None:
            self.environment = environment
            self.observation_space, self.action_space = AnyText(), AnyText()

        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict]:
            super().reset(seed=seed)
            own_seed = int(self.np_random.integers(2**31)) if seed is None else seed
            seeded = {"seed": own_seed} if takes_seed(environment) else {}
            return self._call(functools.partial(environment.reset, **seeded)), {}

        def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
            observation, reward, done, info = self._call(functools.partial(environment.step, action))
            truncated = done and bool(info.get("truncated"))
            return observation, reward, done and not truncated, truncated, info

        def render(self) -> str:
            return environment.get_state_description()

        def _call(self, function: Callable[[], Any]) -> Any:
            return call_blocking(function, environment.config.step_timeout_seconds, type(environment).__name__)

    return AsGymnasium()


def _inside_space(space: Any, text: str) -> str:
    if not space.contains(text):
        raise ValueError(f"{space.min_length} to {space.max_length} of these characters: {space.characters}")
    return text


def _gymnasium() -> Any:
    try:
        import gymnasium
    except ImportError:
        raise MissingExtraError("gymnasium", "gym") from None
    return gymnasium
