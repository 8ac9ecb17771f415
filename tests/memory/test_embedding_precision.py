"""Precision of embeddings: measured once, recorded in the table, the same for all of its vectors."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
from test_embedding import save_tiny_encoder

from midthought.errors import MemoryStoreError, SettingsError
from midthought.memory import minilm
from midthought.memory.build import embed_chunks
from midthought.memory.chunks import Chunk
from midthought.memory.embedding import load_embedder
from midthought.memory.rows import precision_of, vectors_of
from midthought.memory.store import MemoryStore
from midthought.memory.table import TableLocation, TableSnapshot
from midthought.models.precision import PrecisionChoice

TEXTS = [" ".join("ab"[digit == "1"] for digit in f"{number:b}"[1:]) for number in range(2, 1002)]
"""As many different texts as a measurement needs: a, b, a a, a b, b a, …"""
FEW = TEXTS[:6]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    save_tiny_encoder(tmp_path_factory.mktemp("encoder") / "tiny")
    return tmp_path_factory.getbasetemp() / "encoder0" / "tiny"


@pytest.fixture
def measures(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """In a measurement bfloat16 takes so many seconds, float32 takes 1."""

    def patch(bfloat16_seconds: float) -> list[str]:
        calls: list[str] = []

        def measure(compute: Callable[[str], object]) -> PrecisionChoice:
            for precision in ("float32", "bfloat16"):
                compute(precision)
                calls.append(precision)
            return PrecisionChoice(float32_seconds=1.0, bfloat16_seconds=bfloat16_seconds)

        monkeypatch.setattr(minilm, "faster_precision", measure)
        return calls

    return patch


def chunks_of(texts: list[str]) -> list[Chunk]:
    return [Chunk(f"x_{n}", "X", "x", "Ann", text, "00:00:00", n) for n, text in enumerate(texts)]


def stored(store: MemoryStore) -> np.ndarray:
    return vectors_of(opened(store).table.to_arrow().sort_by("chunk_id"))


def opened(store: MemoryStore) -> TableSnapshot:
    return TableLocation(store.uri, store.table, {}, timedelta(days=1)).open()


def embedded(folder: Path, texts: list[str], dtype: str) -> np.ndarray:
    return load_embedder(f"{folder}?dtype={dtype}").embed(texts)


@pytest.mark.parametrize(("seconds", "dtype"), [(0.5, "bfloat16"), (2.0, "float32")])
def test_a_first_build_measures_once_tells_it_and_takes_the_faster_precision(
    seconds: float, dtype: str, folder: Path, tmp_path: Path, measures: Callable[..., list[str]]
) -> None:
    calls = measures(seconds)
    store = MemoryStore.open(tmp_path / "memory", embedder=load_embedder(folder))
    report = store.build(chunks_of(TEXTS))
    assert calls == ["float32", "bfloat16"] and str(report.precision).startswith(f"{dtype} (measured:")
    np.testing.assert_array_equal(stored(store), embedded(folder, TEXTS, dtype))
    assert store.build(chunks_of(TEXTS[:3])).precision is None


@pytest.mark.parametrize("first", ["float32", "bfloat16"])
def test_a_later_build_embeds_in_the_precision_of_the_table(
    first: str, folder: Path, tmp_path: Path, measures: Callable[..., list[str]]
) -> None:
    MemoryStore.open(tmp_path / "m", embedder=load_embedder(f"{folder}?dtype={first}")).build(chunks_of(TEXTS[:3]))
    calls = measures(2.0 if first == "bfloat16" else 0.5)
    store = MemoryStore.open(tmp_path / "m", embedder=load_embedder(folder))
    store.build(chunks_of(TEXTS))
    assert calls == []
    np.testing.assert_array_equal(stored(store)[:3], embedded(folder, TEXTS[:3], first))
    np.testing.assert_allclose(
        stored(store)[3:], embedded(folder, TEXTS, first)[3:], atol=2**-8
    )  # one rounding of bfloat16: other texts share the batch
    assert opened(store).precision == first


def test_a_table_changed_in_place_keeps_its_precision_and_rows_of_another_are_written_anew(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("midthought.memory.indices.MIN_ROWS_FOR_VECTOR_INDEX", 7)
    many = chunks_of([("a " * (n + 1)).strip() for n in range(40)])
    store = MemoryStore.open(tmp_path / "m", embedder=load_embedder(f"{folder}?dtype=bfloat16"))
    store.build(many)
    changed = [*many[:-1], replace(many[-1], transcript="b")]
    written: list[str] = []
    for name in ("write", "change"):
        plain = getattr(TableLocation, name)
        monkeypatch.setattr(
            TableLocation, name, lambda *args, name=name, plain=plain: (written.append(name), plain(*args))[1]
        )
    store.build(changed)
    assert written == ["change"] and opened(store).precision == "bfloat16"
    rows = embed_chunks(many, load_embedder(f"{folder}?dtype=float32"))
    assert precision_of(rows.schema) == "float32"
    store.ingest(rows)
    assert written == ["change", "write"] and opened(store).precision == "float32"
    assert embed_chunks([], load_embedder(folder)).num_rows == 0


def test_a_build_that_goes_on_after_a_crash_keeps_the_precision_it_began_with(
    folder: Path, tmp_path: Path, measures: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    measures(0.5)
    store = MemoryStore.open(tmp_path / "m", embedder=load_embedder(folder))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(TableLocation, "write", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
        store.build(chunks_of(TEXTS))
    calls = measures(2.0)
    again = MemoryStore.open(tmp_path / "m", embedder=load_embedder(folder))
    report = again.build(chunks_of(TEXTS))
    assert (calls, report.num_embedded, opened(again).precision) == ([], 0, "bfloat16")
    assert not (tmp_path / "m" / "embeddings").exists()


def test_a_set_precision_that_differs_from_the_tables_is_an_error_that_names_both(folder: Path, tmp_path: Path) -> None:
    MemoryStore.open(tmp_path / "m", embedder=load_embedder(f"{folder}?dtype=bfloat16")).build(chunks_of(TEXTS))
    store = MemoryStore.open(tmp_path / "m", embedder=load_embedder(f"{folder}?dtype=float32"))
    assert store.search("a", k=1)  # queries are float32 anyway
    with pytest.raises(MemoryStoreError, match=r"computed in bfloat16, not in float32; remove \?dtype=float32"):
        store.build(chunks_of(TEXTS[:2]))


def test_nothing_is_measured_for_few_texts_or_a_run_that_must_not_depend_on_times_and_once_for_many(
    folder: Path, measures: Callable[..., list[str]]
) -> None:
    calls = measures(0.5)
    few = load_embedder(folder)
    np.testing.assert_array_equal(few.embed(FEW), embedded(folder, FEW, "float32"))
    assert (few.precision, few.choice) == ("float32", None)
    assert load_embedder(folder, measures=False).settle(TEXTS) == "float32"
    assert load_embedder(f"{folder}?dtype=bfloat16", measures=False).settle(TEXTS) == "bfloat16"
    assert calls == []
    many = load_embedder(folder)
    many.settle(TEXTS)
    assert pickle.loads(pickle.dumps(many)).settle(TEXTS) == "bfloat16" and len(calls) == 2  # noqa: S301
    with pytest.raises(SettingsError, match=r"unknown dtype=half; give one of auto, float32, bfloat16"):
        load_embedder("minilm?dtype=half")
