"""Decides from the words around a place whether it tells the answer; finds the names of a multiple-choice option.

Every check reads a bounded number of characters.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from midthought.feedback.masking_text import level

NUM_BEFORE, NUM_AFTER = 40, 60
"""Characters that a clue reads on either side of a place."""
NUM_PHRASE_BEFORE = 120
"""The same before a place, for clues that are whole phrases."""
NUM_QUOTED = 14
"""Characters on both sides that must agree for a quotation of the problem."""


class Clue:
    """Shows the meaning of a place by what is directly before it or directly after it (verbose regular expressions)."""

    def __init__(
        self,
        before: str | None = None,
        after: str | None = None,
        flags: int = re.IGNORECASE,
        num_before: int = NUM_BEFORE,
    ) -> None:
        self._num_before = num_before
        self._before = re.compile(rf"(?:{before})\Z", flags | re.VERBOSE) if before else None
        self._after = re.compile(after, flags | re.VERBOSE) if after else None

    def is_at(self, text: str, start: int, end: int) -> bool:
        """Whether the clue is beside this place."""
        before, after = self._before, self._after
        if before and before.search(text, max(0, start - self._num_before), start):
            return True
        return bool(after and after.match(text, end, end + NUM_AFTER))


_WRAP = r"\\(?:left|text|textbf|mathbf|mathrm|mbox|boxed|fbox|quad)\b|\\[(\[!,;: ]"
_MARK = rf"(?:[\s$*_`\"'(\[{{}}€£¥]|{_WRAP}|\\\$)"
_FILLER = (
    rf"(?:[\s,:>$*_`\"'({{}}\[-]|{_WRAP}|\b(?:is|was|are|were|be|been|being|should|must|will|would|could|might|have|has|had|to|in|"
    r"fact|actually|simply|just|exactly|only|really|clearly|therefore|thus|then|so|hence|indeed|of|for|the|this|that|these|it|"
    r"problem|question|correct|right|true|final|actual|real|expected|desired|intended|you|we|need|want|gets?|comes?|out|as|"
    r"equals?|given|by|namely|i\.e\.|about|approximately|roughly|number|value|a|total)\b){0,14}+"
)
_OPERATOR = r"(?:[+/^×·]|\\times\b|\\cdot\b|\\div\b|(?<!\*)\*(?!\*))"
_SOFT = r"(?:[ \t${}\"'`]|\*\*|\\[,;!: ]|\\(?:left|right)\b){0,5}+"

_SAID_AFTER = r"""(?:[\s$*_`"')\]}.,]|\\[)\]%!,;: ]|[%°]|\\right\b){0,6}+
    (?:(?:is|was|would\s+(?:be|have\s+been)|should\s+(?:be|have\s+been)|as)\s+(?:indeed\s+|in\s+fact\s+)?(?:the\s+|your\s+|a\s+)?
      (?:\w{1,12}\s+)?(?:correct|right|final|answer|result|solution)\b
    |\(?(?:the|which\s+is)\s+(?:correct|right|final)\b|(?:in\s+total|altogether|in\s+all|remain(?:s|ing|ed)?)\b)"""
RESULT = Clue(
    rf"""(?<!\w)(?:answers?|results?|solutions?|outcome|total|sum|product|quotient|(?:final|correct|right)\s+value)\b{_FILLER}
    |(?:(?<![<>!=])=|≈|:=|\\approx|\\equiv|\\boxed\s*\{{|\\Rightarrow|\\implies|→|⇒|->|=>){_MARK}{{0,8}}+
    |\b(?:equals?(?:\s+to)?|gives?|giving|gave|yields?|yielding|leaves?|leaving|obtain(?:s|ing|ed)?|gets?|getting|got|makes?|making
      |becomes?|(?:evaluates|simplifies|reduces|comes|amounts|adds\s+up)\s+to|comes\s+out\s+(?:to|as)|totals?|totalling
      |(?:should|must)\s+(?:be|have\s+been)|it\s+is|it's|that\s+is|that's|there\s+(?:is|are)|end\s+up\s+with|instead\s+of
      |rather\s+than|conclude|answer|say)
      (?:{_MARK}|\b(?:us|you|you'd|a|total|of|the|exactly|only|just|indeed|simply|actually|number|value)\b){{0,8}}+""",
    _SAID_AFTER,
    num_before=NUM_PHRASE_BEFORE,
)
"""It is a result."""
ANSWER = Clue(
    rf"""(?<!\w)(?:answers?|final\s+(?:result|value)|(?:correct|right|true)\s+(?:result|value|solution|number|total|sum|product))\b
    {_FILLER}|\\boxed\s*\{{{_MARK}{{0,8}}+""",
    _SAID_AFTER,
    num_before=NUM_PHRASE_BEFORE,
)
"""It is the answer: `the answer is`, `is the right result`, a box around it."""
EMPHASIS_BEFORE, EMPHASIS_AFTER = Clue(before=r"\A|[*_`\"${]"), Clue(after=r"\Z|[*_`\"$}]")
LINE_BEFORE, LINE_AFTER = Clue(before=r"(?:\A|\n)[^\w\n]{0,23}"), Clue(after=r"[^\w\n]{0,23}(?:\n|\Z)")
HEAD_BEFORE, LIST_MARK_AFTER = (
    Clue(before=r"(?:\A|\n)[ \t#*(-]{0,40}"),
    Clue(after=r"(?:\*\*)?[.):](?:\*\*)?[ \t]+\S"),
)
LABEL = Clue(
    r"""\b(?:steps?|parts?|cases?|attempts?|lines?|iterations?|rounds?|sections?|equations?|eq\.|figures?|fig\.
    |examples?|paragraphs?|places?|items?|points?|rows?|columns?|lemma|theorem|mod|modulo|base)\s{0,2}(?:number\s|no\.\s|\#)?
    (?:[\s(*_$]|\\pmod\b|\\(?:text|mathbf)\{){0,4}+""",
    r"(?:\\?\^)?(?:\{\\text)?\{?(?:st|nd|rd|th)\b",
)
"""`Step 3`, `part (b)`, `3rd`."""
OPERAND = Clue(
    rf"(?:\d|(?<![A-Za-z\\])[b-zB-HJ-Z]|[()%]|\\pi){_SOFT}(?:{_OPERATOR}|-){_SOFT}",
    rf"""{_SOFT}(?:{_OPERATOR}|(?<!\s)-(?!\s)|(?<=\s)-(?=\s)){_SOFT}
    (?:\d|[b-zB-HJ-Z](?![A-Za-z])|[()%]|\\(?:pi|sqrt|[dt]?frac|\$))""",
    flags=0,
)
"""`16 - 3 - 4`."""
TERM = Clue(
    r"(?:\^|_|√|\\(?:sqrt|log|d?binom|[dt]?frac|sqrt\[))\s*\{?\s*|\}\s*\{\s*|(?<![\\A-Za-z])[A-Za-z]{1,20}",
    r"""(?!(?:[cmk]?m|in|ft|yd|mi|k?g|mg|lbs?|oz|s|ms|min|h|hrs?|[ap]m|[kKLlCFJNWV]|mph|m[lL])(?![A-Za-z]))[A-Za-z]|-[A-Za-z]
    |\s*\^(?!\s*\{?\s*(?:\\circ|°))|\(|!(?=\s*[-=+*/^)(\d])|\s*(?:√|π|\\(?:sqrt|pi|theta|alpha|beta|gamma|phi|lambda|mu|sigma|omega
    |sin|cos|tan|cot|sec|csc|log|ln|binom|[dt]?frac|sum|int)(?![A-Za-z]))""",
    flags=0,
)
"""A coefficient, a power or an index: `3x`, `x^3`."""
POINTING = Clue(r"\b(?:these|those|both|first|last|other|next|following|previous|any|every)\s+", r"\s+of\b")
"""`these two`, `two of them`."""
COUNTED_ONE_BEFORE = Clue(before=r"\b(?:exactly|only|just|is|are|be|equals?|gets?|gives|leaves|to)\s+|=\s*")
COUNTED_ONE_AFTER = Clue(after=r"[\s*$]*(?:\Z|\n|[.,;!)?]|\\[\])]|not\b)")

_COUNTED = re.compile(
    r"\s+((?:step|mistake|error|issue|approach|method|attempt|hint|sentence|paragraph|formula|place|reason)(?:s|es)?)\b",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(r"[\n?!;:=]|\.(?!\d)")
_STOP_WORDS = frozenset(
    str.split(
        "a an the of to in on at for from by with and or is are was were be been it its this that these those he she "
        "they we you i his her their our your as so if then than not no there here have has had do does did will would "
        "can could should may must which who what when where how why each per more only just also exactly get gets got "
        "give gives make makes made leave leaves left equal equals yield yields obtain find total sum result answer "
        "value number s"
    )
)


def is_answer(text: str, start: int, end: int) -> bool:
    """Whether the text says that a place is the answer, or has it on a line of its own."""
    is_line = LINE_BEFORE.is_at(text, start, end) and LINE_AFTER.is_at(text, start, end)
    return is_line or ANSWER.is_at(text, start, end)


def is_label(text: str, start: int, end: int) -> bool:
    """Whether a place is the number of a step or of a list's item."""
    if HEAD_BEFORE.is_at(text, start, end) and LIST_MARK_AFTER.is_at(text, start, end):
        return True
    return LABEL.is_at(text, start, end)


def is_in_calculation(text: str, start: int, end: int) -> bool:
    """Whether a place is an operand, or a coefficient, a power or an index."""
    return OPERAND.is_at(text, start, end) or TERM.is_at(text, start, end)


def counts_words_of_critique(text: str, end: int, problem: str) -> bool:
    """`two mistakes`: a count of what the critique speaks of, and not the problem."""
    noun = _COUNTED.match(text, end)
    return noun is not None and noun[1].casefold().removesuffix("s") not in problem.casefold()


def neighbors(text: str, start: int, end: int) -> set[tuple[int, str]]:
    """The next word with a meaning before (0) and after (1) a place, in the same sentence."""
    before = _SENTENCE_END.split(text[max(0, start - 80) : start])[-1]
    after = _SENTENCE_END.split(text[end : end + 80])[0]
    words_before, words_after = (
        re.findall(r"[^\W_]+", re.sub(r"\\[a-zA-Z]+", " ", side.casefold())) for side in (before, after)
    )
    found = set()
    for side, words in enumerate((words_before[:-6:-1], words_after[:5])):
        word = next((word for word in words if word not in _STOP_WORDS), "")
        found.add((side, word.removesuffix("s") if len(word) > 3 else word))
    return {each for each in found if each[1]}


def is_quoted(text: str, start: int, end: int, problem: str) -> bool:
    """Whether the problem has this place with the same characters on either side."""
    before, after = text[max(0, start - NUM_QUOTED) : start], text[end : end + NUM_QUOTED]
    is_long = len(before.strip()) + len(after.strip()) >= NUM_QUOTED
    return is_long and before + text[start:end] + after in problem


# -- multiple choice -----------------------------------------------------------------------------------------------

_NUMERALS = (
    "first|1st 1|one;second|2nd 2|two;third|3rd 3|three;fourth|4th 4|four;fifth|5th 5|five;sixth|6th 6|six;"
    "seventh|7th 7|seven;eighth|8th 8|eight;ninth|9th 9|nine;tenth|10th 10|ten"
)
_KIND = r"(?:options?|choices?|alternatives?|answers?(?:\s+choices?|\s+options?)?|possibility|selection)"
_CUE = (
    r"(?i:\b(?:options?|choices?|answers?|alternatives?|letters?|select(?:ing|ed)?|choos(?:e|ing)|chosen|pick(?:ing|ed)?|"
    r"go(?:ing)?\s+with|correct|right|mark(?:ed)?)"
    r"(?:\s++(?:is|was|are|be|been|being|should|would|must|will|have|has|to|number|choice|option|letter|answer|one|indeed|"
    r"actually|really|the|of|as|in|fact|therefore|thus|clearly)){0,6}+)"
)
_WRITTEN = r"\\(?:boxed|fbox|text|textbf|mathbf|mathrm|mbox)\s*+\{"
_OPEN = rf"(?:[\s:=>,*_`\"'(\[{{$-]|\\[(\[]|{_WRITTEN}){{1,10}}+"
_CLOSE = r"(?=[\s*_`\"')\]}$]{0,6}+(?:[.,;:!?)\]}]|\\[)\]]|$|\n|\b(?:is|was|because|since|not|and|or|but|instead)\b))"
_NAMED_RIGHT = (
    r"(?=['\"*`)\]]{0,3}+\s++(?:is|was|would\s+be|should\s+be|seems|remains)\s++(?:indeed\s++|in\s+fact\s++)?(?:the\s++|a\s++|not\s++)?"
    r"(?:\w++\s++)?(?:correct|right|best|true|answer|only|valid|appropriate|better|option|choice|one)\b)"
)
_AFTER_A_OR_I = (
    r"(?=[*_`\"')\]}$]{0,4}+(?:\s{0,4}(?:[.,;:!?)\]}/\\]|$|\n)"
    r"|\s+(?:and|or|but|because|since|over|rather|instead|not|vs)\b))"
)
OTHER_LABEL = Clue(before=r"\b(?:parts?|sections?|equations?|steps?|cases?|questions?)\s*")


class Option:
    """The option with this letter (upper case), the `number`-th of `num_options`, counted from 0."""

    def __init__(self, letter: str, number: int, num_options: int, question: str) -> None:
        self._patterns = [re.compile(name, re.MULTILINE) for name in _option_names(letter, number, num_options)]
        self._question = level(question)[0]
        places = re.finditer(rf"(?<!\w){letter}(?!\w)", self._question)
        self._beside = {beside for found in places for beside in neighbors(self._question, *found.span())}

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Places of a levelled text that name the option."""
        for pattern in self._patterns:
            for found in pattern.finditer(text):
                place = found.span("name")
                if pattern is self._patterns[-1]:
                    is_other = not self._beside.isdisjoint(neighbors(text, *place))
                else:
                    is_other = OTHER_LABEL.is_at(text, *place)
                if not is_other and not is_quoted(text, *place, self._question):
                    yield place


def _option_names(letter: str, number: int, num_options: int) -> Iterator[str]:
    """Patterns of the letter or the place of an option (group `name`); the last one is the capital letter alone."""
    small, no_word = letter.lower(), r"(?![\w']|-\w)"
    ordinals, cardinals = _NUMERALS.split(";")[number].split()
    yield rf"(?<!\w)\(\s?(?P<name>[{letter}{small}])(?=\s?\))"  # (B)
    yield rf"(?:^|(?<=[\s*_`\"'(\[]))(?P<name>[{letter}{small}](?=\))|{letter}(?=:))"  # b) or B:
    yield rf"^[ \t*_(-]*(?P<name>{letter})(?=[.:)]\**[ \t]+\S)"  # B. at the head of a line
    yield rf"{_CUE}{_OPEN}(?P<name>{letter}(?!\s+[a-z]+\s+(?:is|of)\b)|{small}{_CLOSE}){no_word}"  # the answer should be B
    yield rf"(?i:\b(?:options?|choices?|letters?)(?:\s++(?:is|was|number|letter))?){_OPEN}(?P<name>{small}){no_word}"  # option b
    yield (  # **B**, "B", $B$
        rf"(?:\*{{1,3}}|_{{1,2}}|`|\"|'|\$|\[|{_WRITTEN})\s?\(?(?P<name>{letter})\)?[.:]?\s?(?=\*|_|`|\"|'(?!\w)|\$|\]|\}})"
    )
    yield rf"(?:\*{{2,3}}|__|`|\"|{_WRITTEN})\s?\(?(?P<name>{small})\)?[.:]?\s?(?=\*|_|`|\"|\}})"  # **b**
    yield rf"(?<![\w'.-])(?P<name>{letter}){_NAMED_RIGHT}"  # B is the right one
    yield rf"(?i:\b(?P<name>{ordinals})(?=(?:\s+\w+)?\s+{_KIND}\b))"  # second option
    yield rf"(?i:\b{_KIND}(?:\s{{1,4}}(?:number|no\.?))?\s{{0,4}}\#?\s{{0,4}}(?P<name>{cardinals})(?!\w|\.\d))"  # option 2
    if number == num_options - 1:
        yield r"(?i:\b(?P<name>last|final)(?=\s+(?:option|choice|alternative)\b))"
    alone = rf"(?<![\w'.\\-]){letter}(?![\w']|-\w|\.\w)"
    if letter in "AI":  # they are words, too
        alone += _AFTER_A_OR_I
    if letter == "A":  # within a sentence no article is a capital
        alone += r"|(?<=[a-z,;:]\s)A(?![\w'-])"
    yield rf"(?P<name>{alone})"
