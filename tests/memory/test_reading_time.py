"""Many different labels are read in linear time."""

import time
from itertools import islice, product

from midthought.memory.formats.label_doubts import doubtful_labels
from midthought.memory.formats.line_candidates import Layout, Row
from midthought.memory.formats.line_heads import Head
from midthought.memory.formats.notations import notation_of
from midthought.memory.formats.titled_names import titled_names

HAN = [chr(code) for code in range(0x4E00, 0x4E00 + 200)]
TITLES = {"Ann Lee": "Chief Executive Officer", "Bob Reece": "Chief Financial Officer"}


def test_labels_in_a_script_without_blanks():
    labels = ["".join(signs) for signs in islice(product(HAN, repeat=3), 6000)]
    pairs = [label for number in range(0, len(labels), 2) for label in labels[number : number + 2] * 2]
    rows = [
        Row(number, f"【{label}】{'钟声在山谷里响了很久没有人来' * 40}。", False) for number, label in enumerate(pairs)
    ]
    began = time.process_time()
    assert notation_of(rows).num_names == len(labels)
    assert time.process_time() - began < 20  # a few seconds; a search for each label takes a minute


def test_labels_before_a_colon_among_printed_names_with_titles():
    printed = [
        text for name, title in TITLES.items() for text in (name, title, "We cast the bell and sold it.")
    ] * 16_000
    inline = [f"{''.join(signs).title()}: We like it." for signs in islice(product("abcdefghij", repeat=5), 40_000)]
    texts = [*printed, *inline]
    began = time.process_time()
    assert titled_names(texts, [text if text in TITLES else None for text in texts])
    assert time.process_time() - began < 10  # a second; a set of the heads for each label takes minutes


def test_labels_that_occur_once():
    names = ["".join(signs).title() for signs in islice(product("abcdefghij", repeat=5), 60_000)]
    said = "The bell of the harbour rang at three."
    heads = {place: Head("name:", name, None, said) for place, name in enumerate(names)}
    heads[len(names)] = Head("name:", names[0], None, "I had wound it on that day.")
    rows = [Row(place, f"{head.name}: {head.rest}", True) for place, head in heads.items()]
    began = time.process_time()
    assert doubtful_labels(Layout("name:", heads), rows) == []
    assert time.process_time() - began < 15  # a second; a minimum of all heads for each label takes a minute
