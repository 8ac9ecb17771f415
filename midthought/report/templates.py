"""Jinja2 templates of the report. Autoescape is on: texts of a run enter the page escaped."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment


def render_page(**values: Any) -> str:
    """Renders `report.html`."""
    return _environment().get_template("report.html").render(**values)


def macro(name: str) -> Callable[..., str]:
    """Returns a macro of `macros.html`; it returns `Markup`."""
    return getattr(_environment().get_template("macros.html").module, name)


@functools.cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("midthought.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    return environment
