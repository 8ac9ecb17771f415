"""The servers of the critic that gives feedback: the checks of `midthought feedback check`."""

from __future__ import annotations

from collections.abc import Iterator

from midthought.doctor.registry import check
from midthought.doctor.setup import Setup
from midthought.feedback.check import Found, check_feedback
from midthought.feedback.critics.settings import FeedbackSettings
from midthought.guards.finding import Finding


@check("feedback_servers")
def feedback_servers(setup: Setup) -> Iterator[Finding]:
    """The servers of the feedback critic respond, serve its model, and give feedback."""
    settings = getattr(setup.config, "feedback", None)
    if not isinstance(settings, FeedbackSettings):
        return
    for found in check_feedback(settings):
        if found.found is Found.BAD:
            yield Finding(
                subject=found.server, observation=f"{found.what}: {found.words}", action=found.remedy, policy="stop"
            )
