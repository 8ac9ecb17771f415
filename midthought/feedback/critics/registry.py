"""Critics by name."""

from __future__ import annotations

from collections.abc import Callable

from midthought.errors import SettingsError, near_names
from midthought.feedback.critics.baselines import Outcome, RetryOnly, Wrong
from midthought.feedback.critics.critic import Critic
from midthought.feedback.critics.hints import Hints
from midthought.feedback.critics.model import ModelCritic
from midthought.feedback.critics.settings import FeedbackSettings

_CRITICS: dict[str, Callable[[FeedbackSettings], Critic]] = {
    "outcome": lambda settings: Outcome(),
    "model": ModelCritic,
    "hints": lambda settings: Hints(),
    "wrong": lambda settings: Wrong(),
    "none": lambda settings: RetryOnly(),
}


def register_critic(name: str, make: Callable[[FeedbackSettings], Critic]) -> None:
    """Registers a critic under a name for `FeedbackSettings.critic`. Raises SettingsError if the name is taken."""
    if not name or name in _CRITICS:
        raise SettingsError(f"a critic cannot be registered as {name!r}: the name is {'taken' if name else 'empty'}")
    _CRITICS[name] = make


def make_critic(settings: FeedbackSettings) -> Critic:
    """The critic that `settings.critic` names. Raises SettingsError for an unknown name (with similar names), and if the
    critic's own settings do not work."""
    if settings.critic not in _CRITICS:
        raise SettingsError(f"critic={settings.critic!r} is unknown. {near_names(settings.critic, _CRITICS)}")
    return _CRITICS[settings.critic](settings)
