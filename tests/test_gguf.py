"""GGUF files as models: converted once, exactly; what is damaged, unknown or missing is one sentence with the remedy."""

import json
import struct

import gguf
import numpy
import pytest
import torch
from small_tokenizer import CHATML, small_backend
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from midthought import Trainer, tool
from midthought.errors import MissingExtraError, ModelPathError, StorageError
from midthought.models.gguf import is_gguf, model_folder
from midthought.models.pretrained import is_on_this_machine, load_model, load_tokenizer, policy_folder
from midthought.plan.shape import find_shape
from midthought.tokenization import Renderer

HEADS, KV_HEADS, SIZE, WIDE, LAYERS = 4, 2, 32, 64, 2


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "midthought" / "gguf"


def in_the_order_of_llama_cpp(name, weight):
    """Of queries and keys, llama.cpp interleaves the two halves of each head's rows."""
    heads = {"q_proj": HEADS, "k_proj": KV_HEADS}.get(name.split(".")[-2])
    if heads is None:
        return weight
    return numpy.ascontiguousarray(weight.reshape(heads, 2, SIZE // HEADS // 2, -1).swapaxes(1, 2)).reshape(
        weight.shape
    )


def write_gguf(path, *, kind="F32", template=CHATML, arch="llama", pre="gpt-2", extra=False, **declared):
    """Writes a small Llama. Returns the weights that the file holds, by transformers' names. `declared`: other sizes."""
    vocabulary = json.loads(small_backend().to_str())["model"]
    words = [*sorted(vocabulary["vocab"], key=vocabulary["vocab"].get), "<|im_start|>", "<|im_end|>"]
    torch.manual_seed(0)
    sizes = {"hidden_size": SIZE, "intermediate_size": WIDE, "num_hidden_layers": LAYERS, "vocab_size": len(words)}
    heads = {"num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "tie_word_embeddings": True}
    weights = LlamaForCausalLM(LlamaConfig(**sizes, **heads)).state_dict()
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, LAYERS)
    writer = gguf.GGUFWriter(path, arch)
    counts = {"block_count": LAYERS, "embedding_length": SIZE, "feed_forward_length": WIDE, "context_length": 256}
    for name, value in (counts | {"vocab_size": len(words)} | declared).items():
        writer.add_uint32(f"{arch}.{name}", value)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(words)
    writer.add_token_types([1] * (len(words) - 2) + [3, 3])
    writer.add_token_merges([" ".join(merge) for merge in vocabulary["merges"]])
    writer.add_eos_token_id(len(words) - 1)
    if template:
        writer.add_chat_template(template)
    if extra:
        writer.add_tensor("rope_freqs.weight", numpy.ones(4, numpy.float32))
    held = {}
    for name, weight in weights.items():
        if name != "lm_head.weight":
            rounding = gguf.GGMLQuantizationType["F32" if weight.ndim == 1 else kind]
            stored = gguf.quantize(in_the_order_of_llama_cpp(name, weight.numpy()), rounding)
            writer.add_tensor(names.get_name(name, (".weight",)), stored, raw_dtype=rounding)
            rounded = gguf.dequantize(gguf.quantize(weight.numpy(), rounding), rounding)  # each row is rounded alone
            held[name] = torch.from_numpy(rounded.copy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return held


@pytest.mark.parametrize(("kind", "bits"), [("F32", ""), ("Q8_0", "8.5"), ("Q4_1", "5.0")])
def test_a_file_loads_with_exactly_its_weights_and_says_how_they_were_rounded(tmp_path, caplog, kind, bits):
    held = write_gguf(tmp_path / "model.gguf", kind=kind)
    policy = load_model(tmp_path / "model.gguf")
    loaded = policy.state_dict()
    assert all(torch.equal(loaded[name], weight) for name, weight in held.items())
    assert loaded.keys() - held.keys() == {"lm_head.weight"}
    assert caplog.text.count("were rounded") == bool(bits)
    assert not bits or f"rounded to {bits} bits on average ({kind}) when the file was written" in caplog.text
    assert "does not read" not in caplog.text and policy.name_or_path == str(tmp_path / "model.gguf")


def test_a_file_is_converted_once_and_again_if_the_folder_is_damaged(tmp_path, caplog, cache, monkeypatch):
    file = tmp_path / "model.gguf"
    write_gguf(file, extra=True)
    assert is_gguf(file) and is_on_this_machine(str(file)) and not is_on_this_machine(str(tmp_path / "other.gguf"))
    assert find_shape(str(file)).num_layers == LAYERS and not cache.exists(), "a plan converts nothing"
    folder = model_folder(file)
    assert folder.parent == cache and cache.stat().st_mode & 0o777 == 0o700
    assert policy_folder(file) == folder == model_folder(str(file))
    assert caplog.text.count("converting it") == caplog.text.count("does not read 4 of its values") == 1
    (folder / "model.safetensors").write_bytes(b"damaged")
    monkeypatch.setattr("midthought.models.gguf.CHECKED", set())  # as in another process
    assert load_model(file).config.num_hidden_layers == LAYERS
    assert caplog.text.count("converting it") == 2


def test_the_tokenizer_ends_a_turn_at_the_token_of_the_template_and_has_no_token_without_an_embedding(tmp_path):
    write_gguf(tmp_path / "model.gguf")
    tokenizer = load_tokenizer(tmp_path / "model.gguf")
    renderer = Renderer(tokenizer)
    assert renderer.eos_token_ids == {tokenizer.convert_tokens_to_ids("<|im_end|>")} == {len(tokenizer) - 1}
    assert len(tokenizer) == load_model(tmp_path / "model.gguf").config.vocab_size
    text = "<|im_start|>user\nthe tide, 12  3<|im_end|>\n"
    assert renderer.decode(tokenizer(text).input_ids) == text and len(tokenizer("<|im_end|>").input_ids) == 1


@pytest.mark.parametrize(("pre", "pieces"), [("smollm", "a|ĠĠ|1|2|ĊĊ|3"), ("gpt-2", "a|Ġ|Ġ12|Ċ|Ċ|3")])
def test_digits_are_split_apart_if_the_name_of_the_split_says_so(tmp_path, pre, pieces):
    write_gguf(tmp_path / "model.gguf", pre=pre)
    split = load_tokenizer(tmp_path / "model.gguf").backend_tokenizer.pre_tokenizer
    assert "|".join(text for text, _ in split.pre_tokenize_str("a  12\n\n3")) == pieces


@tool
def look(word: str) -> str:
    """Looks a word up."""
    return "tide"


def test_a_trainer_trains_from_a_file_and_its_checkpoints_are_ordinary_folders(tmp_path):
    file, run = tmp_path / "model.gguf", tmp_path / "run"
    write_gguf(file, kind="Q8_0")
    sizes = {"algorithm": "grpo", "batch_size": 4, "group_size": 2, "num_train_iters": 1, "max_tokens": 12}
    rows = {
        "dataset": [{"prompt": "Say tide.", "answer": "tide"}],
        "rewards": [lambda done: float(sum(done.token_ids) % 7)],
    }
    with Trainer(model=file, tools=[look], run_path=run, **rows, **sizes) as trainer:
        trainer.sft(lambda task: [{"role": "assistant", "content": task.answer}], num_steps=1)
        trainer.fit()
    assert f"local_path: {file}" in (run / "config.yaml").read_text()
    assert not hasattr(LlamaForCausalLM.from_pretrained(run / "policy").config, "quantization_config")
    assert AutoTokenizer.from_pretrained(run / "policy").chat_template == CHATML


def test_a_file_without_a_template_is_a_base_model_and_its_texts_are_joined_by_newlines(tmp_path, caplog):
    write_gguf(tmp_path / "model.gguf", template="")
    Trainer(model=tmp_path / "model.gguf", dataset=[{"prompt": "a", "answer": "b"}]).cleanup()
    assert "the model has no chat template: texts are joined by newlines" in caplog.text


def test_a_damaged_file_is_one_sentence_and_leaves_nothing_in_the_cache(tmp_path, cache):
    write_gguf(tmp_path / "whole.gguf")
    data, many = (tmp_path / "whole.gguf").read_bytes(), struct.pack("<Q", 2**60)
    text = data.index(b"general.architecture") + len("general.architecture") + 4
    version = data[:4] + struct.pack("<I", 77) + data[8:]
    counts = [data[:8] + many + data[16:], data[:16] + many + data[24:], data[:text] + many + data[text + 8 :]]
    for damaged in (b"", b"GGML" + data[4:], version, data[:300], data[: -len(data) // 4], *counts):
        (tmp_path / "damaged.gguf").write_bytes(damaged)
        with pytest.raises(
            ModelPathError, match=r"is no whole GGUF file \(.+\); download it again, or give another file"
        ):
            load_model(tmp_path / "damaged.gguf")
    assert [entry for entry in cache.iterdir() if entry.is_dir()] == []


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        ({"arch": "unheard"}, "architecture unheard is not supported yet; give the model's Hugging Face folder"),
        ({"block_count": 10**9}, "declares 1000000000 layers and holds 20 tensors"),
        ({"vocab_size": 2**31}, "declares a model of .* values and holds"),
        ({"block_count": 3}, "lacks 9 of the model's weights, first 'model.layers.2"),
        ({"pre": "other"}, r"does not know how its tokenizer splits texts \('other'\); give the model's"),
    ],
)
def test_a_file_that_transformers_cannot_read_is_refused_before_memory_is_taken(tmp_path, declared, words):
    write_gguf(tmp_path / "model.gguf", **declared)
    with pytest.raises(ModelPathError, match=words):
        load_model(tmp_path / "model.gguf")


def test_missing_files_folders_and_packages_are_named_with_the_remedy(tmp_path, monkeypatch):
    with pytest.raises(ModelPathError, match=r"none.gguf' does not exist or is not a file; give a GGUF file"):
        load_model(tmp_path / "none.gguf")
    write_gguf(tmp_path / "model.gguf")
    with pytest.raises(ModelPathError, match=r"no config.json; give what is in it: .*/model.gguf"):
        load_model(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "model.gguf"))
    with pytest.raises(StorageError, match=r"model\.gguf"):
        load_model(tmp_path / "model.gguf")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"gguf is not installed; .*: pip install 'midthought\[gguf\]'"):
        load_model(tmp_path / "model.gguf")
