"""Call formats that write calls as JSON objects between two tags. Does not depend on the tags or the object's keys."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from midthought.tools.call_formats.call_object import CallObject
from midthought.tools.call_formats.streaming import ChatCallFormat
from midthought.types import ParsedAction


class TaggedCallFormat(ChatCallFormat):
    """A subclass sets the tags, the keys of the object, and what separates tag and object when a call is written.

    - A block extends from the opening tag to the next closing tag, even if a tag is inside a string. A block that is never
      closed is no call.
    - An opening tag inside a block starts a new block. The text before it counts if every call in it can be read (the
      closing tag was forgotten); otherwise it is discarded.
    - Nothing inside a thought is a call. A think tag inside a block discards the block.
    """

    tags: tuple[str, str]
    call_object: CallObject
    separator = ""

    def render_call(self, tool_name: str, parameters: Mapping[str, Any]) -> str:
        """Returns a call as the policy should write it. Tags of calls and thoughts inside an argument are escaped."""
        written = self.call_object.write(tool_name, parameters, (*self.tags, *self.think_tags))
        return self.separator.join((self.tags[0], written, self.tags[1]))

    def calls_in(self, text: str) -> list[ParsedAction]:
        """Returns the calls of the blocks."""
        opening, closing = self.tags
        found: list[ParsedAction] = []
        start = None
        for tag in re.finditer(f"{re.escape(opening)}|{re.escape(closing)}", text):
            if start is not None:
                block, end = text[start : tag.start()], closing if tag[0] == closing else ""
                calls = self.call_object.read_block(block, f"{opening}{block}{end}")
                found += calls if end or all(call.success for call in calls) else []
            start = tag.end() if tag[0] == opening else None
        return found
