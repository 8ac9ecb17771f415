"""A small Qwen3 with its own tokenizer, trained on a corpus: a policy for machines without downloads.

Its first two layers are initialized as an induction circuit (what followed this token last time?), so that copying, which
tool use needs, does not have to be discovered by chance. Does not depend on tasks or tools.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor

PADDING, TURN_START, TURN_END, THINK_OPEN, THINK_CLOSE = "<|pad|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)

ROPE_THETA = 1e6
HEAD_SIZE = 64
NUM_CONSTANT_DIMS = 8
BETA = 1.2
SHARPNESS = 1.7
OG = 8.0


def make_tokenizer(corpus: Iterable[str], vocab_size: int, *, joins_words: bool = False) -> Any:
    """Trains a byte-level BPE tokenizer with a chat template that opens the assistant's turn with a thought.

    With `joins_words`, frequent phrases become single tokens and every digit is its own token. This gives short sequences
    for calculations in a fixed wording.
    """
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if joins_words:
        apart, joined = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False, use_regex=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([apart, joined])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[PADDING, TURN_START, TURN_END, THINK_OPEN, THINK_CLOSE],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=TURN_END,
        pad_token=PADDING,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def make_policy(
    tokenizer: Any, *, hidden_size: int, num_layers: int, num_heads: int, max_length: int, seed: int
) -> Any:
    """Creates a Qwen3 causal LM for this tokenizer, with tied embeddings. The same seed gives the same weights.

    It is initialized as an induction circuit if it has at least two layers, two heads and a width of 64.
    """
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden_size,
        intermediate_size=3 * hidden_size,
        num_hidden_layers=num_layers,
        num_attention_heads=num_heads,
        num_key_value_heads=num_heads,
        head_dim=HEAD_SIZE,
        max_position_embeddings=max_length,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA},
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        policy = Qwen3ForCausalLM(config)
        torch.nn.init.normal_(policy.model.embed_tokens.weight, std=0.05)
        if num_layers >= 2 and num_heads >= 2 and hidden_size >= HEAD_SIZE:
            begin_as_induction_circuit(policy)
    return policy


@torch.no_grad()
def begin_as_induction_circuit(policy: Any) -> None:
    """Sets the first two attention layers of a Qwen3 so that it copies from the first step on.

    Layer 1: head 0 attends to the previous token, head 1 to the one before it (queries and keys read a constant part of
    the embeddings, which RoPE rotates by one or two positions). Each adds the token that it finds to the current token's
    state, multiplied by its own random orthogonal matrix. Layer 2: both heads attend to positions whose two previous
    tokens are the current token and the one before it, and copy the token there to the output. This is the induction head
    of Olsson et al., "In-context Learning and Induction Heads" (2022), set by hand in the style of Trockman & Kolter, "Mimetic
    Initialization of Self-Attention Layers" (2023). All weights are trained afterwards.
    """
    config = policy.config
    width, head = config.hidden_size, config.head_dim
    embeddings = policy.model.embed_tokens.weight
    scale = float(embeddings.std())
    embeddings[:, :NUM_CONSTANT_DIMS] = 0.6 * scale * math.sqrt(width / NUM_CONSTANT_DIMS)

    turns = [_orthogonal(width), _orthogonal(width)]
    for turn in turns:
        turn[:, :NUM_CONSTANT_DIMS] = 0
    value = _orthogonal(width)
    frequencies = ROPE_THETA ** (-torch.arange(head // 2) / (head // 2))
    fast = torch.arange(6)
    slow = torch.nonzero(frequencies < 0.008).flatten()
    near, far = slow[::2], slow[1::2]
    near, far = torch.cat([near, near + head // 2]), torch.cat([far, far + head // 2])

    look_back, look_up = policy.model.layers[0].self_attn, policy.model.layers[1].self_attn
    for attention in (look_back, look_up):
        for projection in (attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj):
            projection.weight.mul_(0.1)
        attention.q_norm.weight.fill_(SHARPNESS)
        attention.k_norm.weight.fill_(SHARPNESS)
    for number, turn in enumerate(turns):
        rows = torch.arange(number * head, (number + 1) * head)
        angles = frequencies[fast, None] * (number + 1)
        look_back.q_proj.weight[rows[fast], :NUM_CONSTANT_DIMS] += torch.cos(angles)
        look_back.q_proj.weight[rows[fast + head // 2], :NUM_CONSTANT_DIMS] -= torch.sin(angles)
        look_back.k_proj.weight[rows[fast], :NUM_CONSTANT_DIMS] += 1.0
        present, before = (value[torch.arange(len(near)) + offset] for offset in ((0, 24), (22, 44))[number])
        look_up.q_proj.weight[rows[near]] += present
        look_up.k_proj.weight[rows[near]] += present @ turns[0].T / BETA
        look_up.q_proj.weight[rows[far]] += before @ turns[0].T / BETA
        look_up.k_proj.weight[rows[far]] += before @ turns[1].T / BETA
        carried = value[rows % width]
        look_back.v_proj.weight[rows] += value[:head]
        look_up.v_proj.weight[rows] += carried
        look_back.o_proj.weight[:, rows] += BETA * scale * (turn @ value[:head].T)
        look_up.o_proj.weight[:, rows] += OG * scale * carried.T


def _orthogonal(size: int) -> Tensor:
    """Returns a random orthogonal matrix. Uses double precision: LAPACK's last bits depend on its buffers' addresses."""
    return torch.linalg.qr(torch.randn(size, size, dtype=torch.float64))[0].float()
