"""`midthought feedback check CONFIG`: do the servers give the feedback that the settings ask for? Every failure with its remedy.

The findings are records; `run_check` prints them. What is asked of one server stands in check_server.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from midthought.feedback.check_server import Finding, Found, check_server
from midthought.feedback.critics.registry import make_critic
from midthought.feedback.critics.settings import FeedbackSettings, read_feedback_settings

_MARKS = {Found.GOOD: "ok     ", Found.BAD: "FAILED ", Found.UNKNOWN: "unsure "}


def check_feedback(settings: FeedbackSettings) -> list[Finding]:
    """What is found at every server, one after the other; empty where the critic asks none. Blocks for some seconds.

    Raises SettingsError where the settings themselves do not work, MissingExtraError where httpx is not installed.
    """
    make_critic(settings)
    if settings.critic != "model":
        return []
    return [finding for url in settings.servers for finding in check_server(url, settings)]


def run_check(path: str | Path, tell: Callable[[str], None] = print) -> int:
    """Check the settings in a YAML file and tell what was found, a line each. The exit status: 0, or 1 where something failed.

    Raises SettingsError where the file cannot be read or its settings do not work.
    """
    settings = read_feedback_settings(path)
    findings = check_feedback(settings)
    if not findings:
        tell(f"The critic {settings.critic!r} asks no server; there is nothing to check.")
        return 0
    server = None
    for finding in findings:
        if finding.server != server:
            server = finding.server
            tell(server)
        tell(f"  {_MARKS[finding.found]}{finding.what} ({finding.seconds:.1f} s): {finding.words}")
        if finding.remedy:
            tell(f"         {finding.remedy}")
    num_bad = sum(finding.found is Found.BAD for finding in findings)
    tell(f"{len(findings)} checks, {num_bad or 'none'} failed.")
    return 1 if num_bad else 0
