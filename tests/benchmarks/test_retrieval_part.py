"""The part with a few quotes of the sample episodes; the frozen questions are checked if the transcripts exist."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from benchmarks import retrieval
from benchmarks.retrieval import QUESTIONS
from benchmarks.retrieval.asked import QUOTE_LENGTHS, Episodes, draw_quotes, read_questions, words_of
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
