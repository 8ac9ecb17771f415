"""Which statements and names questions by rules are about: whole clauses, whole names, nothing vague or quoted."""

from dataclasses import replace
from importlib import resources

import pytest

from midthought.memory.build import chunk_all
from midthought.memory.chunks import Chunk
from midthought.memory.rule_questions.forms import compare_drafts, names_in
from midthought.memory.rule_questions.generate import listener_questions
from midthought.memory.rule_questions.listener import Listener
from midthought.memory.rule_questions.speech import spoken_turns
from midthought.memory.rule_questions.statements import statement_text
from midthought.memory.rule_questions.vocabulary import Vocabulary
from midthought.memory.transcripts import read_transcripts


@pytest.fixture(scope="module")
def memory() -> list[Chunk]:
    return chunk_all(read_transcripts(str(resources.files("midthought.recipes.podcast") / "sample")).require_all())


@pytest.mark.parametrize(
    "said",
    [
        "We have melted the old bell of Lisbon, we will then carry the bronze down to the harbour.",
        "The foundry of Lisbon was closed all winter, it never had enough coal for the bronze.",
        "The author of the bell book, he's very public in his discontent with the harbour.",
        "A bell book with Lisbon, for example, that my brother was able to publish in winter.",
        "The bell founders of Lisbon, who are melting how much bronze they're given by the harbour.",
        "Melting that bronze in winter, to carry and to sell what the foundry of Lisbon is making.",
        "My brother was really passionate about melting bronze in Lisbon, and Matthias sold.",
        "The majority of the bell founders of Lisbon and their brothers are not.",
        "I have a very, kind of mostly bronze bell in the foundry of Lisbon.",
        "Oh my God, my brother gave the foundry of Lisbon hope and bronze.",
        "The bronze of Lisbon, of course, being the harbour and the winter of the foundry.",
        "The old bell of Lisbon, which was run out of some foundry in the harbour.",
        "The combination of bronze and coal of Lisbon, what it did two winters later.",
        "The importance of how much bronze the foundry of Lisbon is putting into bells.",
        "A hundred thousand bells of Lisbon in the five and a half years I have been there.",
        "We melted the old bell of Lisbon.We were one of two foundries with bronze.",
        "We had the old bell of Lisbon and we had to frantically.",
        "The bells of Lisbon are either melted by hand or automated by.",
        "My brother and the foundry of Lisbon built that in a try to save bronze.",
    ],
)
def test_what_is_not_one_whole_main_clause_is_no_statement(memory, said):
    vocabulary = Vocabulary(
        [*spoken_turns(memory), *spoken_turns([Chunk("e_0", "E", "e", "Bo", "So Lisbon, Matthias.", "", 0)])]
    )
    for whole in (
        "I have carried the bronze of Lisbon down to the harbour.",
        "The bell that I carried down to the harbour of Lisbon was made of bronze.",
        "The years I have been in Lisbon were good for the bells.",
        "My brother said that in winter the foundry of Lisbon melted old bells.",
        "My brother argued that in winter the foundry of Lisbon melted old bells.",
    ):
        assert statement_text(whole, vocabulary)
    assert statement_text(said, vocabulary) is None


@pytest.mark.parametrize(
    ("said", "is_specific"),
    [
        ("I can always improve the melting of old bells with care", False),  # nothing in particular
        ("I can always improve the melting of old bells in Lisbon", True),
        ("I use charcoal, beeswax and copper tongs for the melting of bronze bells", True),
        ("I can always improve the melting of old bells on Monday", False),
        ("I can always improve the APIs of old melting bells", False),
    ],
)
def test_a_statement_with_a_name_or_many_words_of_content_is_specific(memory, said, is_specific):
    own = [
        Chunk("e_0", "E", "e", "Ann", f"{said}.", "00:00:00", 0),
        Chunk("e_1", "E", "e", "Bo", "So Lisbon, the APIs, Monday.", "00:00:00", 1),
    ]
    asked = Listener(spoken_turns([*memory, *own]), spoken_turns([*memory, *own]), "0")
    [statement] = [each for each in asked.statements if each.stem == "e"]
    assert statement.is_specific == is_specific


def test_questions_about_vague_statements_are_only_made_if_many_are_wanted(memory):
    turns = spoken_turns(memory)
    vague = [each.reported for each in Listener(turns, turns, "0").statements if not each.is_specific]
    few, all_of_them = (
        [task.prompt for task in listener_questions(memory, number, kinds=["speaker", "unanswerable"])]
        for number in (100, 5000)
    )
    assert len(few) > 90 and not [prompt for prompt in few if any(said in prompt for said in vague)]
    assert [prompt for prompt in all_of_them if any(said in prompt for said in vague)]


def test_names_are_whole_and_abbreviations_that_everybody_uses_are_none(memory):
    text = "So the Super Micro board, Dr. Pepper, Emacs, Vim and the CEO of New Quillon use APIs, IPO-ed in the U.S. or Micro."
    vocabulary = Vocabulary(spoken_turns([*memory, Chunk("e_0", "E", "e", "Ann", text, "00:00:00", 0)]))
    assert names_in(text, vocabulary) == ["Super Micro", "Dr Pepper", "Emacs", "Vim", "New Quillon", "Micro"]


def test_a_topic_is_compared_only_if_no_longer_name_or_derived_word_has_it(memory):
    def topics(said: str) -> set[str]:
        lines = (
            said,
            "I saw Zanzibar. He sold Quillon. I like Vexo. The Oberlin is far. Me too in Quarry Lane, Trelawny Dunmore.",
        )
        own = [Chunk(f"e_{n}", "E", "e", ("Ann", "Bo")[n], f"So {line}", "00:00:00", n) for n, line in enumerate(lines)]
        turns = spoken_turns([*memory, *own])
        return {draft.subject for draft in compare_drafts(Listener(turns, turns, "0")) if draft.stem == "e"}

    found = topics(
        "we saw Zanzibar. A Quillonist sold a Quillon. They like Super Vexo and Vexo. Her Oberlin-13 is an Oberlin."
    )
    assert found == {"Zanzibar"}
    assert topics("they met Trelawny, Dunmore and others in Quarry Lane.") == {"Quarry Lane"}


@pytest.mark.parametrize(
    ("said", "is_asked"),
    [
        ("My brother Matthias told us the rest. I have repaired pianos for twenty-six years.", True),
        (
            'My brother Matthias wrote: "I am well. I have repaired pianos for twenty-six years. Bye." That was all.',
            False,
        ),
        (
            "My brother Matthias wrote: “I am well. I have repaired pianos for twenty-six years. Bye.” That was all.",
            False,
        ),
        ('My brother Matthias wrote "I have repaired pianos for twenty-six years" and left.', False),
        ('A bell of 12" rang. I have repaired pianos for twenty-six years.', True),
        ('My brother wrote "so. It rained. I have repaired pianos for twenty-six years.', True),
        ("My brother wrote “so”. I have repaired pianos for twenty-six years.", True),
        ("I have repaired pianos for twenty-six years if nobody from the harbour was looking.", False),
    ],
)
def test_neither_what_a_speaker_quotes_nor_half_of_a_condition_is_asked_about(memory, said, is_asked):
    turns = spoken_turns([*memory, Chunk("e_0", "E", "e", "Ann", said, "00:00:00", 0)])
    asked = Listener(turns, turns, "0")
    assert any(gap.statement.stem == "e" and gap.answer == "twenty-six" for gap in asked.gaps) == is_asked


def test_a_label_that_is_no_person_is_not_asked_about(memory):
    for label, is_person in (
        ("Me a year ago", False),
        ("will", True),
        ("Speaker a", True),
        ("Duke of the North", True),
    ):
        renamed = [replace(chunk, speaker=label) for chunk in memory if chunk.stem == memory[0].stem]
        assert bool(Listener(spoken_turns(renamed), spoken_turns(renamed), "0").statements) == is_person


def test_a_statement_that_names_its_speaker_in_another_spelling_is_not_asked_about(memory):
    said = "The foundry of Lisbon has melted Bjorn's bronze bells down at the harbour all winter."
    own = [Chunk("e_0", "E", "e", "Björn Lee", said, "00:00:00", 0)]
    turns = spoken_turns([*memory, *own])
    assert not [each for each in Listener(turns, turns, "0").statements if each.stem == "e"]
