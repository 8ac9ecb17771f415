"""Finds the calls in the tokens that an episode samples, while they are sampled."""

from __future__ import annotations

from midthought.tokenization import Renderer
from midthought.tools.call_formats import ToolCallFormat
from midthought.types import ParsedAction


class TokenWatch:
    """Stopper of one episode: decodes its sampled tokens, one by one, for the call format's scanner."""

    def __init__(self, renderer: Renderer, call_format: ToolCallFormat, *, in_thought: bool) -> None:
        self._renderer = renderer
        self._scanner = call_format.scanner(in_thought=in_thought)
        self._stream = renderer.decode_stream()

    def feed(self, token_id: int) -> bool:
        """Processes the next sampled token. Returns True if a call ended inside it."""
        piece = self._stream.step(token_id)
        return bool(piece) and self._scanner.feed(piece)

    def take(self) -> list[ParsedAction]:
        """Returns the calls that ended since the last `take`."""
        return self._scanner.take()

    def resume(self) -> None:
        """Call it after other text was inserted into the context. Discards an unfinished call or character before that text."""
        self._scanner.resume()
        self._stream = self._renderer.decode_stream()
