import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from midthought.memory.known_rows import VectorCache


def vectors(num_rows, seed=0):
    return np.random.default_rng(seed).normal(size=(num_rows, 4)).astype(np.float32)


def test_vectors_are_there_again_by_their_texts(tmp_path):
    cache = VectorCache(tmp_path, "m", 4)
    cache.add(["a", "b"], vectors(2))
    cache.add(["ü\ud800", ""], vectors(2, 1))
    again = VectorCache(tmp_path, "m", 4)
    for each in (cache, again):
        assert "b" in each and "" in each and "a" in each and "c" not in each
        np.testing.assert_array_equal(
            each.vectors(["", "b", "a", "b"]), np.stack([vectors(2, 1)[1], *vectors(2)[[1, 0, 1]]])
        )
        assert each.vectors([]).shape == (0, 4)
    with pytest.raises(KeyError):
        again.vectors(["c"])


def test_models_and_dimensions_do_not_mix(tmp_path):
    VectorCache(tmp_path, "a/m", 4).add(["a"], vectors(1))
    for model, dimension in (("a-m", 4), ("a/m", 5), ("../a/m", 4)):
        assert "a" not in VectorCache(tmp_path, model, dimension)
    assert [path.parent for path in tmp_path.iterdir()] == [tmp_path]


@given(st.binary(max_size=300), st.integers(0, 299))
@example(b"PK\x03\x04", 0)
def test_a_file_that_is_torn_or_foreign_is_passed_over(tmp_path_factory, junk, cut):
    folder = tmp_path_factory.mktemp("cache")
    cache = VectorCache(folder, "m", 4)
    cache.add(["a"], vectors(1))
    cache.add(["b"], vectors(1, 1))
    kept, torn = sorted(folder.rglob("*.npy"))
    torn.write_bytes(torn.read_bytes()[: -1 - cut % torn.stat().st_size])
    (torn.parent / "x.npy").write_bytes(junk)
    np.save(torn.parent / "y.npy", vectors(3))
    with (torn.parent / "z.npy").open("wb") as file:
        np.savez(file, vectors(3))
    np.save(torn.parent / "o.npy", np.array([{}], dtype=object), allow_pickle=True)
    again = VectorCache(folder, "m", 4)
    assert ("a" in again) + ("b" in again) == 1 and kept.exists()


def test_clearing_leaves_nothing_and_spares_what_others_keep(tmp_path):
    cache, other = VectorCache(tmp_path / "e", "m", 4), VectorCache(tmp_path / "e", "n", 4)
    for each in (cache, other):
        each.add(["a"], vectors(1))
    next((tmp_path / "e").glob("m*")).joinpath("z.partial").write_text("half")
    cache.clear()
    assert "a" not in cache and len(list((tmp_path / "e").iterdir())) == 1
    other.clear()
    assert not (tmp_path / "e").exists()
    VectorCache(tmp_path / "none", "m", 4).clear()
