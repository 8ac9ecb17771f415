"""The recipe's policy: the user's model, or a small one created for the training episodes."""

from __future__ import annotations

import random
from typing import Any

from midthought.data.abstention import NO_ANSWER
from midthought.memory.chunks import Chunk
from midthought.memory.tool import TOOL_NAME
from midthought.models.small_model import make_tokenizer
from midthought.recipes.podcast.demonstrations import corpus
from midthought.recipes.podcast.settings import PodcastConfig
from midthought.trainer.initial_policy import make_policy_of

INSTRUCTION = (
    "Think inside <think> and </think>, then answer in as few words as possible. While you think you can search the "
    f'podcast memory: write #call {TOOL_NAME} {{"query": "words to look for"}} and read the result that follows.'
)


def make_small_policy(config: PodcastConfig, chunks: list[Chunk], *, may_abstain: bool = False) -> tuple[Any, Any]:
    """Returns a randomly initialized policy and its tokenizer. Both depend only on the settings, the chunks, and whether there
    are questions without an answer (`may_abstain`)."""
    seed = config.training.seed
    texts = corpus(chunks, random.Random(f"corpus-{seed}"), may_abstain=may_abstain)
    tokenizer = make_tokenizer(texts, config.model.vocab_size)
    return make_policy_of(config.model, tokenizer, max_length=4096, seed=seed), tokenizer


def instruction(config: PodcastConfig, *, may_abstain: bool = False) -> str:
    """Returns the system message: the user's, else one for models that the run did not create.

    `may_abstain`: it names the answer to a question that the memory does not answer.
    """
    if config.questions.instruction is not None:
        return config.questions.instruction
    if not config.model.local_path:
        return ""
    abstain = f" If you searched and the memory has no answer, answer: {NO_ANSWER}" if may_abstain else ""
    return INSTRUCTION + abstain
