"""Where a text names one option of a multiple-choice question: `(B)`, `option b`, `**B**`, `the second option`.

Knows letters and places only; an option's own words are found like any other answer's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from midthought.feedback.masking_context import company
from midthought.feedback.masking_tokens import Token, tokens_of

NUM_QUOTED = 8
"""So many characters on either side are those of the question where it is quoted."""

_ORDINALS = str.split("first second third fourth fifth sixth seventh eighth ninth tenth")
_ENDINGS = str.split("1st 2nd 3rd 4th 5th 6th 7th 8th 9th 10th")
_NUMBERS = str.split("one two three four five six seven eight nine ten")

_KIND = r"(?:options?|choices?|alternatives?|answers?(?:\s+choices?|\s+options?)?|possibility|selection)"
_CUE = (
    r"(?:options?|choices?|answers?|alternatives?|letters?|select(?:ing|ed)?|choos(?:e|ing)|chosen|pick(?:ing|ed)?|"
    r"go(?:ing)?\s+with|correct|right|mark(?:ed)?)"
)
_LINK = (
    r"(?:\s++(?:is|was|are|be|been|being|should|would|must|will|have|has|to|number|choice|option|letter|answer|one|indeed|"
    r"actually|really|the|of|as|in|fact|therefore|thus|clearly))"
)
"""What may stand between a cue and the letter."""
_WRITTEN = r"\\(?:boxed|fbox|text|textbf|mathbf|mathrm|mbox)\s*+\{"
_OPEN = rf"(?:[\s:=>,*_`\"'(\[{{$-]|\\[(\[]|{_WRITTEN})"
_CLOSE = r"(?=[\s*_`\"')\]}$]{0,6}+(?:[.,;:!?)\]}]|\\[)\]]|$|\n|\b(?:is|was|because|since|not|and|or|but|instead)\b))"
"""Ahead of a small letter that could be the article: the clause ends, or goes on without a noun."""
_NAMED_RIGHT = (
    r"(?=['\"*`)\]]{0,3}+\s++(?:is|was|would\s+be|should\s+be|seems|remains)\s++(?:indeed\s++|in\s+fact\s++)?"
    r"(?:the\s++|a\s++|not\s++)?(?:\w++\s++)?(?:correct|right|best|true|answer|only|valid|appropriate|better|option|choice|one)\b)"
)
_AFTER_CAPITAL_WORD = (
    r"(?=[*_`\"')\]}$]{0,4}+(?:\s{0,4}(?:[.,;:!?)\]}/\\]|$|\n)|"
    r"\s+(?:and|or|but|because|since|over|rather|instead|not|vs)\b))"
)
"""Ahead of A and I where they are letters and no words."""
_LABEL = re.compile(r"\b(?:parts?|sections?|equations?|steps?|cases?|questions?)\s*$", re.IGNORECASE)


class OptionNames:
    """The ways of naming the option with this letter (upper case), the `number`-th of `num_options`, counted from 0."""

    def __init__(self, letter: str, number: int, num_options: int, question: str) -> None:
        self._letter = letter
        names = [*_letter_names(letter), *_place_names(number, num_options)]
        self._patterns = [re.compile(name, re.MULTILINE) for name in names]
        self._alone = re.compile(_capital_alone(letter), re.MULTILINE)
        self._question = question
        self._question_company = set(self._companies(question))

    def spans(self, text: str, tokens: Sequence[Token]) -> Iterator[tuple[int, int]]:
        """Where a levelled text names the option."""
        for pattern in self._patterns:
            for found in pattern.finditer(text):
                start, end = found.span("name")
                if not _LABEL.search(text[max(0, start - 16) : start]) and not self._is_verbatim(text, start, end):
                    yield start, end
        quoted = {tokens[at].start for at, beside in self._at(tokens) if self._is_quoted(beside)}
        for found in self._alone.finditer(text):
            start, end = found.span()
            if start not in quoted and not self._is_verbatim(text, start, end):
                yield start, end

    def _is_verbatim(self, text: str, start: int, end: int) -> bool:
        beside = text[max(0, start - NUM_QUOTED) : end + NUM_QUOTED]
        return len(beside) > NUM_QUOTED and beside in self._question

    def _is_quoted(self, beside: tuple[str, str]) -> bool:
        return any((place, word) in self._question_company for place, word in enumerate(beside) if word)

    def _companies(self, text: str) -> Iterator[tuple[int, str]]:
        for _, beside in self._at(tokens_of(text)):
            yield from ((place, word) for place, word in enumerate(beside) if word)

    def _at(self, tokens: Sequence[Token]) -> Iterator[tuple[int, tuple[str, str]]]:
        for at, token in enumerate(tokens):
            if token.text == self._letter:
                yield at, company(tokens, at, at)


def _letter_names(letter: str) -> Iterator[str]:
    """Patterns of the letter (group `name`) as it is told; of small letters fewer ways count."""
    small = letter.lower()
    yield rf"(?<!\w)\(\s?(?P<name>[{letter}{small}])(?=\s?\))"  # (B)
    yield rf"(?:^|(?<=[\s*_`\"'(\[]))(?P<name>[{letter}{small}](?=\))|{letter}(?=:))"  # b) or B:
    yield rf"^[ \t*_(-]*(?P<name>{letter})(?=[.:)]\**[ \t]+\S)"  # B. at a line's head
    cue = rf"(?i:\b{_CUE}{_LINK}{{0,6}}+){_OPEN}{{1,10}}+"
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


def _place_names(number: int, num_options: int) -> Iterator[str]:
    """Patterns of the option's place: `second option`, `option 2`, `the last choice`."""
    yield rf"(?i:\b(?P<name>{_ORDINALS[number]}|{_ENDINGS[number]})(?=(?:\s+\w+)?\s+{_KIND}\b))"
    numeral = rf"(?P<name>{number + 1}|{_NUMBERS[number]})(?!\w|\.\d)"
    yield rf"(?i:\b{_KIND}(?:\s{{1,4}}(?:number|no\.?))?\s{{0,4}}\#?\s{{0,4}}{numeral})"
    if number == num_options - 1:
        yield r"(?i:\b(?P<name>last|final)(?=\s+(?:option|choice|alternative)\b))"


def _capital_alone(letter: str) -> str:
    """The capital by itself. A and I are words, too; but within a sentence no article is a capital."""
    alone = rf"(?<![\w'.\\-]){letter}(?![\w']|-\w|\.\w)"
    if letter in "AI":
        alone += _AFTER_CAPITAL_WORD
    return rf"{alone}|(?<=[a-z,;:]\s)A(?![\w'-])" if letter == "A" else alone
