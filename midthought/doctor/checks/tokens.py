"""Checks of the tokenizer and the chat template: what is written comes back, answers end, turns are only appended."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from midthought.doctor.registry import check
from midthought.doctor.scripted import Line, written
from midthought.doctor.setup import PolicyParts, Setup
from midthought.errors import DataError, SettingsError
from midthought.guards.finding import Finding
from midthought.tokenization import Renderer

NUM_TEXTS = 32
_ANSWER = {"role": "assistant", "content": "a"}
_USER = {"role": "user", "content": "b"}


@check("chat_template", is_fast=True)
def chat_template(setup: Setup) -> Iterator[Finding]:
    """A prompt ends with the start of an answer. A later turn is appended to the earlier ones, or episodes have a segment for
    each turn (`inference.keep_thoughts`)."""
    renderer = setup.parts.renderer
    if not renderer.chat_template.is_given:
        return
    if renderer.prompt([_USER]) == renderer.prompt([_USER], add_generation_prompt=False) and _names_roles(renderer):
        yield Finding(
            observation="the chat template does not start an answer: a prompt with add_generation_prompt equals one without, so "
            "the policy itself must write the start of its message",
            causes=("the template has no part for add_generation_prompt",),
            action="give the tokenizer the model's own chat template",
        )
    if not setup.has_replies:
        return
    try:
        renderer.following([_USER])
    except SettingsError as error:
        yield Finding(
            observation=f"the chat template cannot add a turn to a conversation: {error}",
            causes=("the template renders only some of the messages, or refuses this order of roles",),
            action="give the tokenizer the model's own chat template",
            policy="stop",
        )
        return
    if setup.config.inference.keep_thoughts and not renderer.only_appends:
        yield Finding(
            observation="the chat template changes earlier turns when a turn is added, for example drops their thoughts; "
            "episodes keep them",
            causes=("the template is written for serving, where earlier thoughts are dropped",),
            action="set inference.keep_thoughts=false, so that every turn is a segment as it is served",
        )


def _names_roles(renderer: Renderer) -> bool:
    """Whether the template writes something between a prompt and its answer (Mistral's, for example, does not)."""
    try:
        end = len(renderer.prompt([_USER], add_generation_prompt=False))
        answered = renderer.prompt([_USER, _ANSWER], add_generation_prompt=False)
    except SettingsError:
        return False
    between = renderer.decode(answered[end:]).partition(_ANSWER["content"])[0]
    return bool(between.strip())


@check("tokenizer", is_fast=True)
def tokenizer(setup: Setup) -> Iterator[Finding]:
    """The tokens of prompts and answers decode to the same text, and the model has a row for every token."""
    parts = setup.parts
    texts = [text for task in setup.tasks[:NUM_TEXTS] for text in (task.prompt, task.answer) if text]
    changed = [
        text for text in texts or ["Ada: 12 × 3 = 36."] if parts.renderer.decode(parts.renderer.foreign(text)) != text
    ]
    if changed:
        back = parts.renderer.decode(parts.renderer.foreign(changed[0]))
        yield Finding(
            observation=f"{len(changed)} of {len(texts)} texts change when they are encoded and decoded: {changed[0][:60]!r} "
            f"becomes {back[:60]!r}",
            causes=("the tokenizer normalizes texts, or lacks characters",),
            action="use the tokenizer that belongs to the model, or normalize prompts and answers in the same way",
        )
    size = _num_rows(parts)
    largest = max(parts.renderer.tokenizer.get_vocab().values())
    if size is not None and largest >= size:
        yield Finding(
            observation=f"the tokenizer has the token id {largest}, and the model has {size} embeddings",
            causes=("tokens were added to the tokenizer", "the tokenizer belongs to another model"),
            action="call model.resize_token_embeddings(len(tokenizer)), or use the model's own tokenizer",
            policy="stop" if _largest_in_prompts(setup) >= size else "warn",
        )


def _largest_in_prompts(setup: Setup) -> int:
    parts = setup.parts
    return max((max(parts.renderer.prompt(parts.messages(task))) for task in setup.tasks[:NUM_TEXTS]), default=0)


def _num_rows(parts: PolicyParts) -> int | None:
    embeddings = getattr(parts.model, "get_input_embeddings", lambda: None)()
    return getattr(embeddings, "num_embeddings", None)


@check("end_of_answer", is_fast=True)
def end_of_answer(setup: Setup) -> Iterator[Finding]:
    """There is a token that ends an answer, it does not occur inside one, and the model ends its answers with it."""
    parts = setup.parts
    renderer, ends = parts.renderer, parts.renderer.eos_token_ids
    if not ends:
        yield Finding(
            observation="no token ends an answer, so every episode continues until inference.max_tokens",
            causes=("the tokenizer has no eos_token, and the chat template ends answers without a control token",),
            action="set tokenizer.eos_token to the token with which the model ends its answers",
        )
        return
    names = ", ".join(renderer.decode([each]) for each in sorted(ends))
    inside = _ends_inside(setup)
    if inside:
        yield Finding(
            observation=f"the token {inside!r} ends an answer, and it also occurs inside one: the answer is cut there",
            causes=("eos_token is a token of ordinary answers, such as a line end or </think>",),
            action="set tokenizer.eos_token to the token with which the model ends its answers",
        )
    said = getattr(getattr(parts.model, "generation_config", None), "eos_token_id", None)
    own = {said} if isinstance(said, int) else set(said or ())
    if own and own.isdisjoint(ends):
        theirs = ", ".join(renderer.decode([each]) for each in sorted(own))
        yield Finding(
            observation=f"the model's own settings end an answer with {theirs!r}, and the tokenizer and its chat template with "
            f"{names!r}",
            causes=("tokenizer or chat template were replaced", "eos_token or pad_token was set by mistake"),
            action="set tokenizer.eos_token to the token with which the model was trained to end its answers",
        )


def _ends_inside(setup: Setup) -> str:
    """Returns a token that ends a written answer too early; empty if there is none."""
    parts = setup.parts
    for task in islice((task for task in setup.tasks if task.answer), 4):
        try:
            runs = written(parts, task, Line(answer=task.answer)).sampled_runs()
        except (SettingsError, DataError):
            continue
        early = parts.renderer.eos_token_ids.intersection(*[runs[-1][:-1]]) if runs else frozenset()
        if early:
            return parts.renderer.decode([min(early)])
    return ""
