"""The user's questions in demonstrations: which are shown, under which names."""

import random
from collections import Counter

import pytest

from midthought.data.final_answers import NO_ANSWER
from midthought.memory.build import chunk_all
from midthought.memory.chunks import Chunk
from midthought.memory.splitting import Chunking
from midthought.memory.transcripts import read_transcripts
from midthought.recipes.podcast.names import OwnQuestions, SyntheticNames
from midthought.recipes.podcast.settings import sample_transcripts
from midthought.types import Task


def drawn(own, number=40, names=None, words="glass bells in the salt"):
    rng, made = random.Random(0), OwnQuestions(own, names or {}, SyntheticNames([words], None), 1.0)
    return [made.draw(rng) for _ in range(number)]


def task(prompt: str, answer: str) -> Task:
    return Task(task_id="t", prompt=prompt, answer=answer)


@pytest.mark.parametrize(
    ("speaker", "prompt", "kept"),
    [
        ("A", "In which episode of All About April does A say so?", "In which episode of All About April does "),
        ("Bob", "In which episode does Bob say that Bobby sings?", " say that Bobby sings?"),
        ("In", "Inside which episode does In say it In Rome?", "Inside which episode does "),
    ],
)
def test_names_are_replaced_as_whole_words(speaker, prompt, kept):
    chunk = Chunk("e_0", "Salt", "e", speaker, "so", "00:00:00", 0)
    for shown, known, premise in drawn([(task(prompt, "Salt"), chunk)]):
        assert kept in shown.prompt and known.speaker in shown.prompt
        assert premise is not None and premise.name == known.speaker and shown.answer == known.episode


def test_an_invented_name_that_a_question_is_wrong_about_is_none_of_its_chunk():
    chunk = Chunk("e_0", "Salt", "e", "Ann", "so", "00:00:00", 0)
    asked = task('In "Cedar", who says so?', NO_ANSWER)
    names = {"Salt": "episode", "Cedar": "episode"}
    for shown, known, _ in drawn([(asked, chunk)], 200, names, "bell"):  # the same title is drawn again and again
        assert f'"{known.episode}"' not in shown.prompt


def test_in_windows_answered_and_unanswerable_questions_of_each_form_are_shown():
    windows = chunk_all(read_transcripts(sample_transcripts()).require_all()[:6], Chunking("windows"))
    own = []
    for window, other in zip(windows, windows[60:], strict=False):
        if len(window.speakers) > 1 and not {*other.speakers, other.episode} & {*window.speakers, window.episode}:
            for near, answers in ((window, window.speakers[:1]), (other, [NO_ANSWER])):
                own += [(task(f'In "{near.episode}", who says so?', answer), window) for answer in answers]
            own.append((task(f"In which episode does {window.speakers[0]} say so?", window.episode), window))
            own.append((task(f"In which episode does {other.speakers[0]} say so?", NO_ANSWER), window))
    names = {name: "speaker" for window in windows for name in window.speakers}
    names |= {window.episode: "episode" for window in windows}
    counts: Counter[tuple[str, bool]] = Counter()
    for shown, known, premise in drawn(own, 600, names=names):
        assert premise is not None and premise.name in shown.prompt
        said = (*known.speakers, known.episode)
        assert (premise.name in said) == (shown.answer in said) == (shown.answer != NO_ANSWER)
        assert {speaker for _, speaker in known.turns} == set(known.speakers)
        counts[premise.what, shown.answer == NO_ANSWER] += 1
    assert min(counts[what, none] for what in ("speaker", "episode") for none in (False, True)) > 20
