"""A line in the output of a notebook's cell that each new text replaces. Needs only what a Jupyter kernel has installed."""

from __future__ import annotations

from typing import IO, Protocol


class ShowText(Protocol):
    def __call__(self, text: str, *, style: str = "") -> None: ...


def notebook_line(stream: IO[str]) -> ShowText | None:
    """Returns a function that shows a text in place of its last one; None if the stream is not the output of a Jupyter kernel.

    A saved notebook has the last text. Styles are ignored.
    """
    if not type(stream).__module__.startswith("ipykernel."):
        return None
    from IPython.display import DisplayHandle

    handle, is_shown = DisplayHandle(), False

    def show(text: str, *, style: str = "") -> None:
        nonlocal is_shown
        display = handle.update if is_shown else handle.display
        display({"text/plain": text}, raw=True)
        is_shown = True

    return show
