"""Small policy that the recipe creates if no model is given: digits are single tokens, the chat template has the role `tool`."""

from __future__ import annotations

from typing import Any

from midthought.config import ModelConfig
from midthought.models.small_model import make_tokenizer
from midthought.recipes.feedback.demonstrations import corpus
from midthought.trainer.initial_policy import make_policy_of

MAX_LENGTH = 1024

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_small_policy(model: ModelConfig, seed: int) -> tuple[Any, Any]:
    """Returns a randomly initialized policy and its tokenizer; both depend only on the settings and the seed."""
    tokenizer = make_tokenizer(corpus(), model.vocab_size, joins_words=True)
    tokenizer.chat_template = CHAT_TEMPLATE
    return make_policy_of(model, tokenizer, max_length=MAX_LENGTH, seed=seed), tokenizer
