"""Questions by rules: forms on sentences worked by hand, and all questions of the sample episodes against their evidence."""

import itertools
import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from importlib import resources

import pytest

from midthought.data.abstention import NO_ANSWER, abstains, is_answerable
from midthought.errors import SettingsError
from midthought.evaluation.blind_baseline import MAX_ADVANTAGE, blind_scores
from midthought.memory.build import chunk_all
from midthought.memory.chunks import Chunk
from midthought.memory.rule_questions.forms import MAX_WORDS_SINCE_TIME
from midthought.memory.rule_questions.gaps import blank_of, gaps_of
from midthought.memory.rule_questions.generate import ALL_KINDS, listener_questions
from midthought.memory.rule_questions.listener import Draft, Listener, StatementIndex
from midthought.memory.rule_questions.reported_speech import reported_speech
from midthought.memory.rule_questions.speech import Sentence, plain_words, spoken_turns
from midthought.memory.rule_questions.statements import (
    Statement,
    fine_clauses_of,
    statement_text,
)
from midthought.memory.rule_questions.unanswerable import unanswerable_drafts
from midthought.memory.rule_questions.vocabulary import Vocabulary
from midthought.memory.rule_questions.wordings import FRAMES
from midthought.memory.splitting import Chunking
from midthought.memory.tool import format_chunk
from midthought.memory.transcripts import Transcript, read_transcripts
from midthought.types import Task

SAMPLE = str(resources.files("midthought.recipes.podcast") / "sample")


@pytest.fixture(scope="module")
def sample() -> tuple[Transcript, ...]:
    return read_transcripts(SAMPLE).require_all()


@pytest.fixture(scope="module")
def memory(sample) -> list[Chunk]:
    return chunk_all(sample)


@pytest.fixture(scope="module")
def vocabulary(memory) -> Vocabulary:
    return Vocabulary(spoken_turns(memory))


@pytest.fixture(scope="module")
def tasks(memory) -> list[Task]:
    return listener_questions(memory, 180, seed=3)


def of_kind(tasks: list[Task], kind: str) -> list[Task]:
    return [task for task in tasks if task.labels["kind"] == kind]


@pytest.mark.parametrize(
    ("said", "reported"),
    [
        ("I've put up two hundred bells in my life.", "they have put up two hundred bells in their life"),
        ("Well, I was a night nurse on the island for years.", "they were a night nurse on the island for years"),
        ("So I think we lost eighty kilos of bronze in April.", "they lost eighty kilos of bronze in April"),
        ("The bell is tuned to the pitch of the fridge.", "the bell is tuned to the pitch of the fridge"),
    ],
)
def test_a_sentence_becomes_reported_speech(vocabulary, said, reported):
    text = statement_text(said, vocabulary)
    assert text is not None and reported_speech(text, vocabulary) == reported


@pytest.mark.parametrize(
    "said",
    [
        "It was delayed nineteen days by the eggs of the hen.",  # what is "it"?
        "And that is why the bell was hung so low in the yard.",
        "She wrote a letter to the foundry in the winter.",
        "You put the clapper into the bell before the frost.",
        "The bell, um, is tuned to the pitch of the fridge.",
        "When the gap is filled with bronze at eleven hundred...",
        "Put the clapper into the bell before the frost comes.",
        "The bell rang.",
    ],
)
def test_what_needs_the_sentences_around_it_or_is_no_whole_sentence_is_not_asked_about(vocabulary, said):
    assert statement_text(said, vocabulary) is None


@pytest.mark.parametrize(
    ("said", "question", "answer"),
    [
        (
            "I have repaired pianos for twenty-six years",
            "For how many years does Ann say they have repaired pianos?",
            "twenty-six",
        ),
        ("We lost eighty kilos of bronze", "How many kilos does Ann say they lost?", None),
        (
            "We moved the whole foundry to Lisbon in 1911",
            "In which year does Ann say they moved the whole foundry to Lisbon?",
            "1911",
        ),
        (
            "My brother raised $500 from the village",
            "How much money does Ann say their brother raised from the village?",
            "$500",
        ),
    ],
)
def test_a_stated_number_or_year_is_asked_for(vocabulary, said, question, answer):
    statement = Statement("e", "E", "Ann", said, said, Sentence(said, ("e_0",), "00:00:00", "00:00:00", 0), 20.0)
    asked = {gap.question("Ann", FRAMES[0]): gap.answer for gap in gaps_of(statement, vocabulary)}
    assert asked.get(question) == answer


@pytest.mark.parametrize(
    ("said", "clauses"),
    [
        (
            'We have two rules, which my brother wrote, and he said "We need three bells" before we moved it.',
            ["We have two rules.", "my brother wrote.", "he said."],
        ),
        ("We cast nine bells in winter, because it snowed...", ["We cast nine bells in winter."]),
        ("When we cast nine bells in winter, we count them.", ["When we cast nine bells in winter, we count them."]),
        ("Do we need three bells?", []),
    ],
)
def test_numbers_are_looked_for_in_clauses_outside_quotations(said, clauses):
    assert fine_clauses_of(said) == clauses


@pytest.mark.parametrize(
    ("said", "clause", "wh"),
    [
        (
            "We sold more than eighty kilos of bronze to the foundry",
            "they sold a certain number of kilos of bronze to the foundry",
            "how many kilos",
        ),
        (
            "We melted the bell over the last four winters in Lisbon",
            "they melted the bell over the last ___ winters in Lisbon",
            "how many winters",
        ),
        (
            "We paid two masons for the three towers in Lisbon",
            "they paid a certain number of masons for the three towers in Lisbon",
            "how many masons",
        ),
        ("We melted it for seven, eight winters in Lisbon", None, None),  # which of the two?
        ("We melted it for a record seven winters in Lisbon", None, None),  # "a record a certain number"
        ("We melted it in all seven winters in Lisbon", None, None),
        ("We melted it for million winters in Lisbon", None, None),
        ("We melted it for 100 hundred winters in Lisbon", None, None),
        ("We paid two masons and their two sons in Lisbon", None, None),  # the other number gives the answer away
    ],
)
def test_a_number_is_left_out_of_a_sentence(vocabulary, said, clause, wh):
    statement = Statement("e", "E", "Ann", said, said, Sentence(said, ("e_0",), "00:00:00", "00:00:00", 0), 20.0)
    found = {gap.clause: gap.wh for gap in blank_of(statement, vocabulary) if gap.kind == "number"}
    assert found.get(clause) == wh and (clause or not found)


def test_what_a_speaker_adds_to_a_statement_is_asked_for(memory):
    made = listener_questions(memory, 60, kinds=("next", "unanswerable"))
    sentences = [sentence.text for turn in spoken_turns(memory) for sentence in turn.sentences]
    added = [task for task in made if task.labels["form"] == "continuation"]
    assert added
    for task in added:
        said = sentences[sentences.index(task.answer) - 1]
        assert len(set(plain_words(said)[-4:]) & set(plain_words(task.prompt))) >= 2  # "my" became "their"
        is_reason = task.answer.startswith("Because")
        assert is_reason == ("reason" in task.prompt)
    assert {task.labels["form"] for task in made if not is_answerable(task)} & {"next/continuation"}


def test_equally_many_questions_of_each_kind_are_made_while_they_last(tasks):
    counts = Counter(task.labels["kind"] for task in tasks)
    assert counts.keys() == ALL_KINDS.keys()
    plenty = {"speaker", "episode", "when", "number", "name", "two"}
    assert {counts[kind] for kind in plenty} == {20} and counts["unanswerable"] >= 15
    assert len({task.prompt for task in tasks}) == len(tasks) == len({task.task_id for task in tasks})


def test_the_evidence_of_an_answer_is_in_the_memory_and_contains_it(memory, tasks):
    by_id = {chunk.chunk_id: chunk for chunk in memory}
    for task in tasks:
        chunks = [by_id[chunk_id] for chunk_id in task.evidence]
        assert chunks and {chunk.stem for chunk in chunks} == {task.labels["episode"]}
        text = " ".join(f"{chunk.speaker} {chunk.episode} {chunk.time} {chunk.transcript}" for chunk in chunks)
        if is_answerable(task):
            assert set(plain_words(task.answer)) <= set(plain_words(text)), task


def test_no_question_contains_its_answer_unless_it_offers_two(tasks):
    for task in tasks:
        if task.labels["kind"] == "compare":
            assert task.answer in task.prompt
        elif is_answerable(task) and task.labels["kind"] != "next":
            assert f" {task.answer.lower()} " not in f" {' '.join(plain_words(task.prompt))} "


def test_questions_of_two_chunks_name_two(tasks):
    assert all(len(task.evidence) >= 2 for kind in ("two", "compare") for task in of_kind(tasks, kind))


def test_a_question_stays_the_same_when_an_episode_comes(memory):
    stems = sorted({chunk.stem for chunk in memory})
    fewer = [chunk for chunk in memory if chunk.stem != stems[0]]
    before, after = (
        {task.prompt for task in listener_questions(chunks, 900, kinds=["name", "number"])}
        for chunks in (fewer, memory)
    )
    assert len(before & after) > 0.9 * len(before)


def test_an_unanswerable_question_asks_a_speaker_about_what_another_one_said(memory, tasks):
    by_id = {chunk.chunk_id: chunk for chunk in memory}
    swapped = [task for task in of_kind(tasks, "unanswerable") if task.labels["form"] == "when/time"]
    assert swapped
    for task in swapped:
        assert task.answer == NO_ANSWER and abstains("I don't know")
        assert not any(by_id[chunk_id].speaker in task.prompt for chunk_id in task.evidence)


def test_the_same_seed_gives_the_same_questions_and_another_seed_others(memory, tasks):
    assert listener_questions(memory, 180, seed=3) == tasks
    assert listener_questions(memory, 180, seed=4) != tasks


def test_overlapping_chunks_and_windows_of_several_speakers_give_the_same_sentences_as_whole_turns(sample):
    transcripts = sample[:1]
    by_turns, by_sentences, by_windows = (
        [
            (turn.speaker, sentence.text)
            for turn in spoken_turns(chunk_all(transcripts, chunking))
            for sentence in turn.sentences
        ]
        for chunking in (18, Chunking("sentences", 3, 1), Chunking("windows"))
    )
    assert by_turns == by_sentences == by_windows


def test_the_times_of_sentences_in_windows_are_those_of_the_transcript(sample):
    [transcript] = sample[:1]
    windows = chunk_all([transcript], Chunking("windows"))
    sentences = [sentence for turn in spoken_turns(windows) for sentence in turn.sentences]
    by_turn = {
        sentence.text: turn.time
        for turn in transcript.turns
        for sentence in spoken_turns(chunk_all([replace(transcript, turns=(turn,))]))[0].sentences
        if len(sentence.text) > 30 and turn.time and not turn.marks
    }
    shown = [each for each in sentences if each.text in by_turn]
    assert len(shown) > 30 and len({each.time for each in shown}) >= 8
    assert {each.text: each.time for each in shown} == {each.text: by_turn[each.text] for each in shown}


@pytest.mark.parametrize("chunking", [Chunking("windows"), Chunking("turns")], ids=["windows", "turns"])
def test_the_answer_to_when_is_displayed_before_the_words(chunking, sample):
    transcripts = sample
    chunks = {chunk.chunk_id: chunk for chunk in chunk_all(transcripts, chunking)}
    asked = [
        task for task in listener_questions(list(chunks.values()), 60, kinds=["when"]) if task.labels["form"] == "time"
    ]
    assert len(asked) > 20
    for task in asked:
        displayed = format_chunk(chunks[task.evidence[0]])
        assert re.search(rf"\b{task.answer}\b", displayed), (task.prompt, displayed)


@pytest.mark.parametrize("chunking", [Chunking("windows"), Chunking("turns")], ids=["windows", "turns"])
@pytest.mark.parametrize("words_per_time", [0, 150, 600])
def test_when_is_asked_only_of_what_is_said_soon_after_its_timestamp(chunking, words_per_time, sample):
    chosen = sample if words_per_time > 150 else sample[::2]  # rare times: few questions per episode
    transcripts = [with_a_time_every(each, words_per_time) for each in chosen]
    words, times = {}, {}
    for each in transcripts:
        words[each.stem] = " ".join(turn.text for turn in each.turns).split()
        before = itertools.accumulate((len(turn.text.split()) for turn in each.turns), initial=0)
        timed = [(start, turn) for start, turn in zip(before, each.turns, strict=False) if turn.time]
        times[each.stem] = {turn.time: start for start, turn in timed}
    chunks = chunk_all(transcripts, chunking)
    said = {each.reported: each for each in Listener(spoken_turns(chunks), spoken_turns(chunks), "").statements}
    asked = [task for task in listener_questions(chunks, 300, kinds=["when"]) if task.labels["form"] == "time"]
    assert len(asked) > 10
    for task in asked:
        [statement] = [each for reported, each in said.items() if reported in task.prompt]
        sentence = statement.sentence.text.split()
        episode, start = words[statement.stem], times[statement.stem][task.answer]
        assert any(
            episode[at : at + len(sentence)] == sentence for at in range(start, start + MAX_WORDS_SINCE_TIME + 1)
        )


def with_a_time_every(transcript: Transcript, num_words: int) -> Transcript:
    """Returns the transcript with the times of its turns at least so many words apart."""
    turns, since = [], num_words
    for turn in transcript.turns:
        is_timed = bool(turn.time) and since >= num_words
        since = len(turn.text.split()) + (0 if is_timed else since)
        turns.append(replace(turn, time=turn.time if is_timed else "", marks=()))
    return replace(transcript, turns=tuple(turns))


def test_the_evidence_of_a_sentence_in_windows_is_one_that_displays_all_of_it(sample):
    windows = {chunk.chunk_id: chunk for chunk in chunk_all(sample, Chunking("windows"))}
    sentences = [sentence for turn in spoken_turns(windows.values()) for sentence in turn.sentences]
    assert {len(sentence.chunk_ids) for sentence in sentences} == {1}
    assert all(sentence.text in windows[sentence.chunk_ids[0]].transcript for sentence in sentences)
    in_the_middle = [sentence.text in windows[sentence.chunk_ids[0]].embedded for sentence in sentences]
    assert sum(in_the_middle) > 0.9 * len(sentences)


def test_other_languages_and_unknown_speakers_give_no_question_and_an_unknown_kind_is_an_error():
    text = "Die Glocke wiegt dreihundert Kilo und hängt seit dem Winter im Hof der alten Klinik am Hafen."
    chunks = [Chunk(f"g_{n}", "G", "g", "Ann", text, "00:00:00", n) for n in range(20)]
    assert listener_questions(chunks, 20) == []
    assert listener_questions([], 20) == []
    with pytest.raises(SettingsError, match="unknown kind of question 'speakr'"):
        listener_questions(chunks, 20, kinds=("speakr",))


@pytest.mark.parametrize("kinds", [("speaker", "episode", "unanswerable"), tuple(ALL_KINDS)])
def test_neither_form_nor_names_nor_words_show_that_a_question_has_no_answer(memory, kinds):
    tasks = listener_questions(memory, 100 * len(kinds), kinds=kinds)
    without = Counter(task.labels["form"] for task in of_kind(tasks, "unanswerable"))
    forms = Counter(f"{task.labels['kind']}/{task.labels['form']}" for task in tasks if is_answerable(task))
    shared = {form: number for form, number in forms.items() if without[form]}
    assert sum(shared.values()) > 0.9 * forms.total() and without.total() > 20
    for form, number in shared.items():
        assert without[form] / without.total() == pytest.approx(number / sum(shared.values()), abs=0.05)
    (score,) = (score for score in blind_scores(tasks) if score.kind == "unanswerable")
    assert score.advantage <= MAX_ADVANTAGE


def test_there_are_no_more_unanswerable_questions_than_of_another_kind(memory):
    counts = Counter(task.labels["kind"] for task in listener_questions(memory, 9000))
    assert 0 < counts["unanswerable"] <= max(number for kind, number in counts.items() if kind != "unanswerable")


def test_where_a_form_is_scarce_there_are_fewer_unanswerable_questions_of_all_forms(memory):
    """Only one episode has two speakers, of whom one can be named in the other's place."""
    stem = memory[0].stem
    alone = [chunk if chunk.stem == stem else replace(chunk, speaker=f"Ann {chunk.stem}") for chunk in memory]
    kinds = ("speaker", "episode", "unanswerable")
    few, many = (
        Counter(task.labels["form"] for task in of_kind(listener_questions(each, 900, kinds=kinds), "unanswerable"))
        for each in (alone, memory)
    )
    assert 0 < few["speaker/within"] < many["speaker/within"] / 2
    assert few["speaker/within"] / few.total() == pytest.approx(0.5, abs=0.1)


def asked_in_vain(memory: list[Chunk], *said: str) -> list[Draft]:
    """Unanswerable questions about an episode; `said` are its turns: `Ann: we cast bells`."""
    turns = [turn.split(": ", 1) for turn in said]
    own = [Chunk(f"x_{n}", "X", "x", who, text, f"00:{n:02}:00", n) for n, (who, text) in enumerate(turns)]
    asked = Listener(spoken_turns(own), spoken_turns([*memory, *own]), "0")
    return list(unanswerable_drafts(asked))


@pytest.mark.parametrize("other", ["Drew", "Eva"])
def test_nobody_is_asked_about_a_statement_that_names_them(memory, other):
    said = "My brother admired the quality of Drew's enormous carillon in the cathedral of Lisbon."
    found = {draft.named for draft in asked_in_vain(memory, f"Ann: {said}", f"{other}: Welcome.")}
    assert (other in found) == (other == "Eva")


@pytest.mark.parametrize(("reply", "is_asked"), [("Twenty-six years!", False), ("Three years!", True)])
def test_nobody_is_asked_for_a_number_that_they_repeat(memory, reply, is_asked):
    said = "I have repaired pianos for twenty-six years."
    forms = {draft.form for draft in asked_in_vain(memory, f"Ann: {said}", f"Drew: {reply}")}
    assert ("number/gap" in forms) == is_asked


@pytest.mark.parametrize(
    ("also", "is_swapped"),
    [
        ("We brought it from Porto by ship.", True),
        ("We brought it from Lisboa by ship.", True),
        ("We brought it from LisbonHarbour by ship.", False),  # a part of it
        ("We brought it from Porto, which is north of Lisbon.", False),  # what is true of one may be true of the other
    ],
)
def test_a_name_is_swapped_with_another_that_has_nothing_to_do_with_it(memory, also, is_swapped):
    said = "My brother carried the enormous carillon from Lisbon to the cathedral."
    drafts = asked_in_vain(
        memory, f"Ann: {said} {also}", "Eva: We heard of Porto. And of Lisbon. And of LisbonHarbour. And of Lisboa."
    )
    within = [draft.question for draft in drafts if draft.form == "speaker/within" and draft.named == "X"]
    swapped = [question for question in within if "carillon" in question]
    assert bool(swapped) == is_swapped, swapped


@pytest.mark.parametrize(("name", "said"), [("API", "APIs"), ("LLMs", "LLM"), ("Porto", "Porto's"), ("LLMs", "LLMs")])
def test_a_name_is_mentioned_in_singular_and_plural(vocabulary, name, said):
    turns = spoken_turns([Chunk("x_0", "X", "x", "Ann", f"We have {said} here.", "00:00:00", 0)])
    assert len(StatementIndex(turns, vocabulary).mentions(name)) == 1


def test_the_questions_do_not_depend_on_the_hashes_of_a_process(tmp_path):
    made = []
    for seed in ("1", "3"):
        command = ["memory", "questions", SAMPLE, str(tmp_path / seed), "--num-questions", "300"]
        command += ["--kinds", "speaker,episode,unanswerable"]
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        subprocess.run([sys.executable, "-m", "midthought", *command], env=environment, check=True, capture_output=True)
        made.append((tmp_path / seed).read_text())
    assert made[0] == made[1] and "unanswerable" in made[0]
