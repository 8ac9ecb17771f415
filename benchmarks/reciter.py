"""A Qwen3 with constructed weights: it samples the same number of tokens and the same calls in every system.

Every token of the script has a position. After a token of one position, all tokens of the next position are equally probable
and no others are. So each system samples from real logits, but all of them do the same work. No system is modified, and the
cost of a forward pass does not depend on the weights.
"""

from __future__ import annotations

import itertools
import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from midthought.tokenization import Renderer
from midthought.tools.call_formats import ToolCallFormat
from midthought.tools.call_formats.in_thought import InThoughtFormat
from midthought.tools.call_formats.json_calls import HermesFormat

PADDING, TURN_START, TURN_END, THINK_OPEN, THINK_CLOSE = "<|pad|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"
SPECIALS = (PADDING, TURN_START, TURN_END, THINK_OPEN, THINK_CLOSE)
NEWLINE = "\n"
"""The last token of every prompt and every result: the script begins after it."""
WORDS = tuple(f" {first}{second}" for first, second in itertools.product(string.ascii_lowercase, repeat=2))
"""676 words of one token each, blank included; texts are made of them."""
NUM_ALTERNATIVES = 12
"""Words that a place of a word may hold; one of them is drawn."""
WORD = None
"""In a call: a place of a word."""

_USER = (
    "{% for m in messages %}{% if m.role == 'tool' %}<|im_start|>user\n<tool_response>\n{{ m.content }}\n</tool_response>"
    "<|im_end|>\n{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}'
    "<|im_end|>\n{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
)


@dataclass(frozen=True, slots=True)
class Style:
    """How calls are written: the call format, the pieces of a call (each a token), and how the chat template ends."""

    call_format: ToolCallFormat
    call: tuple[str | None, ...]
    template: str


STYLES = {
    "in_thought": Style(
        InThoughtFormat(), (" #call", " look", ' {"', "word", '": "', WORD, '"}'), _USER + "<think>\n{% endif %}"
    ),
    "hermes": Style(
        HermesFormat(),
        (
            "<tool_call>\n",
            '{"name": "',
            "look",
            '", "arguments": {"',
            "word",
            '": "',
            WORD,
            '"}}',
            "\n</tool_call>",
            TURN_END,
        ),
        _USER + "{% endif %}",
    ),
}
"""`in_thought`: the result is written into the running thought. `hermes`: chat turns, as TRL's tool loop has them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    """A Qwen3's sizes."""

    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int

    def describe(self) -> str:
        return (
            f"hidden {self.hidden_size}, {self.num_layers} layers, {self.num_heads} heads of {self.head_dim} "
            f"({self.num_kv_heads} of keys), vocabulary {self.vocab_size}"
        )


SIZES = {
    "tiny": Size(hidden_size=128, num_layers=4, num_heads=4, num_kv_heads=2, head_dim=32, vocab_size=1024),
    "small": Size(hidden_size=256, num_layers=6, num_heads=4, num_kv_heads=2, head_dim=64, vocab_size=2048),
    "half": Size(hidden_size=1024, num_layers=24, num_heads=16, num_kv_heads=8, head_dim=128, vocab_size=65536),
}
"""`half`: about 0.5 billion parameters, for machines with a GPU."""


class Reciter:
    """The model, its tokenizer and what it recites: `num_span` tokens, a call at their end, then the same anew."""

    def __init__(
        self,
        size: str,
        style: str,
        *,
        num_span: int,
        max_length: int = 8192,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.size, self.style, self.num_span = SIZES[size], STYLES[style], num_span
        self.call_format = self.style.call_format
        self.tokenizer = make_tokenizer(self.style.template)
        self.renderer = Renderer(self.tokenizer)
        self.places = self._make_places()
        self.model = make_model(self.size, self.tokenizer, max_length).to(device=device, dtype=dtype).eval()
        recite(self.model, self._id(NEWLINE), self.places)

    def check(self, token_ids: Sequence[int]) -> None:
        """Raise AssertionError unless these sampled tokens are the script, from its beginning, as often as they last."""
        for number, (token_id, place) in enumerate(zip(token_ids, itertools.cycle(self.places), strict=False)):
            assert token_id in place, f"sampled token {number} is {token_id}, not one of {place}"

    def _make_places(self) -> list[list[int]]:
        """The possible token ids at each position of a span: words of thought, then the call's tokens."""
        num_words = self.num_span - len(self.style.call)
        if not 0 < num_words < len(WORDS) // NUM_ALTERNATIVES or self.num_span >= self.size.hidden_size:
            raise ValueError(f"num_span={self.num_span}: a span takes {len(self.style.call) + 1} to 50 tokens or so")
        words = iter(WORDS)
        pieces = [*[WORD] * num_words, *self.style.call]
        return [
            [self._id(word) for word in (itertools.islice(words, NUM_ALTERNATIVES) if piece is WORD else [piece])]
            for piece in pieces
        ]

    def _id(self, piece: str) -> int:
        return int(self.tokenizer.convert_tokens_to_ids(piece if piece in SPECIALS else _spelled(piece)))


def make_tokenizer(template: str) -> Any:
    """Byte-level BPE: bytes, the words, and the pieces of the calls, which it can write but never reads out of a text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [_spelled(word) for word in WORDS]
    heads = sorted({word[:2] for word in words})
    pieces = sorted(
        {_spelled(piece) for style in STYLES.values() for piece in style.call if piece and piece not in SPECIALS}
    )
    vocabulary = {piece: number for number, piece in enumerate(dict.fromkeys([*alphabet, *heads, *words, *pieces]))}
    merges = [(head[0], head[1]) for head in heads] + [(word[:2], word[2]) for word in words]
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(list(SPECIALS))
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token=TURN_END, pad_token=PADDING, chat_template=template
    )


def make_model(size: Size, tokenizer: Any, max_length: int) -> Any:
    """A Qwen3 with random weights, always the same."""
    config = Qwen3Config(
        vocab_size=size.vocab_size,
        hidden_size=size.hidden_size,
        intermediate_size=3 * size.hidden_size,
        num_hidden_layers=size.num_layers,
        num_attention_heads=size.num_heads,
        num_key_value_heads=size.num_kv_heads,
        head_dim=size.head_dim,
        max_position_embeddings=max_length,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Qwen3ForCausalLM(config)


@torch.no_grad()
def recite(model: Any, start_id: int, places: Sequence[Sequence[int]]) -> None:
    """Set embeddings and head so that a token of one position is followed by one of the next, and the last by the first.

    Each position has its own direction; all directions are orthogonal. The embeddings are so long that the layers turn them
    only a little. A head row equals the direction of the previous position. So a token's logit is about 40 at its position
    and about 0 elsewhere.
    """
    embeddings, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    generator = torch.Generator().manual_seed(0)
    square = torch.randn(embeddings.shape[1], embeddings.shape[1], dtype=torch.float64, generator=generator)
    directions = torch.linalg.qr(square)[0][: len(places) + 1].to(embeddings)
    head.zero_()
    embeddings[start_id] = 1000 * directions[0]
    for number, place in enumerate(places):
        embeddings[list(place)] = 1000 * directions[number + 1]
        before = directions[0] + directions[len(places)] if number == 0 else directions[number]
        head[list(place)] = 40 / embeddings.shape[1] ** 0.5 * before


def _spelled(text: str) -> str:
    """A text as byte-level vocabularies spell it."""
    [(spelled, _)] = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)
    return spelled
