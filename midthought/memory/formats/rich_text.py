"""RTF: its paragraphs as lines of text. The control words are scanned once; what is no text (fonts, pictures) is left out."""

from __future__ import annotations

import re

from midthought.memory.formats.plain_text import read_plain_text
from midthought.memory.formats.reading import Reading
from midthought.memory.formats.registry import transcript_format

_TOKEN = re.compile(
    r"\\(?P<word>[A-Za-z]{1,32})(?P<number>-?\d{1,10})?[ ]?|\\'(?P<byte>[0-9a-fA-F]{2})|\\(?P<sign>.)|(?P<brace>[{}])|"
    r"(?P<text>[^\\{}\r\n]+)|[\r\n]+",
    re.DOTALL,
)
_NO_TEXT = re.compile(
    r"fonttbl|colortbl|stylesheet|info|pict|object|header\w?|footer\w?|footnote|annotation|list(?:override)?table|generator"
)
"""Groups that are no text of the document."""
_WRITTEN = {"par": "\n", "line": "\n", "row": "\n", "cell": "\t", "tab": "\t", "emdash": "—", "endash": "–"} | {
    "lquote": "‘", "rquote": "’", "ldblquote": "“", "rdblquote": "”", "bullet": "•",
}  # fmt: skip
_SIGNS = {"~": " ", "_": "-", "\n": "\n", "\r": "\n"}


@transcript_format(
    "RTF",
    suffixes=(".rtf",),
    remedy="save it as .txt or .docx",
    shown_by=lambda text, suffix: text.startswith("{\\rtf"),
)
def read_rich_text(text: str) -> Reading:
    """Reads the paragraphs as plain text."""
    return read_plain_text(_plain(text))


def _plain(text: str) -> str:
    words: list[str] = []
    outer: list[tuple[bool, int]] = []
    is_text, num_fallback, to_skip = True, 1, 0  # after `\\u8217` follow letters for programs without Unicode
    for token in _TOKEN.finditer(text):
        word, said = token["word"], ""
        if token["brace"] == "{":
            outer.append((is_text, num_fallback))
        elif token["brace"] == "}":
            is_text, num_fallback = outer.pop() if outer else (True, 1)
        elif (word and _NO_TEXT.fullmatch(word)) or token["sign"] == "*":
            is_text = False
        elif word == "uc":
            num_fallback = int(token["number"] or 1)
        elif word == "u" and token["number"] and is_text:
            words.append(chr(int(token["number"]) % 0x10000))
            to_skip = num_fallback
        elif word:
            said = _WRITTEN.get(word, "")
        elif token["byte"]:
            said = bytes.fromhex(token["byte"]).decode("cp1252", "replace")
        elif token["sign"]:
            said = _SIGNS.get(token["sign"], token["sign"] if token["sign"] in "\\{}" else "")
        else:
            said = token["text"] or ""
        if said and is_text:
            words.append(said[to_skip:])
            to_skip = max(0, to_skip - len(said))
    return "".join(words).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
