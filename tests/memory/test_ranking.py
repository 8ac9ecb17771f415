"""BM25 and the fusion against numbers worked by hand, and what counts as a word."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from midthought.memory.ranking import WordIndex, fuse, rank_vectors, search_words


def test_words_lose_case_accents_apostrophes_and_punctuation_only():
    assert search_words("Don’t stop: the Café's “self-taught” Ünï, 3.5 & C++_x!") == [
        "dont", "stop", "the", "cafes", "self", "taught", "uni", "3", "5", "c", "x",
    ]  # fmt: skip


def test_the_score_of_a_word_is_bm25():
    index = WordIndex(["a a b", "b c", "c"])  # mean length 2
    rows, scores = index.rank("a", 3)
    idf = math.log(1 + (3 - 1 + 0.5) / (1 + 0.5))
    expected = idf * 2 * 2.2 / (2 + 1.2 * (0.25 + 0.75 * 3 / 2))
    assert rows.tolist() == [0] and scores.tolist() == [pytest.approx(expected, abs=1e-6)]


def test_a_pair_adds_half_of_its_own_bm25():
    index = WordIndex(["a b", "b a", "c c"])
    rows, scores = index.rank("a b", 3)
    assert rows.tolist() == [0, 1]
    idf = math.log(1 + (3 - 1 + 0.5) / (1 + 0.5))
    assert scores[0] - scores[1] == pytest.approx(0.5 * idf, abs=1e-5)


def test_pairs_do_not_reach_from_one_row_into_the_next():
    index = WordIndex(["x a", "b y", "a z", "z b"])
    _, scores = index.rank("a b", 4)
    assert len(set(scores.tolist())) == 1


def test_equal_scores_rank_by_row_and_the_limit_keeps_the_first():
    rows, _ = WordIndex(["yes", "no", "yes", "yes"]).rank("Yes!", 2)
    assert rows.tolist() == [0, 2]


@given(st.lists(st.text(max_size=20), max_size=6), st.text(max_size=30))
def test_any_text_can_be_indexed_and_asked_for(texts, query):
    rows, scores = WordIndex(texts).rank(query, 3)
    asked = set(search_words(query))
    assert all(asked & set(search_words(texts[row])) for row in rows)
    assert (np.diff(scores) <= 0).all()


def test_vectors_rank_by_cosine_with_ties_by_row():
    vectors = np.asarray([[0, 1], [1, 0], [0, 1], [-1, 0]], dtype=np.float32)
    rows, scores = rank_vectors(vectors, np.asarray([0.6, 0.8], dtype=np.float32), 3)
    assert rows.tolist() == [0, 2, 1] and scores.tolist() == pytest.approx([0.8, 0.8, 0.6])


def test_fusion_adds_the_reciprocal_ranks():
    first = (np.asarray([4, 2]), np.asarray([9.0, 8.0]))
    second = (np.asarray([2, 0]), np.asarray([0.5, 0.4]))
    rows, scores = fuse([first, second], 5, 6)
    assert rows.tolist() == [2, 4, 0]
    assert scores.tolist() == pytest.approx([1 / 62 + 1 / 61, 1 / 61, 1 / 62], abs=1e-6)
