"""Jinja2 templates of the report. Autoescape is on: texts of a run enter the page escaped."""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Callable, Sequence
from importlib import resources
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment


def render_page(template: str, scripts: Sequence[str], **values: Any) -> str:
    """Renders a page, for example `report.html`, with the style of all pages and these scripts one after the other."""
    script = "".join(_asset(name) for name in scripts)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assets = {"style": _asset("report.css"), "script": script, "script_hash": digest}
    return _environment().get_template(template).render(**assets, **values)


def macro(name: str) -> Callable[..., str]:
    """Returns a macro of `macros.html`; it returns `Markup`."""
    return getattr(_environment().get_template("macros.html").module, name)


def _asset(name: str) -> str:
    return resources.files("midthought.report").joinpath(name).read_text(encoding="utf-8")


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
