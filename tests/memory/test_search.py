import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midthought.errors import SettingsError
from midthought.memory.search import Hit, fuse, spaced_words, words_in_a_row
from midthought.memory.tool import NOTHING_FOUND, MemoryRetrievalTool, format_chunk


def hit(name: str, text: str = "other words") -> Hit:
    return Hit(name, "E", "Ann", text, "00:00:00", 0.0)


def test_the_longest_run_of_words_in_order_is_counted():
    assert words_in_a_row("A copper hand", "the single copper hand, a hand") == (2, 3)
    assert words_in_a_row("“Copper HAND!”", "a copper—hand") == (2, 2)
    assert words_in_a_row("hand copper", "copper hand") == (1, 2)
    assert words_in_a_row("and", "hand") == words_in_a_row("x", "") == (0, 1)
    assert words_in_a_row("?!", "hand") == (0, 0)
    assert spaced_words("Café don't 3rd_x") == spaced_words("“café—don’t” 3RD…X\u00a0") == " cafe don t 3rd x "
    assert words_in_a_row("灯塔", "王芳说，灯塔的守护者") == (2, 2)
    assert spaced_words("") == spaced_words("…?") == " "


@given(st.lists(st.sampled_from("abc"), max_size=7), st.lists(st.sampled_from("abc"), max_size=9))
def test_the_share_is_what_comparing_all_runs_gives(query, text):
    runs = {tuple(text[start:end]) for start in range(len(text)) for end in range(start + 1, len(text) + 1)}
    longest = max(
        (end - start for start in range(len(query)) for end in range(start, len(query) + 1) if tuple(query[start:end]) in runs),
        default=0,
    )  # fmt: skip
    assert words_in_a_row(" ".join(query), " ".join(text)) == (longest, len(query))


@given(st.text(alphabet="aZé’—_ 3б字\u0301\n", max_size=30))
def test_words_are_compared_as_unicode_without_accents(text):
    bare = "".join(each for each in unicodedata.normalize("NFKD", text) if not unicodedata.combining(each))
    assert spaced_words(text).split() == re.sub(r"[\W_]+", " ", bare.casefold().replace("字", " 字 ")).split()
    assert re.fullmatch(r" ([^\W_]+ )*", spaced_words(text))


def test_a_quote_comes_in_the_order_of_words_and_a_question_in_that_of_meaning():
    by_words = [hit("a", "the copper hand of it"), hit("b"), hit("c")]
    by_meaning = [hit("c"), hit("b"), hit("d")]
    quote = fuse("copper hand", by_words, by_meaning)
    assert [each.chunk_id for each in quote] == ["a", "b", "c", "d"]
    assert quote[0].score == pytest.approx(0.98 / 21)
    question = fuse("which metal points at the hour", by_words, by_meaning)
    assert [each.chunk_id for each in question][:2] == ["c", "b"]
    weight = 1 / 36  # one of six words, "the", squared
    assert question[0].score == pytest.approx(weight / 23 + (1 - weight) / 21)
    for one_way in (fuse("x", [], by_meaning), fuse("x", by_meaning, [])):
        assert [each.chunk_id for each in one_way] == ["c", "b", "d"]
    assert fuse("x", [], []) == []


@pytest.mark.parametrize(("num_in_a_row", "weight"), [(3, (3 / 12) ** 2), (4, 3 / 4), (5, 15 / 16), (6, 0.98)])
def test_a_question_that_holds_a_quote_goes_by_its_words_the_longer_that_is(num_in_a_row, weight):
    quote = [f"q{number}" for number in range(num_in_a_row)]
    query = " ".join([*quote, *(f"other{number}" for number in range(12 - num_in_a_row))])
    found = {each.chunk_id: each.score for each in fuse(query, [hit("a", " ".join(quote))], [hit("b")])}
    assert found == pytest.approx({"a": weight / 21, "b": (1 - weight) / 21})


# -- the tool --------------------------------------------------------------------------------------------------------


def test_the_result_is_one_numbered_line_for_each_chunk(store, chunks):
    output = MemoryRetrievalTool(store, mode="full_text").execute(query="the wheel, in the café, and a mitten", k=2)
    assert output.text == f"[1] {format_chunk(chunks[3])}\n[2] {format_chunk(chunks[2])}"
    assert output.metadata == {"chunk_ids": ["tide_3", "tide_2"]}
    output = MemoryRetrievalTool(store, mode="full_text").execute(query="xylophone")
    assert (output.text, output.metadata) == (NOTHING_FOUND, {"chunk_ids": []})


def test_k_is_the_constructors_unless_the_call_says_otherwise(store):
    tool = MemoryRetrievalTool(store, k=2, mode="vector")
    assert len(tool.execute(query="yes").metadata["chunk_ids"]) == 2
    assert len(tool.execute(query="yes", k=4).metadata["chunk_ids"]) == 4
    schema = tool.definition.parameters_schema()
    assert schema["required"] == ["query"] and schema["properties"]["k"]["default"] == 2
    for parameters, words in (({"query": " "}, "empty"), ({"query": "x", "k": 11}, "1 to 10")):
        with pytest.raises(ValueError, match=words):
            tool.execute(**parameters)
    with pytest.raises(SettingsError, match="from 1 to 10, not 0"):
        MemoryRetrievalTool(store, k=0)
