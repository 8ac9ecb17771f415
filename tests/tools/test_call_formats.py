"""Properties of every call format: a table of texts, any split of them, random texts, round trips, cost, names."""

from __future__ import annotations

import random
import string
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from types import FrameType
from typing import Any

import pytest
from calling import LOOK, event

from midthought.errors import SettingsError
from midthought.tools.call_formats import begins_in_thought, describe_tools, example_parameters
from midthought.tools.call_formats.in_thought import InThoughtFormat
from midthought.tools.definition import ToolDefinition, ToolParameter
from midthought.tools.parsers import call_format_names, find_call_format
from midthought.types import ParsedAction


@dataclass(frozen=True)
class Writing:
    """How a test writes a call format's texts."""

    form: str
    """A call that may stand anywhere."""
    nameless_form: str
    nameless_is_call: bool
    """Whether a call without a name is a malformed call, or none."""
    begins_in_thought: bool = False
    mute: tuple[str, str] = ("<think>", "</think>")
    """Tags between which nothing is a call."""

    def call(self, name: str, arguments: str) -> str:
        return self.form.replace("NAME", name).replace("ARGUMENTS", arguments)

    def nameless(self, arguments: str) -> str:
        return self.nameless_form.replace("ARGUMENTS", arguments)


WRITINGS = {
    "in_thought": Writing("#call NAME ARGUMENTS", "#call ARGUMENTS", False, True, ("</think>", "<think>")),
    "json": Writing('{"tool": "NAME", "parameters": ARGUMENTS}', '{"parameters": ARGUMENTS}', False),
    "react": Writing("\nAction: NAME\nAction Input: ARGUMENTS", "\nAction: \nAction Input: ARGUMENTS", True),
    "function_calling": Writing(
        '<function_calls>{"tool_name": "NAME", "parameters": ARGUMENTS}</function_calls>',
        '<function_calls>{"parameters": ARGUMENTS}</function_calls>',
        True,
    ),
    "hermes": Writing(
        '<tool_call>\n{"name": "NAME", "arguments": ARGUMENTS}\n</tool_call>',
        '<tool_call>\n{"arguments": ARGUMENTS}\n</tool_call>',
        True,
    ),
}
NAMES = list(WRITINGS)

Found = list[tuple[str, dict[str, Any]] | None]
Q, R = '{"q": 1}', '{"r": 2}'
SEE_R = ("see", {"r": 2})


def look(arguments: str) -> Callable[[Writing], str]:
    return lambda writing: f"I look. {writing.call('look', arguments)} So be it."


def around(before: str, after: str = "") -> Callable[[Writing], str]:
    return lambda writing: before + writing.call("look", Q) + after


def two(between: str, first: str = Q) -> Callable[[Writing], str]:
    return lambda writing: writing.call("look", first) + between + writing.call("see", R)


def fenced(head: str) -> Callable[[Writing], str]:
    return lambda writing: f"{head}\n{writing.call('look', Q)}\n```\n"


# what the text is -> how it is written, and the calls in it (None: one that cannot be run)
TABLE: dict[str, tuple[Callable[[Writing], str], Found]] = {
    "clean": (look('{"q": 1}'), [LOOK]),
    "no call": (lambda writing: "I know: it is {1, 2}.", []),
    "nested braces": (look('{"a": {"b": {"c": {}}}, "d": [{}]}'), [("look", {"a": {"b": {"c": {}}}, "d": [{}]})]),
    "braces in strings": (look('{"q": "}{ }} {"}'), [("look", {"q": "}{ }} {"})]),
    "escaped quotes": (look(r'{"q": "a\"}\\"}'), [("look", {"q": 'a"}\\'})]),
    "several lines": (look('{\n  "q":\n\n    1\n}'), [LOOK]),
    "line ends as on Windows": (lambda writing: around("So.\n", "\n")(writing).replace("\n", "\r\n"), [LOOK]),
    "empty arguments": (look("{}"), [("look", {})]),
    "large argument": (look('{"q": "' + "long and } " * 20 + '"}'), [("look", {"q": "long and } " * 20})]),
    "combining marks": (around("e\u0301", "\u0308"), [LOOK]),
    "exotic line ends in a string": (look('{"q": "a\u2028b\x85c"}'), [("look", {"q": "a\u2028b\x85c"})]),
    "escaped surrogate pair": (look(r'{"q": "\ud83d\ude00"}'), [("look", {"q": "😀"})]),
    "half a surrogate pair": (look(r'{"q": "\ud83d"}'), [None]),
    "malformed": (look('{"q": }'), [None]),
    "not a number": (look('{"q": NaN}'), [None]),
    "two calls": (two("\n"), [LOOK, SEE_R]),
    "malformed, then sound": (two("\n", first='{"q" 1}'), [None, SEE_R]),
    "braces in prose": (around("So {1, 2} and \\frac{a}{b}: "), [LOOK]),
    "an open brace in prose": (around("We begin with { and\n"), [LOOK]),
    "unfinished": (lambda writing: (text := around("So ")(writing))[: text.rindex("}")], []),
    "unfinished in a string": (lambda writing: (text := look('{"q": "a}"}')(writing))[: text.rindex('"')], []),
    "after a fence": (around("```\nx\n```\n"), [LOOK]),
}


def table(name: str) -> Iterator[tuple[str, str, Found]]:
    """The texts of a call format, with what differs from one to the other."""
    writing = WRITINGS[name]
    for case, (write, calls) in TABLE.items():
        yield case, write(writing), calls
    if_fenced: Found = [LOOK] if name != "in_thought" else []
    yield "fenced", fenced("```")(writing), if_fenced
    yield "fenced, with its language", fenced("```json")(writing), if_fenced
    yield "no name", writing.nameless(Q), [None] if writing.nameless_is_call else []
    before, after = writing.mute
    call, see = around("")(writing), writing.call("see", R)
    yield "where nothing is a call", f"{before}{call}{after} {see}", [SEE_R]
    yield "a tag inside of a call", look(f'{{"q": "{before}{after}"}}')(writing) + see, [SEE_R]


def found(calls: list[ParsedAction]) -> Found:
    return [(str(call.tool_name), dict(call.parameters)) if call.success else None for call in calls]


def follow(name: str, pieces: list[str]) -> tuple[list[ParsedAction], list[bool]]:
    scanner = find_call_format(name).scanner(in_thought=WRITINGS[name].begins_in_thought)
    stops = [scanner.feed(piece) for piece in pieces]
    return scanner.take(), stops


def cut(text: str, places: list[int]) -> list[str]:
    return [text[start:end] for start, end in pairwise([0, *sorted(places), len(text)])]


def random_places(rng: random.Random, text: str) -> list[int]:
    return rng.choices(range(len(text) + 1), k=rng.randint(2, 12))


def check_splits(name: str, text: str, splits: list[list[int]]) -> list[ParsedAction]:
    """Every split gives the same calls and stops in the piece that holds the last character of one."""
    calls, stops = follow(name, list(text))
    for places in splits:
        pieces = cut(text, places)
        ends = [0, *sorted(places), len(text)]
        assert follow(name, pieces) == (calls, [any(stops[a:b]) for a, b in pairwise(ends)]), pieces
    assert sum(stops) == (len(calls) if find_call_format(name).stops_at_call else 0)
    return calls


# -- the table -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_calls_are_found_however_the_text_is_split_and_what_is_malformed_says_why_in_a_line(name: str) -> None:
    for case, text, calls in table(name):
        rng = random.Random(case)
        splits = [[place] for place in range(len(text) + 1)] + [random_places(rng, text) for _ in range(100)]
        read = check_splits(name, text, splits)
        assert read == find_call_format(name).parse_all(text) and found(read) == calls, case
        for call in read:
            assert (call.error is None) == call.success, case
            assert call.success or (call.parameters == {} and 10 < len(call.error or "") < 150), case
            assert "\n" not in (call.error or "") and call.raw_text and call.raw_text in text


@pytest.mark.parametrize("name", NAMES)
def test_a_call_that_is_cut_off_anywhere_is_none(name: str) -> None:
    text = WRITINGS[name].call("look", '{"q": {"r": "}"}}')
    assert len(find_call_format(name).parse_all(text)) == 1
    for end in range(len(text)):
        assert find_call_format(name).parse_all(text[:end]) == []


@pytest.mark.parametrize("name", NAMES)
def test_huge_arguments_are_read_and_those_nested_beyond_reading_are_malformed(name: str) -> None:
    words = '{"}\\ ' * 10_000
    text = find_call_format(name).render_call("look", {"q": words, "n": [list(range(1000))]})
    calls, _ = follow(name, cut(text, [1000, 20_000, 20_001]))
    assert found(calls) == [("look", {"q": words, "n": [list(range(1000))]})]
    (call,) = find_call_format(name).parse_all(WRITINGS[name].call("look", '{"a":' * 20_000 + "1" + "}" * 20_000))
    assert call.error == "bad JSON: nested too deeply"


# -- random texts ----------------------------------------------------------------------------------------------

SCRAPS = ["{", "}", '"', "\\", ":", ",", "[", "]", "`", "```", "```json\n", "~~~", "\n", "\n\n", "\r\n", " ", "\t", "a", "é",
          "😀", "\u2028", "1", "null", '{"q": 1}', '{"q": "}"}', "{}", "<", ">", "</", "<think>", "</think>", "think>",
          "Thought: so\n", "Final Answer: no", "'", "# ", "**", "x_result:", "#look_result:"]  # fmt: skip
OWN_SCRAPS = {
    "in_thought": ["#call", "#call look ", "#", "look", '#call look {"q": 1}', "#look_error: "],
    "json": ['"tool"', '{"tool":', '"tool": "look"', "tool:", "{'tool':", '"parameters": ', '{"tool": "look"}'],
    "react": ["\nAction:", "Action: look\n", "\nAction Input:", "Action Input: ", "\nObservation: ", "\nInput:",
              '\nAction: look\nAction Input: {"q": 1}', "Input"],
    "function_calling": ["<function_calls>", "</function_calls>", '{"tool_name": "look", "parameters": {}}',
                         "function_calls>", '"tool_name":', '"parameters":'],
    "hermes": ["<tool_call>", "</tool_call>", '{"name": "look", "arguments": {}}', "tool_call>", '"name":',
               '"arguments":', "<tool_call>\n"],
}  # fmt: skip
CLOSING = '"}]}\n"}\n```\n</tool_call></function_calls> {"q": 1}'
"""Closes everything that may be open."""


def random_text(rng: random.Random, name: str) -> str:
    scraps = [*rng.choices(SCRAPS, k=12), *rng.choices(OWN_SCRAPS[name], k=4), WRITINGS[name].call("look", Q)]
    return "".join(rng.choices(scraps, k=rng.randint(1, 16)))


def random_value(rng: random.Random, name: str, depth: int = 0) -> Any:
    kind = rng.randrange(9 if depth < 3 else 7)
    if kind == 7:
        return [random_value(rng, name, depth + 1) for _ in range(rng.randrange(3))]
    if kind == 8:
        return {random_string(rng, name): random_value(rng, name, depth + 1) for _ in range(rng.randrange(3))}
    scalars = [None, True, rng.randint(-(10**20), 10**20), rng.random() * 1e300, rng.choice(string.printable)]
    return random_string(rng, name) if kind >= 5 else scalars[kind]


def random_string(rng: random.Random, name: str) -> str:
    scraps = [*SCRAPS, *OWN_SCRAPS[name], WRITINGS[name].call("look", Q), chr(rng.randrange(0xD800))]
    return "".join(rng.choices(scraps, k=rng.randrange(4)))


@pytest.mark.parametrize("name", NAMES)
def test_random_texts_raise_nothing_however_they_are_split(name: str) -> None:
    rng, call_format = random.Random(f"{name} 0"), find_call_format(name)
    num_calls = 0
    for _ in range(1000):
        text = random_text(rng, name)
        calls = check_splits(name, text, [[], random_places(rng, text)])
        num_calls += len(calls)
        assert all(call.raw_text in text for call in calls)
        in_thought = WRITINGS[name].begins_in_thought
        assert call_format.parse_all(text, in_thought=in_thought) == calls

        scanner = call_format.scanner(in_thought=in_thought)
        scanner.feed(text)
        scanner.take()
        scanner.resume()
        assert not scanner.feed(CLOSING)
        assert scanner.take() == [], text
    assert num_calls > 250


@pytest.mark.parametrize("name", NAMES)
def test_random_arguments_are_read_back_and_results_contain_no_call(name: str) -> None:
    """A rendered call is parsed back, and a rendered result contains no call, even if the whole text is parsed again.

    Without think tags: they count everywhere, and a scanner never gets the text of a result.
    """
    rng, call_format = random.Random(f"{name} 0"), find_call_format(name)
    for _ in range(1000):
        parameters = {random_string(rng, name): random_value(rng, name) for _ in range(rng.randrange(4))}
        written = call_format.render_call("look-at.it_2", parameters)
        text = f"So:\n{written}\nand\n{call_format.render_call('see', {'r': 2})}"
        assert found(call_format.parse_all(text)) == [("look-at.it_2", parameters), SEE_R]

        words = (random_string(rng, name) + text + random_string(rng, name)).replace("think>", "")
        rendered = call_format.render_results([event(words), event(words)])
        if call_format.stops_at_call:
            assert found(call_format.parse_all(f"{written}{rendered}")) == [("look-at.it_2", parameters)]
        else:
            assert rendered == f"{words}\n{words}"


@pytest.mark.parametrize("name", NAMES)
def test_after_a_result_only_what_the_policy_goes_on_with_is_read(name: str) -> None:
    """As the rollout loop does: take, the result into the context, resume."""
    writing, call_format = WRITINGS[name], find_call_format(name)
    call, rest = writing.call("look", Q), '{"tool": "x", "name": "x", "tool_name": "x", "arguments": {}'
    for left_open in ["", *OWN_SCRAPS[name], rest, f"<tool_call>{rest}", "```\n", "`", "\nAction: x\nAction Input: {"]:
        scanner = call_format.scanner(in_thought=writing.begins_in_thought)
        assert scanner.feed(call + left_open) is call_format.stops_at_call
        assert LOOK in found(scanner.take())
        scanner.resume()
        assert not scanner.feed(CLOSING) and scanner.take() == []
        scanner.resume()
        scanner.feed(f"So. {call}")
        assert found(scanner.take()) == [LOOK], left_open


# -- cost ------------------------------------------------------------------------------------------------------


def work(name: str, text: str) -> int:
    """Lines of the call formats' code that run while a text is read, character by character."""
    num_lines = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal num_lines
        if "/call_formats/" not in frame.f_code.co_filename:
            return None
        num_lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        follow(name, list(text))
    finally:
        sys.settrace(before)
    return num_lines


@pytest.mark.parametrize("name", NAMES)
def test_twice_the_text_is_twice_the_work(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    num_loaded = 0

    def counting(read: Callable[[str], Any]) -> Callable[[str], Any]:
        def count_and_read(text: str) -> Any:
            nonlocal num_loaded
            num_loaded += len(text)
            return read(text)

        return count_and_read

    for module in ("json_object", "streaming"):
        where = sys.modules[f"midthought.tools.call_formats.{module}"]
        for reader in {"load_object", "load_values"} & vars(where).keys():
            monkeypatch.setattr(where, reader, counting(getattr(where, reader)))
    call = WRITINGS[name].call("look", Q)
    opened = [call[: call.index("1")], call[: call.index("{") + 1], '{"tool": "x", "parameters": ', '{"a":']
    for scrap in [call, *opened, *OWN_SCRAPS[name], "{", '"', "`", "```\n", "<", "a", "\n", "Action: a: "]:
        num_loaded = 0
        text = scrap * (1 + 200 // len(scrap))
        closed = text + "}" * text.count("{")
        assert work(name, text * 2) <= 2.1 * work(name, text) + 100, scrap
        assert work(name, closed) <= 2.1 * work(name, text) + 1000, scrap
        assert num_loaded <= 5 * len(closed), scrap


# -- thoughts -------------------------------------------------------------------------------------------------

TAGS = ("<think>", "</think>")
CALL = "#call look {}"


@pytest.mark.parametrize("tags", [TAGS, ("aab", "abb"), ("<<<a", "<b")])
def test_tags_are_found_as_a_plain_search_finds_them(tags: tuple[str, str]) -> None:
    rng = random.Random(0)
    num_found = 0
    for _ in range(500):
        scanner = InThoughtFormat("inside", *tags).scanner(in_thought=False)
        text, begin, in_thought = "".join(rng.choices([*tags, *"".join(tags), "x"], k=30)), 0, False
        for end, character in enumerate(text, 1):
            scanner.feed(character)
            if found := next((tag for tag in tags if text[begin:end].endswith(tag)), None):
                begin, num_found, in_thought = end, num_found + 1, found == tags[0]
        assert scanner.feed(f" {CALL}") == in_thought, text
    assert num_found > 500


def test_a_tag_that_only_began_is_forgotten_after_a_result() -> None:
    scanner = InThoughtFormat().scanner(in_thought=False)
    scanner.feed("<thi")
    scanner.resume()
    assert [scanner.feed(f"{text} {CALL}") for text in ("nk>", "<think>")] == [False, True]


@pytest.mark.parametrize(
    ("text", "begins"),
    [("so</think>", True), ("</think><think>", True), ("<think></think>", False), ("<think>", False), ("so", False)],
)
def test_the_first_tag_shows_whether_the_prompt_opened_the_thought(text: str, begins: bool) -> None:
    assert begins_in_thought(text, TAGS) is begins


# -- what a system prompt says ---------------------------------------------------------------------------------

LOOKING = ToolDefinition(
    "look",
    "Looks something up.",
    [
        ToolParameter("query", "string", "What to look for."),
        ToolParameter("k", "integer", "How many.", required=False, default=3),
        ToolParameter("kind", "string", "Wo überall.", enum=["Bücher", "Filme"]),
        ToolParameter("words", "array", "What to count.", schema={"type": "array", "items": {"type": "string"}}),
        ToolParameter("mode", "string", "How.", schema={"enum": ["deep", None]}),
    ],
)
ROOMS = ToolDefinition("rooms", "Names all rooms.")


def test_a_tool_is_described_in_lines() -> None:
    assert describe_tools([LOOKING, ROOMS]).splitlines() == [
        "Tools:",
        "- look: Looks something up.",
        "  - query (string): What to look for.",
        "  - k (integer, optional, default 3): How many.",
        '  - kind (string, one of "Bücher", "Filme"): Wo überall.',
        '  - words ({"type": "array", "items": {"type": "string"}}): What to count.',
        '  - mode (string, one of "deep", null): How.',
        "- rooms: Names all rooms.",
    ]


def test_an_example_holds_what_is_required_each_with_a_value_of_its_kind() -> None:
    kinds = ["string", "integer", "number", "boolean", "array", "object"]
    values = example_parameters(ToolDefinition("x", "", [ToolParameter(kind, kind, "") for kind in kinds]))
    assert list(values.values()) == ["...", 1, 1.5, True, [], {}]


@pytest.mark.parametrize("name", NAMES)
def test_the_instructions_name_every_tool_and_show_a_call_that_is_one(name: str) -> None:
    call_format = find_call_format(name)
    text = call_format.instructions([LOOKING, ROOMS])
    for word in ("look", "Looks something up.", "query", "What to look for.", "kind", "Filme", "k", "3", "rooms"):
        assert word in text
    arguments = {"query": "...", "kind": "Bücher", "words": [], "mode": "deep"}
    assert example_parameters(LOOKING) == arguments
    example = call_format.render_call("look", arguments)
    assert f"\n{example}\n" in text
    assert found(call_format.parse_all(f"\n{example}\n")) == [("look", arguments)]
    assert call_format.render_call("rooms", {}) in call_format.instructions([ROOMS])
    assert call_format.instructions([]) == ""


# -- by name ---------------------------------------------------------------------------------------------------


def test_call_formats_are_found_by_name_and_an_unknown_name_names_the_near_ones() -> None:
    assert call_format_names() == NAMES
    assert [find_call_format(name).name for name in NAMES] == NAMES
    assert str(find_call_format("in_thought")) == 'in_thought: #call NAME {"ARGUMENT": "VALUE"}'
    told = r"unknown call format 'hermess'\. Did you mean 'hermes'\? Known: .*react.*Give your own as an object"
    with pytest.raises(SettingsError, match=told):
        find_call_format("hermess")
