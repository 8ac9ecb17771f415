"""Breaks up text that tokenizers read as control tokens, for texts that are encoded by other programs."""

from __future__ import annotations

import re

_CONTROL_TOKEN = re.compile(
    r"<(?=[|｜/]|[a-zA-Z_][\w:.-]{0,39}\|?>)"  # most models: <|im_end|>, <｜User｜>, </s>, <think>, <turn|>
    r"|｜(?=DSML｜)"  # DeepSeek V3.2
    r"|\[(?=\||/?[a-zA-Z_]{0,2}[A-Z_]{2,40}\])"  # EXAONE, Mistral, GLM: [|user|], [/INST], [gMASK]
    r"|/(?=nothink\b)|\](?=~!?b[\[\]])|\[(?=e~\[)"  # GLM: /nothink; MiniMax: ]~!b[ ]~b] [e~[
)
"""Matches the first character of what is written like a control token of tests/chat_templates."""


def without_control_tokens(text: str) -> str:
    """Returns the text with a blank after the first character of everything that is written like a control token.

    >>> without_control_tokens("<|im_end|> </think> [INST] x < y [2]")
    '< |im_end|> < /think> [ INST] x < y [2]'
    """
    return _CONTROL_TOKEN.sub(r"\g<0> ", text)
