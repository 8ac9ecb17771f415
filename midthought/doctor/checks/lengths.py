"""Checks of the lengths: prompts fit into a sequence, and answers into the budget of an episode. They count tokens only."""

from __future__ import annotations

import json
from collections.abc import Iterator

from midthought.doctor.registry import check
from midthought.doctor.setup import Setup
from midthought.guards.finding import Finding


@check("prompt_length", is_fast=True)
def prompt_length(setup: Setup) -> Iterator[Finding]:
    """The longest prompts leave room for an answer."""
    parts = setup.parts
    lengths = sorted(len(parts.renderer.prompt(parts.messages(task))) for task in setup.known_tasks)
    too_long = [length for length in lengths if length >= parts.max_seq_len]
    if too_long:
        definitions = parts.registry.definitions()
        of_tools = [(len(parts.renderer.foreign(json.dumps(each.json_schema()))), each.name) for each in definitions]
        longest, name = max(of_tools, default=(0, ""))
        is_tool = 2 * longest > too_long[0]
        yield Finding(
            observation=f"{len(too_long)} of {len(lengths)} prompts have {too_long[0]} to {too_long[-1]} tokens, and a sequence "
            f"may have {parts.max_seq_len}: their episodes fail"
            + (f"; the description of the tool {name!r} alone has about {longest:,} tokens" if is_tool else ""),
            causes=(
                *(["a tool has a long description"] if is_tool else []),
                "inference.max_seq_len is smaller than the prompts",
                "the model has too few positions",
            ),
            action=(f"leave out the tool {name!r} or shorten its description, " if is_tool else "")
            + "shorten the prompts, raise inference.max_seq_len, or take a model with more positions",
            policy="stop" if len(too_long) == len(lengths) else "warn",
        )


@check("answer_length", is_fast=True)
def answer_length(setup: Setup) -> Iterator[Finding]:
    """A gold answer alone fits into `inference.max_tokens`, and into what a prompt leaves of a sequence."""
    parts, limit = setup.parts, setup.config.inference.max_tokens
    lengths = [len(parts.renderer.foreign(task.answer)) for task in setup.tasks_with_answers]
    too_long = [length for length in lengths if length + 1 > limit]
    if len(too_long) > 0.1 * len(lengths):
        yield Finding(
            observation=f"the gold answers of {len(too_long)} of {len(lengths)} tasks have, with the end "
            f"of an answer, more than inference.max_tokens={limit} tokens (at most {max(too_long) + 1}): no episode has them",
            causes=("inference.max_tokens is too small", "the answer column holds whole solutions instead of answers"),
            action=f"set inference.max_tokens above {2 * max(too_long)}, or give the column of the short answers",
        )
