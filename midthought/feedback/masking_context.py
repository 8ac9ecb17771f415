"""What stands around a number or a word decides whether it tells the answer: `the answer is 3` does, `step 3` does not.

Every look is at a bounded stretch, so all of them together are linear in the text. Knows no answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from midthought.feedback.masking_tokens import Kind, Token

_LOOK_BACK = 120
_LOOK_AHEAD = 60
_MAX_NEIGHBOUR_TOKENS = 5

_MARKS = r"(?:[\s$*_`\"'(\[{}]|\\[(\[!,;: ]|\\(?:left|text|textbf|mathbf|mathrm|mbox|boxed|fbox)\b|\\\$|[$€£¥])"
_BETWEEN = (
    r"(?:[\s,:>$*_`\"'({}\[-]|\\[(\[!,;: ]|\\(?:left|text|textbf|mathbf|mathrm|mbox|boxed|fbox|quad)\b|"
    r"\b(?:is|was|are|were|be|been|being|should|must|will|would|could|might|have|has|had|to|in|fact|actually|simply|just|exactly|only|really|clearly|"
    r"therefore|thus|then|so|hence|indeed|of|for|the|this|that|these|it|problem|question|correct|right|true|final|"
    r"actual|real|expected|desired|intended|you|we|need|want|get|gets|comes|come|out|as|equals?|equal|given|by|namely|i\.e\.|"
    r"about|approximately|roughly|number|value|a|total)\b)"
)
_TOLD_BEFORE = re.compile(
    rf"""(?:
      (?<![\w])(?:answers?|results?|solutions?|outcome|total|sum|product|quotient|final\s+value|correct\s+value|right\s+value)\b
        {_BETWEEN}{{0,14}}+
    | (?:(?<![<>!=])=|≈|:=|\\approx|\\equiv|\\boxed\s*\{{|\\Rightarrow|\\implies|→|⇒|->|=>){_MARKS}{{0,8}}+
    | \b(?:equals?(?:\s+to)?|gives?|giving|gave|yields?|yielding|leaves?|leaving|obtain(?:s|ing|ed)?|gets?|getting|got|makes?|
        making|becomes?|evaluates\s+to|simplifies\s+to|reduces\s+to|comes\s+to|amounts\s+to|adds\s+up\s+to|comes\s+out\s+(?:to|as)|
        totals?|totalling|(?:should|must)\s+(?:be|have\s+been)|it\s+is|it's|that\s+is|that's|there\s+(?:is|are)|end\s+up\s+with|
        instead\s+of|rather\s+than|conclude|answer|say)
        (?:{_MARKS}|\b(?:us|you|you'd|a|total|of|the|exactly|only|just|indeed|simply|actually|number|value)\b){{0,8}}+
    )\Z""",
    re.IGNORECASE | re.VERBOSE,
)
_STRONGLY_BEFORE = re.compile(
    rf"""(?:
      (?<![\w])(?:answers?|final\s+(?:result|value)|(?:correct|right|true)\s+(?:result|value|solution|number|total|sum|product))\b
        {_BETWEEN}{{0,14}}+
    | (?:\\boxed\s*\{{){_MARKS}{{0,8}}+
    )\Z""",
    re.IGNORECASE | re.VERBOSE,
)
_TOLD_AFTER = re.compile(
    r"""(?:[\s$*_`"')\]}.,]|\\[)\]%!,;: ]|[%°]|\\right\b){0,6}+
    (?:(?:is|was|would\s+(?:be|have\s+been)|should\s+(?:be|have\s+been)|as)\s+(?:indeed\s+|in\s+fact\s+)?(?:the\s+|your\s+|a\s+)?(?:\w{1,12}\s+){0,1}?
        (?:correct|right|final|answer|result|solution)\b
      |\(?(?:the|which\s+is)\s+(?:correct|right|final)\b
      |(?:in\s+total|altogether|in\s+all|remain(?:s|ing|ed)?)\b)""",
    re.IGNORECASE | re.VERBOSE,
)
_LABEL_BEFORE = re.compile(
    r"""\b(?:steps?|parts?|cases?|attempts?|lines?|iterations?|rounds?|sections?|equations?|eq\.|figures?|fig\.|examples?|paragraphs?|
    places?|items?|points?|rows?|columns?|lemma|theorem|mod|modulo|base)\s{0,2}(?:number\s|no\.\s|\#)?
    (?:[\s(*_$]|\\pmod\b|\\(?:text|mathbf)\{){0,4}+\Z""",
    re.IGNORECASE | re.VERBOSE,
)
_LIST_MARK_AFTER = re.compile(r"(?:\*\*)?[.):](?:\*\*)?(?=[ \t]+\S)")
_ORDINAL_AFTER = re.compile(
    r"(?:st|nd|rd|th)\b|\^(?:st|nd|rd|th|\{\\?t?e?x?t?\{?(?:st|nd|rd|th))|\\?\^\{\\text\{(?:st|nd|rd|th)"
)
_UNIT_AFTER = re.compile(
    r"(?:cm|mm|km|m|in|ft|yd|mi|kg|g|mg|lb|lbs|oz|s|ms|min|h|hr|hrs|am|pm|k|K|mph|L|l|ml|mL|C|F|J|N|W|V)(?![A-Za-z])"
)
_OF_THE_CRITIQUE = frozenset(
    str.split(
        "step steps mistake mistakes error errors issue issues approach approaches method methods attempt "
        "attempts hint hints sentence sentences paragraph paragraphs formula formulas place places reason "
        "reasons"
    )
)
_STOP_WORDS = frozenset(
    str.split(
        "a an the of to in on at for from by with and or is are was were be been it its this that these those "
        "he she they we you i his her their our your as so if then than not no there here have has had do "
        "does did will would can could should may must which who what when where how why each per more only "
        "just also exactly get gets got give gives make makes made leave leaves left equal equals yield "
        "yields obtain find total sum result answer value number"
    )
)
_TRANSPARENT = frozenset({"$", "{", "}", "(", ")", "[", "]", ",", "-"})


def is_told(text: str, start: int, end: int) -> bool:
    """Whether the words around a stretch say that it is the result."""
    before = text[max(0, start - _LOOK_BACK) : start]
    return bool(_TOLD_BEFORE.search(before)) or is_named_right(text, start, end)


def is_strongly_told(text: str, start: int, end: int) -> bool:
    """Whether they say so in as many words: `the answer is`, `is the right result`, a box around it."""
    before = text[max(0, start - _LOOK_BACK) : start]
    return bool(_STRONGLY_BEFORE.search(before)) or is_named_right(text, start, end) or _is_alone(text, start, end)


def is_named_right(text: str, start: int, end: int) -> bool:
    """`… is the right answer`, `… in total`."""
    return bool(_TOLD_AFTER.match(text[end : end + _LOOK_AHEAD]))


def _is_alone(text: str, start: int, end: int) -> bool:
    """Nothing but marks beside it on its line."""
    before = text[max(0, start - 24) : start].rpartition("\n")
    after = text[end : end + 24].partition("\n")
    begins = bool(before[1]) or start <= 24
    ends = bool(after[1]) or end + 24 >= len(text)
    return begins and ends and not re.search(r"\w", before[2] + after[0])


def is_label(text: str, start: int, end: int) -> bool:
    """`Step 3`, `part (b)`, `3.` at the head of a line, `3rd`."""
    before = text[max(0, start - 40) : start]
    if _LABEL_BEFORE.search(before) or _ORDINAL_AFTER.match(text[end : end + 16]):
        return True
    head = before.rpartition("\n")[2] if "\n" in before or start <= 40 else "x"
    return not head.strip(" \t#*(-") and bool(_LIST_MARK_AFTER.match(text[end : end + 8]))


def is_part_of_term(text: str, tokens: Sequence[Token], first: int, last: int) -> bool:
    """`3x`, `x^3`, `a_3`, `3\\sqrt{2}`, `\\sqrt{3}`, `3-fold`: a coefficient, a power, an index; a unit is none."""
    before = tokens[first - 1] if first else None
    if before is not None and before.key == "{" and first > 1:
        before = tokens[first - 2]
    if before is not None:
        if before.key in ("^", "_", "\\sqrt", "\\log", "\\binom", "\\dbinom"):
            return True
        if before.kind is Kind.WORD and before.end == tokens[first].start:
            return True
    after = tokens[last + 1] if last + 1 < len(tokens) else None
    if after is None:
        return False
    is_glued = after.start == tokens[last].end
    if is_glued and after.kind is Kind.WORD:
        return not _UNIT_AFTER.match(text, after.start)
    if is_glued and after.key == "-" and last + 2 < len(tokens) and tokens[last + 2].kind is Kind.WORD:
        return tokens[last + 2].start == after.end
    if after.key == "^":
        return not re.match(r"\^\s*\{?\s*(?:\\circ|°)", text[after.start : after.start + 12])
    if is_glued and after.key in ("!", "("):
        return after.key == "(" or (last + 2 < len(tokens) and tokens[last + 2].kind is not Kind.NEWLINE)
    return after.kind is Kind.COMMAND and after.key.lstrip("\\") in _FACTORS


_FACTORS = frozenset(
    str.split(
        "sqrt pi theta alpha beta gamma phi lambda mu sigma omega sin cos tan cot sec csc log ln binom frac sum int"
    )
)
_OPERATORS = frozenset({"+", "-", "/", "\\times", "^"})


def is_operand(tokens: Sequence[Token], first: int, last: int) -> bool:
    """Whether it stands in a calculation (`16 - 3 - 4`): an operator on one of its sides with an operand beyond."""
    before = _beside(tokens, first - 1, -1)
    if before is not None and tokens[before].key in _OPERATORS:
        beyond = _beside(tokens, before - 1, -1)
        if beyond is not None and _is_value(tokens[beyond]):
            return True
    after = _beside(tokens, last + 1, 1)
    if after is not None and tokens[after].key in _OPERATORS:
        beyond = _beside(tokens, after + 1, 1)
        if beyond is not None and _is_value(tokens[beyond]):
            return (
                tokens[after].key != "-"
                or tokens[after].start - tokens[last].end == tokens[beyond].start - tokens[after].end
            )
    return False


def _beside(tokens: Sequence[Token], at: int, step: int) -> int | None:
    """The next token in that direction which is no mark."""
    for _ in range(_MAX_NEIGHBOUR_TOKENS):
        if not 0 <= at < len(tokens):
            return None
        if not tokens[at].is_soft:
            return at
        at += step
    return None


def _is_value(token: Token) -> bool:
    is_variable = token.kind is Kind.WORD and len(token.text) == 1 and token.text not in ("a", "A", "I")
    return token.kind is Kind.NUMBER or is_variable or token.key in ("(", ")", "\\frac", "\\pi", "\\sqrt", "%", "\\$")


def company(tokens: Sequence[Token], first: int, last: int) -> tuple[str, str]:
    """The next words that mean something on either side of a stretch, in the same sentence; empty where there is none."""
    return _neighbour(tokens, first - 1, -1), _neighbour(tokens, last + 1, 1)


def _neighbour(tokens: Sequence[Token], at: int, step: int) -> str:
    for _ in range(_MAX_NEIGHBOUR_TOKENS):
        if not 0 <= at < len(tokens):
            return ""
        token = tokens[at]
        if token.kind is Kind.NEWLINE or token.key in (".", "?", "!", ";", ":", "="):
            return ""
        is_empty = token.is_soft or token.key in _TRANSPARENT or token.key.casefold() in _STOP_WORDS
        if not is_empty:
            key = token.key.casefold()
            return key.removesuffix("s") if token.kind is Kind.WORD and len(key) > 3 else key
        at += step
    return ""


def is_of_the_critique(tokens: Sequence[Token], last: int, known_words: Iterable[str]) -> bool:
    """`two mistakes`: what is counted belongs to the critique and not to the problem."""
    after = tokens[last + 1].key.casefold() if last + 1 < len(tokens) else ""
    return after in _OF_THE_CRITIQUE and after.rstrip("s") not in known_words and after not in known_words


_POINTING = frozenset(
    {"these", "those", "both", "first", "last", "other", "next", "following", "previous", "any", "every"}
)
_COUNTED = frozenset(
    str.split(
        "numbers values equations expressions sides terms quantities parts factors roots conditions "
        "statements results cases lines digits of"
    )
)


def is_pointing(tokens: Sequence[Token], first: int, last: int) -> bool:
    """`these two`, `the two sides`, `two of them`: a number word that counts nothing new."""
    before = tokens[first - 1].key.casefold() if first else ""
    after = tokens[last + 1].key.casefold() if last + 1 < len(tokens) else ""
    return before in _POINTING or (after in _COUNTED and (before in ("the", "your") or after == "of"))


_COUNTS_ONE = frozenset(
    {"exactly", "only", "just", "is", "are", "be", "equals", "equal", "gets", "get", "gives", "leaves", "to", "="}
)

_AFTER_PRONOUN = frozenset({"of", "another", "can", "must", "should", "needs", "way", "that", "who"})


def is_number_one(text: str, tokens: Sequence[Token], first: int, last: int) -> bool:
    """Whether `one` is the number and no pronoun."""
    before = tokens[first - 1].key.casefold() if first else ""
    after = _beside(tokens, last + 1, 1)
    follows = tokens[after] if after is not None else None
    if follows is not None and follows.key.casefold() in _AFTER_PRONOUN:
        return False
    ends = follows is None or follows.kind is Kind.NEWLINE or follows.key in (".", ",", ";", "!", ")", "?", "not")
    if before in ("this", "that", "which", "the", "each", "no", "another", "other", "correct", "right", "wrong"):
        return False
    return (before in _COUNTS_ONE and (ends or before in ("exactly", "only", "is"))) or is_strongly_told(
        text, tokens[first].start, tokens[last].end
    )
