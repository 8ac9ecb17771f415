"""Decides from the words around a place whether it tells the answer; finds the names of a multiple-choice option.

Every check reads a bounded number of characters.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from midthought.feedback.masking_text import level

NUM_QUOTED = 14
"""Characters on both sides that must agree for a quotation of the problem."""

_MARK = r"(?:[\s$*_`\"'(\[{}]|\\[(\[!,;: ]|\\(?:left|text|textbf|mathbf|mathrm|mbox|boxed|fbox)\b|\\\$|[$€£¥])"
_FILLER = (
    r"(?:[\s,:>$*_`\"'({}\[-]|\\[(\[!,;: ]|\\(?:left|text|textbf|mathbf|mathrm|mbox|boxed|fbox|quad)\b|\b(?:is|was|are|were|be|"
    r"been|being|should|must|will|would|could|might|have|has|had|to|in|fact|actually|simply|just|exactly|only|really|clearly|"
    r"therefore|thus|then|so|hence|indeed|of|for|the|this|that|these|it|problem|question|correct|right|true|final|actual|real|"
    r"expected|desired|intended|you|we|need|want|get|gets|comes|come|out|as|equals?|equal|given|by|namely|i\.e\.|about|"
    r"approximately|roughly|number|value|a|total)\b)"
)
_TOLD_BEFORE = re.compile(
    rf"""(?:(?<!\w)(?:answers?|results?|solutions?|outcome|total|sum|product|quotient|(?:final|correct|right)\s+value)\b{_FILLER}{{0,14}}+
    |(?:(?<![<>!=])=|≈|:=|\\approx|\\equiv|\\boxed\s*\{{|\\Rightarrow|\\implies|→|⇒|->|=>){_MARK}{{0,8}}+
    |\b(?:equals?(?:\s+to)?|gives?|giving|gave|yields?|yielding|leaves?|leaving|obtain(?:s|ing|ed)?|gets?|getting|got|makes?|making
      |becomes?|(?:evaluates|simplifies|reduces|comes|amounts|adds\s+up)\s+to|comes\s+out\s+(?:to|as)|totals?|totalling
      |(?:should|must)\s+(?:be|have\s+been)|it\s+is|it's|that\s+is|that's|there\s+(?:is|are)|end\s+up\s+with|instead\s+of
      |rather\s+than|conclude|answer|say)
      (?:{_MARK}|\b(?:us|you|you'd|a|total|of|the|exactly|only|just|indeed|simply|actually|number|value)\b){{0,8}}+)\Z""",
    re.IGNORECASE | re.VERBOSE,
)
_STRONGLY_BEFORE = re.compile(
    rf"""(?:(?<!\w)(?:answers?|final\s+(?:result|value)|(?:correct|right|true)\s+(?:result|value|solution|number|total|sum|product))\b
    {_FILLER}{{0,14}}+|\\boxed\s*\{{{_MARK}{{0,8}}+)\Z""",
    re.IGNORECASE | re.VERBOSE,
)
_TOLD_AFTER = re.compile(
    r"""(?:[\s$*_`"')\]}.,]|\\[)\]%!,;: ]|[%°]|\\right\b){0,6}+
    (?:(?:is|was|would\s+(?:be|have\s+been)|should\s+(?:be|have\s+been)|as)\s+(?:indeed\s+|in\s+fact\s+)?(?:the\s+|your\s+|a\s+)?
      (?:\w{1,12}\s+){0,1}?(?:correct|right|final|answer|result|solution)\b
    |\(?(?:the|which\s+is)\s+(?:correct|right|final)\b|(?:in\s+total|altogether|in\s+all|remain(?:s|ing|ed)?)\b)""",
    re.IGNORECASE | re.VERBOSE,
)
_LABEL_BEFORE = re.compile(
    r"""\b(?:steps?|parts?|cases?|attempts?|lines?|iterations?|rounds?|sections?|equations?|eq\.|figures?|fig\.
    |examples?|paragraphs?|places?|items?|points?|rows?|columns?|lemma|theorem|mod|modulo|base)\s{0,2}(?:number\s|no\.\s|\#)?
    (?:[\s(*_$]|\\pmod\b|\\(?:text|mathbf)\{){0,4}+\Z""",
    re.IGNORECASE | re.VERBOSE,
)
_LIST_MARK_AFTER = re.compile(r"(?:\*\*)?[.):](?:\*\*)?[ \t]+\S")
_ORDINAL_AFTER = re.compile(r"(?:\\?\^)?(?:\{\\text)?\{?(?:st|nd|rd|th)\b")
_OPERATOR = r"(?:[+/^×·]|\\times\b|\\cdot\b|\\div\b|(?<!\*)\*(?!\*))"
_SOFT = r"(?:[ \t${}\"'`]|\*\*|\\[,;!: ]|\\(?:left|right)\b){0,5}+"
_OPERAND_BEFORE = re.compile(rf"(?:\d|(?<![A-Za-z\\])[b-zB-HJ-Z]|[()%]|\\pi){_SOFT}(?:{_OPERATOR}|-){_SOFT}\Z")
_OPERAND_AFTER = re.compile(
    rf"{_SOFT}(?:{_OPERATOR}|(?<!\s)-(?!\s)|(?<=\s)-(?=\s)){_SOFT}(?:\d|[b-zB-HJ-Z](?![A-Za-z])|[()%]|\\(?:pi|sqrt|[dt]?frac|\$))"
)
_TERM_BEFORE = re.compile(
    r"(?:(?:\^|_|√|\\(?:sqrt|log|d?binom|[dt]?frac|sqrt\[))\s*\{?\s*|\}\s*\{\s*|(?<![\\A-Za-z])[A-Za-z]{1,20})\Z"
)
_TERM_AFTER = re.compile(
    r"(?!(?:cm|mm|km|m|in|ft|yd|mi|kg|g|mg|lbs?|oz|s|ms|min|h|hrs?|am|pm|k|K|mph|[LlCFJNWV]|m[lL])(?![A-Za-z]))[A-Za-z]|-[A-Za-z]"
    r"|\s*\^(?!\s*\{?\s*(?:\\circ|°))|\(|!(?=\s*[-=+*/^)(\d])|\s*(?:√|π|\\(?:sqrt|pi|theta|alpha|beta|gamma|phi|lambda|mu|sigma|omega|"
    r"sin|cos|tan|cot|sec|csc|log|ln|binom|[dt]?frac|sum|int)(?![A-Za-z]))"
)
_COUNTED_AFTER = re.compile(
    r"\s+((?:step|mistake|error|issue|approach|method|attempt|hint|sentence|paragraph|formula|place|reason)(?:s|es)?)\b",
    re.IGNORECASE,
)
_OF_AFTER = re.compile(r"\s+of\b")
_POINTING = re.compile(
    r"\b(?:these|those|both|first|last|other|next|following|previous|any|every)\s+\Z",
    re.IGNORECASE,
)
_ONE_BEFORE = re.compile(
    r"(?:\b(?:exactly|only|just|is|are|be|equals?|gets?|gives|leaves|to)\s+|=\s*)\Z", re.IGNORECASE
)
_ONE_AFTER = re.compile(r"[\s*$]*(?:\Z|\n|[.,;!)?]|not\b)")
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


def is_told(text: str, start: int, end: int) -> bool:
    """Whether the words around a place say that it is a result."""
    return bool(_TOLD_BEFORE.search(text, max(0, start - 120), start) or _TOLD_AFTER.match(text, end, end + 60))


def is_strongly_told(text: str, start: int, end: int) -> bool:
    """Whether they say that it is the answer: `the answer is`, `is the right result`, a box around it, a line of its own."""
    if _STRONGLY_BEFORE.search(text, max(0, start - 120), start) or _TOLD_AFTER.match(text, end, end + 60):
        return True
    before, newline, _ = text[max(0, start - 24) : start][::-1].partition("\n")
    after, next_line, _ = text[end : end + 24].partition("\n")
    is_line = (newline or start <= 24) and (next_line or end + 24 >= len(text))
    return bool(is_line) and not re.search(r"\w", before + after)


def is_emphasized(text: str, start: int, end: int) -> bool:
    """Whether there are quotation marks, emphasis or braces on both sides."""
    return text[max(0, start - 1) : start] in tuple('*_`"${') and text[end : end + 1] in tuple('*_`"$}')


def is_label(text: str, start: int, end: int) -> bool:
    """`Step 3`, `part (b)`, `3.` at the head of a line, `3rd`."""
    if _ORDINAL_AFTER.match(text, end, end + 16):
        return True
    head = text[max(0, start - 40) : start].rpartition("\n")[2]
    if len(head) < 40 and not head.strip(" \t#*(-"):
        return bool(_LIST_MARK_AFTER.match(text, end, end + 8))
    return bool(_LABEL_BEFORE.search(text, max(0, start - 40), start))


def is_in_calculation(text: str, start: int, end: int) -> bool:
    """An operand (`16 - 3 - 4`), or a coefficient, a power or an index (`3x`, `x^3`)."""
    return is_operand(text, start, end) or bool(
        _TERM_BEFORE.search(text, max(0, start - 24), start) or _TERM_AFTER.match(text, end, end + 24)
    )


def is_operand(text: str, start: int, end: int) -> bool:
    return bool(_OPERAND_BEFORE.search(text, max(0, start - 24), start) or _OPERAND_AFTER.match(text, end, end + 24))


def neighbors(text: str, start: int, end: int) -> tuple[str, str]:
    """The next word with a meaning on either side, in the same sentence; empty if there is none."""
    before = _SENTENCE_END.split(text[max(0, start - 80) : start])[-1]
    after = _SENTENCE_END.split(text[end : end + 80])[0]
    sides = [re.findall(r"[^\W_]+", re.sub(r"\\[a-zA-Z]+", " ", side.casefold())) for side in (before, after)]
    found = [
        next((word for word in words if word not in _STOP_WORDS), "") for words in (sides[0][:-6:-1], sides[1][:5])
    ]
    first, last = (word.removesuffix("s") if len(word) > 3 else word for word in found)
    return first, last


def is_quoted(text: str, start: int, end: int, problem: str) -> bool:
    """Whether the problem has this place with the same characters on either side."""
    before, after = text[max(0, start - NUM_QUOTED) : start], text[end : end + NUM_QUOTED]
    is_long = len(before.strip()) + len(after.strip()) >= NUM_QUOTED
    return is_long and before + text[start:end] + after in problem


def is_of_critique(text: str, start: int, end: int, problem: str, is_word: bool) -> bool:
    """`two mistakes`, `these two`, `two of them`: a count of what the critique speaks of."""
    noun = _COUNTED_AFTER.match(text, end)
    is_of_problem = noun is not None and noun[1].casefold().removesuffix("s") in problem.casefold()
    is_pointing = _POINTING.search(text, max(0, start - 20), start) or _OF_AFTER.match(text, end)
    return bool((noun and not is_of_problem) or (is_word and is_pointing))


def is_counted_one(text: str, start: int, end: int) -> bool:
    """Whether the word `one` is a number; mostly it is a pronoun."""
    return bool(_ONE_BEFORE.search(text, max(0, start - 20), start) and _ONE_AFTER.match(text, end))


# -- multiple choice -----------------------------------------------------------------------------------------------

_ORDINALS = str.split("first second third fourth fifth sixth seventh eighth ninth tenth")
_SHORT_ORDINALS = str.split("1st 2nd 3rd 4th 5th 6th 7th 8th 9th 10th")
_CARDINALS = str.split("one two three four five six seven eight nine ten")
_KIND = r"(?:options?|choices?|alternatives?|answers?(?:\s+choices?|\s+options?)?|possibility|selection)"
_CUE = (
    r"(?:options?|choices?|answers?|alternatives?|letters?|select(?:ing|ed)?|choos(?:e|ing)|chosen|pick(?:ing|ed)?|"
    r"go(?:ing)?\s+with|correct|right|mark(?:ed)?)"
)
_LINK = (
    r"(?:\s++(?:is|was|are|be|been|being|should|would|must|will|have|has|to|number|choice|option|letter|answer|one|indeed|actually|"
    r"really|the|of|as|in|fact|therefore|thus|clearly))"
)
_WRITTEN = r"\\(?:boxed|fbox|text|textbf|mathbf|mathrm|mbox)\s*+\{"
_OPEN = rf"(?:[\s:=>,*_`\"'(\[{{$-]|\\[(\[]|{_WRITTEN})"
_CLOSE = r"(?=[\s*_`\"')\]}$]{0,6}+(?:[.,;:!?)\]}]|\\[)\]]|$|\n|\b(?:is|was|because|since|not|and|or|but|instead)\b))"
_NAMED_RIGHT = (
    r"(?=['\"*`)\]]{0,3}+\s++(?:is|was|would\s+be|should\s+be|seems|remains)\s++(?:indeed\s++|in\s+fact\s++)?(?:the\s++|a\s++|not\s++)?"
    r"(?:\w++\s++)?(?:correct|right|best|true|answer|only|valid|appropriate|better|option|choice|one)\b)"
)
_AFTER_A_OR_I = (
    r"(?=[*_`\"')\]}$]{0,4}+(?:\s{0,4}(?:[.,;:!?)\]}/\\]|$|\n)"
    r"|\s+(?:and|or|but|because|since|over|rather|instead|not|vs)\b))"
)
_OTHER_LABEL = re.compile(r"\b(?:parts?|sections?|equations?|steps?|cases?|questions?)\s*\Z", re.IGNORECASE)


class Option:
    """The option with this letter (upper case), the `number`-th of `num_options`, counted from 0."""

    def __init__(self, letter: str, number: int, num_options: int, question: str) -> None:
        self._patterns = [re.compile(name, re.MULTILINE) for name in _option_names(letter, number, num_options)]
        self._letter = re.compile(rf"(?<!\w){letter}(?!\w)")
        self._question = level(question)[0]
        self._beside = {
            beside
            for found in self._letter.finditer(self._question)
            for beside in enumerate(neighbors(self._question, *found.span()))
            if beside[1]
        }

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Places of a levelled text that name the option."""
        for pattern in self._patterns:
            for found in pattern.finditer(text):
                start, end = found.span("name")
                if is_quoted(text, start, end, self._question):
                    continue
                if pattern is self._patterns[-1]:
                    is_other = not self._beside.isdisjoint(enumerate(neighbors(text, start, end)))
                else:
                    is_other = bool(_OTHER_LABEL.search(text, max(0, start - 16), start))
                if not is_other:
                    yield start, end


def _option_names(letter: str, number: int, num_options: int) -> Iterator[str]:
    """Patterns of the letter or the place of an option (group `name`); the last one is the capital letter alone."""
    small = letter.lower()
    cue = rf"(?i:\b{_CUE}{_LINK}{{0,6}}+){_OPEN}{{1,10}}+"
    yield rf"(?<!\w)\(\s?(?P<name>[{letter}{small}])(?=\s?\))"  # (B)
    yield rf"(?:^|(?<=[\s*_`\"'(\[]))(?P<name>[{letter}{small}](?=\))|{letter}(?=:))"  # b) or B:
    yield rf"^[ \t*_(-]*(?P<name>{letter})(?=[.:)]\**[ \t]+\S)"  # B. at the head of a line
    yield rf"{cue}(?P<name>{letter})(?![\w']|-\w)(?!\s+[a-z]+\s+(?:is|of)\b)"  # the answer should be B
    yield rf"{cue}(?P<name>{small})(?![\w']|-\w){_CLOSE}"  # the answer is b.
    yield (  # option b
        rf"(?i:\b(?:options?|choices?|letters?)(?:\s++(?:is|was|number|letter))?){_OPEN}{{1,8}}+(?P<name>{small})(?![\w']|-\w)"
    )
    yield (  # **B**, "B", $B$
        rf"(?:\*{{1,3}}|_{{1,2}}|`|\"|'|\$|\[|{_WRITTEN})\s?\(?(?P<name>{letter})\)?[.:]?\s?(?=\*|_|`|\"|'(?!\w)|\$|\]|\}})"
    )
    yield rf"(?:\*{{2,3}}|__|`|\"|{_WRITTEN})\s?\(?(?P<name>{small})\)?[.:]?\s?(?=\*|_|`|\"|\}})"  # **b**
    yield rf"(?<![\w'.-])(?P<name>{letter}){_NAMED_RIGHT}"  # B is the right one
    yield rf"(?i:\b(?P<name>{_ORDINALS[number]}|{_SHORT_ORDINALS[number]})(?=(?:\s+\w+)?\s+{_KIND}\b))"  # second option
    numeral = rf"(?P<name>{number + 1}|{_CARDINALS[number]})(?!\w|\.\d)"
    yield rf"(?i:\b{_KIND}(?:\s{{1,4}}(?:number|no\.?))?\s{{0,4}}\#?\s{{0,4}}{numeral})"  # option 2
    if number == num_options - 1:
        yield r"(?i:\b(?P<name>last|final)(?=\s+(?:option|choice|alternative)\b))"
    alone = rf"(?<![\w'.\\-]){letter}(?![\w']|-\w|\.\w)"
    if letter in "AI":  # they are words, too
        alone += _AFTER_A_OR_I
    if letter == "A":  # within a sentence no article is a capital
        alone += r"|(?<=[a-z,;:]\s)A(?![\w'-])"
    yield rf"(?P<name>{alone})"
