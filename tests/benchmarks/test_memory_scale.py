import itertools

import numpy as np
import pytest

from benchmarks.memory_scale.lines import draw_chunks, draw_windows
from benchmarks.memory_scale.plot import line_of, to_svg
from benchmarks.memory_scale.vectors import fit, neighbour_distances, neighbours_beside


def real(num_vectors=3_000, dimension=32, seed=0):
    """Clusters of unequal size and spread, each in a few directions."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(30, dimension))
    clusters = rng.choice(30, size=num_vectors, p=rng.dirichlet(np.ones(30)))
    local = rng.normal(size=(30, 6, dimension)) * rng.uniform(0.1, 0.4, size=(30, 1, 1))
    vectors = centres[clusters] + np.einsum("nr,nrd->nd", rng.normal(size=(num_vectors, 6)), local[clusters])
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def test_what_is_drawn_has_neighbours_as_far_as_what_was_fitted():
    vectors = real()
    mixture = fit(vectors, num_clusters=40)
    drawn = mixture.draw(len(vectors), np.random.default_rng(3))
    assert drawn.dtype == np.float32 and np.allclose(np.linalg.norm(drawn, axis=1), 1, atol=1e-5)
    for rank, distances in neighbour_distances(drawn).items():
        assert np.median(distances) == pytest.approx(np.median(neighbour_distances(vectors)[rank]), rel=0.15)
    shuffled = mixture.draw(len(vectors), np.random.default_rng(4))
    assert not np.array_equal(drawn, shuffled)
    assert "| neighbour 10, drawn |" in neighbours_beside(vectors, drawn)


def test_neighbours_are_counted_without_the_vector_itself():
    vectors = np.eye(12, dtype=np.float32)
    vectors[1] = vectors[0]
    distances = neighbour_distances(vectors, ranks=(1, 2))
    assert distances[1].tolist() == [0, 0, *[1] * 10] and distances[2].tolist() == [1] * 12


def test_chunks_are_of_many_episodes_and_no_two_have_the_same_words():
    chunks = draw_chunks([f"w{number}" for number in range(500)], 2_500)
    assert len({chunk.chunk_id for chunk in chunks}) == len({chunk.transcript for chunk in chunks}) == 2_500
    assert [len({chunk.episode for chunk in chunks}), chunks[1_000].chunk_id] == [3, "episode-1_0"]
    assert all(16 <= len(chunk.transcript.split()) <= 22 for chunk in chunks)


def test_windows_have_eleven_sentences_of_two_speakers_and_share_eight_with_the_next():
    windows = draw_windows([f"w{number}" for number in range(500)], 1_200)
    sentences = [window.embedded_sentences for window in windows]
    assert {len(each) for each in sentences} == {11}
    assert all(before[3:] == after[:8] for before, after in itertools.pairwise(sentences))
    assert all(len(window.speakers) == 2 and 198 <= len(window.transcript.split()) <= 265 for window in windows)
    assert len({window.chunk_id for window in windows}) == 1_200


def test_a_plot_shows_every_size():
    rows = [{"figure": "f", "setting": f"{size:,} chunks", "value": {"median": size / 7}} for size in (1_000, 10, 100)]
    assert line_of(rows, "f") == [(10, 10 / 7), (100, 100 / 7), (1_000, 1_000 / 7)]
    assert to_svg([("title", {"f": line_of(rows, "f")})]).count("<circle") == 3
