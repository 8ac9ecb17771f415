"""A small cross-encoder that prefers long texts orders results again."""

import pickle

import pytest

pytest.importorskip("lancedb", reason="the memory extra is not installed")

from midthought.errors import ModelPathError
from midthought.memory.reranker import CrossEncoderReranker
from midthought.memory.search import Hit
from midthought.memory.tool import MemoryRetrievalTool, format_chunk


def save_cross_encoder(folder, num_labels=1):
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"[UNK]": 0, "[PAD]": 1, "mitten": 2}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]", pad_token="[PAD]").save_pretrained(folder)
    config = BertConfig(
        vocab_size=3, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=64, num_labels=num_labels, pad_token_id=1,
    )  # fmt: skip
    torch.manual_seed(0)
    BertForSequenceClassification(config).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return save_cross_encoder(tmp_path_factory.mktemp("cross-encoder"))


def test_hits_are_ordered_by_the_score_of_the_model_for_query_and_text(path):
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    hits = [
        Hit(f"t_{n}", "T", "Ann", text, "00:00:00", 1.0) for n, text in enumerate(["mitten", "a mitten b", "c", "d e"])
    ]
    found = CrossEncoderReranker(path, batch_size=3).rerank("the mitten", hits)
    model, tokenizer = AutoModelForSequenceClassification.from_pretrained(path), AutoTokenizer.from_pretrained(path)
    expected = {
        hit.chunk_id: model(**tokenizer("the mitten", hit.transcript, return_tensors="pt")).logits.item()
        for hit in hits
    }
    assert {hit.chunk_id: hit.score for hit in found} == pytest.approx(expected, abs=1e-5)
    assert [hit.chunk_id for hit in found] == sorted(expected, key=lambda chunk_id: -expected[chunk_id])


def test_the_tool_returns_the_best_of_more_candidates(path, store):
    reranker = pickle.loads(pickle.dumps(CrossEncoderReranker(path)))  # noqa: S301
    tool = MemoryRetrievalTool(store, k=2, mode="vector", reranker=reranker)
    best = reranker.rerank("mitten", store.search("mitten", 20, "vector"))[:2]
    assert tool.execute(query="mitten").text == "\n".join(f"[{n}] {format_chunk(hit)}" for n, hit in enumerate(best, 1))


def test_what_is_no_reranker_is_refused(tmp_path):
    hit = Hit("t_0", "T", "Ann", "words", "00:00:00", 1.0)
    with pytest.raises(ModelPathError, match="it has 2 outputs, a reranker has 1"):
        CrossEncoderReranker(save_cross_encoder(tmp_path / "two", num_labels=2)).rerank("words", [hit])
    with pytest.raises(ModelPathError, match="the reranker does not load"):
        CrossEncoderReranker(str(tmp_path / "none")).rerank("words", [hit])
