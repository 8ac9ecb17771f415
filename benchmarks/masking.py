"""`python benchmarks/masking.py`: how often masking leaves the answer in a critic's text, and how much else it masks.

Constructed texts, no random numbers: every form of every answer in sentences that state it, and critiques that do not state it.
*Leaked*: the share of the first texts in which a word or digit of the form is left. *Wrongly masked*: the share of all other
words that are missing. `PYTHONPATH=CHECKOUT` measures another checkout's masking.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from midthought.feedback import masking
from midthought.types import Task

PROBLEM = "Ann has 3 hens, 7 geese and 12 ducks; 4 of them lay 2 eggs on 6 days a week. She sells 42 eggs for $18.90."
OPTIONS = {"A": "Plasma membrane", "B": "Lysosome", "C": "Cytosol", "D": "Chloroplast"}
TELLING = (
    "The answer is {}.",
    "The correct final answer is **{}**.",
    "You should get {} instead.",
    "so the result is {}",
    "It equals {}, not what you wrote.",
    "Then \\boxed{{{}}} follows.",
    "Therefore the final answer is $\\boxed{{{}}}$.",
    "{} is the right answer.",
    "Answer: {}",
    "Answer: ${}$",
    "Final answer:\n\n{}\n",
    "(the right value being {})",
    "We have $x={}$, as you can check.",
    "\\[ x = {} \\]",
    "I expect {} here",
    'The words "{}" would have been right',
    "the answer, {}, is easy to find",
    "- The answer is `{}`",
    "\\text{{The answer is }} {}",
    "Are you sure that it is not {}?",
)
"""Sentences in which a critic states the answer."""
HARMLESS = (
    "There is a mistake in step 3: a sign is lost when you move a term to the other side.",
    "Step 1: Read the problem. Step 2: Set up an equation. Step 3: Solve it. Step 4: Check it.",
    "1. Read the problem.\n2. Set it up.\n3. Solve it.\n4. Check it.\n5. Write it down.",
    "You made 2 mistakes. One of them is in the 2nd line, and the other one in part 5.",
    "A common error is to add where one has to multiply. I think a carry is missing; look at the units.",
    "Let $a$ be the first term; $x^2 + 3x$ is not $4x^3$, and $\\sqrt{2}$ stays.",
    "You wrote 16 - 3 - 4 = 8, but 16 - 7 = 9. He sells 5 of them for $12 each, 40% of which he keeps.",
    "On May 3, 1975, it was not in New York. Half of 0.25 is not 1/4 either; see (e) and option E.",
)
"""Sentences of critiques without the answer, whatever it is."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Answers of one kind, and the forms in which a critic can write each."""

    name: str
    forms: Callable[[str], Sequence[str]]
    answers: Collection[str]
    told: str = r"\d+|[^\W\d_]+"
    """What of a form tells the answer, after LaTeX commands and `the option`."""


def grouped(answer: str) -> list[str]:
    plain = f"{int(answer):,}"
    return [answer, f"{answer}.0", plain, f"{plain}.00", plain.replace(",", "{,}"), plain.replace(",", "\\,")]


def as_fraction(answer: str) -> list[str]:
    above, below = re.findall(r"\d+", answer)
    return [answer, answer.replace("frac", "dfrac"), f"\\frac{{ {above} }}{{ {below} }}", f"{above}/{below}"]


def mixed(answer: str) -> list[str]:
    whole, above, below = map(int, re.findall(r"\d+", answer))
    return [answer, f"{whole * below + above}/{below}", f"{whole + above / below:g}"]


def decimals(answer: str) -> list[str]:
    above, below = map(int, re.findall(r"\d+", answer))
    return [f"{above / below:g}", f"{above / below:.4f}"]


def as_percent(answer: str) -> list[str]:
    number = answer.rstrip("\\%")
    return [f"{number}%", f"{number}\\%", f"{number} %", number, f"{float(number) / 100:g}"]


def cases(answer: str) -> list[str]:
    return [answer, answer.lower(), answer.upper(), answer.replace(" ", "\n"), answer.replace(" ", "  ")]


def respaced(answer: str) -> list[str]:
    return [answer, re.sub(r"([-+=,])", r" \1 ", answer), re.sub(r"(?<![A-Za-z]) | (?![A-Za-z])", "", answer)]


def latex(answer: str) -> list[str]:
    bare = answer.replace("\\left", "").replace("\\right", "")
    return [*respaced(answer), bare, answer.replace("\\frac", "\\dfrac"), answer.replace("\\frac", "\\tfrac")]


def without_unit(answer: str) -> list[str]:
    number = re.findall(r"[\d.]+", answer)[0]
    return [answer, number, f"{number}.0" if "." not in number else f"{number}0"]


ONES = str.split("zero one two three four five six seven eight nine ten eleven twelve")
TENS = str.split("_ _ twenty thirty forty fifty sixty seventy eighty ninety")


def number_words(answer: str) -> list[str]:
    tens, ones = divmod(int(answer), 10)
    words = ONES[int(answer)] if int(answer) < 13 else TENS[tens] + (f"-{ONES[ones]}" if ones else "")
    return [words, words.capitalize()]


def cased(letter: str) -> list[str]:
    return [f"({letter})", f"option {letter}", f"**{letter}**"]


def relisted(answer: str) -> list[str]:
    return [answer.replace(", ", " and "), answer.replace(", ", "; ")]


def as_power(answer: str) -> list[str]:
    return [f"{int(answer) / 10**6:g} million", f"{int(answer) // 1000}e3"]


def rounded(answer: str) -> list[str]:
    return [f"{float(Fraction(answer)):.3f}", f"{float(Fraction(answer)):.2f}"]


def rewritten(answer: str) -> list[str]:
    for old, new in (("\\left", ""), ("\\right", ""), ("\\frac{\\pi}{2}", "π/2"), ("\\sqrt{13}", "√13"), ("x^2", "x²")):
        answer = answer.replace(old, new)
    return [answer, " ".join(re.findall(r"[^-+]+|[-+][^-+]+", answer)[::-1])]


def placed(letter: str) -> list[str]:
    number = "ABCD".index(letter)
    return [f"the {('first', 'second', 'third', 'fourth')[number]} option", f"choice {number + 1}"]


def signed(answer: str) -> list[str]:
    return [answer, answer.replace("-", "−"), f"{answer}.0" if "." not in answer else f"{answer}0"]


SMALL = [str(number) for number in range(2, 13)]
FRACTIONS = [r"\frac{1}{2}", r"\frac{3}{4}", r"\frac{7}{20}", r"\frac{5}{8}", r"\frac{11}{16}"]
NAMES = ["Evelyn", "New Jersey", "Mars", "George W. Bush", "World War II", "Café Müller", "Jean-Luc Godard", "O'Hara"]
EXPRESSIONS = [r"3\sqrt{13}", "x^2 + 3x - 7", r"\frac{\pi}{2}", "2x+3", r"\left( 3, \frac{\pi}{2} \right)", "6 - 5i"]
KINDS = (
    Kind("whole number to 12", lambda answer: [answer, f"{answer}.0"], SMALL),
    Kind("whole number above 12", grouped, ["42", "408", "1042", "18500", "345600", "1450000", "977"]),
    Kind("negative number", signed, ["-3", "-17", "-4.5", "-1200"]),
    Kind("decimal", lambda answer: [answer, f"{answer}0", f"\\${answer}"], ["3.5", "0.75", "12.25", "18.9", "2.718"]),
    Kind("fraction", as_fraction, FRACTIONS),
    Kind("fraction as a decimal", decimals, FRACTIONS),
    Kind("percent", as_percent, ["50%", "12.5%", r"8\%", r"75\%"]),
    Kind(
        "number with a unit", without_unit, [r"10 \text{ cm}", r"\$18.90", r"90^\circ", "24 dollars", "7.5 km"], r"\d+"
    ),
    Kind(
        "number with a unit of several words",
        without_unit,
        ["12 square meters", "60 miles per hour", "90 km/h"],
        r"\d+",
    ),
    Kind("mixed number", mixed, [r"1\frac{1}{2}", r"2\frac{3}{4}", r"13\frac{1}{8}"]),
    Kind("number in emphasis", lambda answer: [f"_{answer}_", f"__{answer}__"], ["42", "3.5", "-17"]),
    Kind("number and a unit's letter", lambda answer: [f"{answer}m", f"{answer}s"], ["42", "3.5", "408"], r"\d+"),
    Kind("option letter", lambda letter: [letter, f"({letter})", f"option {letter}"], OPTIONS),
    Kind("option letter, quoted", lambda letter: [f"'{letter}'", f"_{letter}_", f"option-{letter}"], OPTIONS),
    Kind("option, small letter", lambda letter: cased(letter.lower()), OPTIONS),
    Kind("option, its words", lambda letter: cases(OPTIONS[letter]), OPTIONS),
    Kind("name", cases, NAMES),
    Kind("sentence", cases, ["The dog chased the cat.", "It falls by half", "Light is bent toward the normal"]),
    Kind("date", cases, ["May 4, 1976", "4 July 1976", "1976-05-04", "04/05/1976", "July 1976"]),
    Kind("expression", latex, EXPRESSIONS),
    Kind("list, interval", respaced, ["3, 5, 7", "[-2, 7]", "(1,-4)", "1,-2"]),
    Kind("hexadecimal", lambda answer: [answer, answer.lower(), f"0x{answer}"], ["9A3BDDD63", "1F4C", "B07", "7E2A9"]),
    Kind("*number in words*", number_words, ["3", "7", "12", "42", "60", "95"]),
    Kind("*power of ten*", as_power, ["1450000", "2000000", "3500000", "12000000", "7250000", "9000000"]),
    Kind("*rounded decimal*", rounded, ["1/3", "2/7", "5/6", "4/9", "11/13", "2/3"]),
    Kind("*option by its place*", placed, OPTIONS),
    Kind("*expression, rewritten*", rewritten, EXPRESSIONS),
    Kind("*list with other signs*", relisted, ["3, 5, 7", "12, 13, 15", "x, y", "[-2, 7]", "2, 4"]),
)
"""Kinds in italics are documented as not masked."""


def words_of(text: str, pattern: str = r"\d+|[^\W\d_]+") -> Counter[str]:
    return Counter(re.findall(pattern, text.replace(masking.MASK, " ").casefold()))


def measure(kind: Kind) -> Iterator[tuple[int, int, int, int]]:
    """Yields for each text: whether it states the answer, whether that is left, its other words, how many of them are masked."""
    listed = "\n".join(f"({letter}) {text}" for letter, text in OPTIONS.items()) if kind.answers is OPTIONS else ""
    for answer in kind.answers:
        task = Task(task_id="t", prompt=f"{PROBLEM}\n\n{listed}", answer=answer)
        for form in kind.forms(answer):
            told = words_of(re.sub(r"\\[a-zA-Z]+|\b(?:the|option|choice)\b", " ", form), kind.told)
            for sentence in TELLING:
                found, others = (
                    words_of(masking.mask_answer(sentence.format(form), task)),
                    words_of(sentence.format(" ")),
                )
                yield 1, any((found - others)[word] for word in told), others.total(), (others - found).total()
        for text in (*HARMLESS, PROBLEM):
            others = words_of(text)
            yield 0, 0, others.total(), (others - words_of(masking.mask_answer(text, task))).total()


def main() -> None:
    print("| kind of answer | texts | leaked | other words | wrongly masked |\n| --- | --- | --- | --- | --- |")
    for kind in KINDS:
        num_telling, num_leaked, num_words, num_masked = map(sum, zip(*measure(kind), strict=True))
        leaked, wrong = num_leaked / num_telling, num_masked / num_words
        print(f"| {kind.name} | {num_telling} | {leaked:.1%} | {num_words} | {wrong:.2%} |")


if __name__ == "__main__":
    main()
