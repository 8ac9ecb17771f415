"""A small tokenizer with a chat template and a small Qwen3 in a folder, as verl wants them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from small_tokenizer import ANSWER_BEGINS, MESSAGES, small_tokenizer
from transformers import Qwen3Config, Qwen3ForCausalLM

from midthought.tokenization import Renderer

EMPTY_THOUGHT = "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    begins = ANSWER_BEGINS.removesuffix("{% endif %}") + EMPTY_THOUGHT + "{% endif %}"
    return small_tokenizer(MESSAGES + begins, pad="<|endoftext|>")


@pytest.fixture(scope="session")
def renderer(tokenizer: Any) -> Renderer:
    return Renderer(tokenizer)


@pytest.fixture(scope="session")
def model(tokenizer: Any) -> Any:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=32,
        intermediate_size=96,
        max_position_embeddings=1024,
        initializer_range=0.2,
        tie_word_embeddings=False,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return Qwen3ForCausalLM(config).eval()


@pytest.fixture(scope="session")
def model_path(model: Any, tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served") / "model"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
