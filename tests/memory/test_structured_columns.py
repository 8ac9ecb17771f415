"""JSON with one list per column, with a text of an inner object, or with a text under another key."""

import json

import pytest
from read_texts import said
from test_reading_signals import LINES

from midthought.memory.turns import UNKNOWN_SPEAKER


def test_two_entries_whose_only_texts_are_under_a_key_that_says_so(read):
    entries = [{"subtitle": text, "duration": 4.5} for text in LINES[:2]]
    transcript = read(json.dumps(entries), "a.json")
    assert said(transcript) == [(UNKNOWN_SPEAKER, " ".join(LINES[:2]))] and not transcript.is_doubtful


@pytest.mark.parametrize(
    "spoken",
    [" ".join(LINES), "我们今天来聊一聊这家公司它去年才成立总部不在这里专门提供服务目标就是让工作自动完成" * 3],
)
def test_a_transcript_under_a_key_of_an_inner_object(read, spoken):
    notes = [
        {"type": "note", "message": "few terms, and fit for every listener"},
        {"type": "note", "message": "short and dense"},
    ]
    document = {"success": True, "data": {"transcript": spoken, "summary": "A talk about bells.", "insights": notes}}
    assert said(read(json.dumps(document, ensure_ascii=False), "a.json")) == [(UNKNOWN_SPEAKER, spoken)]


@pytest.mark.parametrize("parts", [1, 2])
def test_one_list_per_column(read, parts):
    codes = list("ABACABAC")
    texts, labels = ([each[:4], each[4:]] if parts > 1 else each for each in (LINES, codes))
    transcript = read(json.dumps({"utterance_groups": texts, "utterance_speakers": labels}), "a.json")
    assert said(transcript) == list(zip(codes, LINES, strict=True)) and not transcript.is_doubtful


def test_a_table_of_labels_and_single_words(read):
    rows = [f"0:0:{n}.0,0:0:{n}.82,Person {name},Hello\n" for n, name in enumerate("ABC")]
    assert said(read("".join(rows), "a.csv")) == [(f"Person {name}", "Hello") for name in "ABC"]


def test_texts_under_numbered_keys_are_read_in_order(read):
    document = {f"Slide{n}": f"{words} And that was all there was to say." for n, words in enumerate(LINES, 1)}
    transcript = read(json.dumps(dict(reversed(document.items()))), "a.json")
    assert said(transcript) == [(UNKNOWN_SPEAKER, " ".join(document.values()))] and transcript.is_doubtful


@pytest.mark.parametrize("key", ["passage", "Slide1"])
def test_short_texts_under_numbered_keys_do_not_displace_a_long_one(read, key):
    document = {key: " ".join(LINES * 2), "h1": "a", "h2": "b", "h3": "c"}
    assert said(read(json.dumps(document), "a.json")) == [(UNKNOWN_SPEAKER, document[key])]
