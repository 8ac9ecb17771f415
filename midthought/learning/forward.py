"""A forward pass of the policy: the layout of a batch's tokens (padded rows, or all rows packed into one), and log-probabilities,
entropy and last hidden states at policy tokens.

Logits are computed at policy tokens only: hidden states are selected at the input of the model's own output layer, so the
architecture's later changes to its logits (soft-capping, scaling) apply to them. If these logits are still too many, they are
computed in blocks (`logprobs`). Tokens after the last prediction that is needed are not computed. Does not depend on a loss or a
tokenizer.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from midthought.algo.losses import entropy_from_logprobs
from midthought.learning.attention import row_arguments
from midthought.learning.batch import Packing, TokenBatch
from midthought.learning.fused import replaced_forwards
from midthought.learning.logprobs import BYTES_PER_LOGIT, BlockedHead, LogitShape, wide
from midthought.learning.ranks import is_sharded
from midthought.models.pretrained import Float32Linear

PROBE_LOGIT = 50.0
"""Largest of the outputs of the output layer for which what an architecture does to its logits is compared: a soft cap does not
change small ones."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ModelInputs:
    """The tokens of one pass, [B, T] (padded) or [1, N] (packed), and the positions of its outputs."""

    arguments: dict[str, Any]
    """Keyword arguments of the model. No attention mask: padding is on the right, and attention is causal."""
    is_wanted: Tensor  # bool, as the tokens
    """True for the states that predict a policy token; in row order, as in `tensor[batch.loss_mask]`."""
    targets: Tensor  # [n] int64
    """The policy tokens."""
    temperatures: Tensor | None  # [n] float32
    """Temperature that each policy token was sampled at; None: 1."""

    @classmethod
    def of(cls, batch: TokenBatch, *, packed: Packing = False) -> ModelInputs:
        """Builds the inputs. `packed`: for models that attend by rows (`attention.attending_by_rows`); `shared`: what a group's
        rows share is a row of its own, before the others, if that pays (`TokenBatch.shared_lengths`)."""
        mask = batch.loss_mask
        is_wanted = torch.cat([mask[1:], mask.new_zeros(1)])
        temperatures = None if batch.temperatures is None else batch.temperatures[mask]
        if packed:
            positions, lengths = batch.position_ids, batch.lengths
            places = torch.arange(len(lengths), device=lengths.device).repeat_interleave(lengths)
            needed = torch.ones_like(lengths).scatter_reduce(0, places, (positions + 1) * is_wanted, "amax")
            starts = batch.shared_lengths if packed == "shared" else torch.zeros_like(lengths)
            starts = starts * (needed > starts)  # a row that predicts nothing needs no prompt
            prompts, parents = _prompts(starts, batch)
            is_kept = (positions >= starts[places]) & (positions < needed[places])
            tokens = torch.cat([*prompts, batch.token_ids[is_kept]])[None]
            is_wanted = torch.cat([*(mask.new_zeros(len(prompt)) for prompt in prompts), is_wanted[is_kept]])[None]
            in_pass = [*map(len, prompts), *(needed - starts).tolist()]
            arguments = row_arguments(in_pass, tokens.device, [None] * len(prompts) + parents)
        else:
            tokens, is_wanted = (batch.padded(tensor)[:, :-1] for tensor in (batch.token_ids, is_wanted))
            arguments = {}
        return cls(
            arguments={"input_ids": tokens, "use_cache": False, **arguments},
            is_wanted=is_wanted,
            targets=batch.token_ids[mask],
            temperatures=temperatures,
        )


def _prompts(starts: Tensor, batch: TokenBatch) -> tuple[list[Tensor], list[int | None]]:
    """Returns the tokens of each prompt that is shared, and the number of each row's prompt, or None."""
    prompts: list[Tensor] = []
    numbers: dict[int, int] = {}
    parents: list[int | None] = []
    for start, group, first in zip(starts.tolist(), batch.groups.tolist(), batch.cu_seqlens.tolist(), strict=False):
        if start and group not in numbers:
            numbers[group] = len(prompts)
            prompts.append(batch.token_ids[first : first + start])
        parents.append(numbers[group] if start else None)
    return prompts, parents


@dataclass
class TokenOutputs:
    """Outputs of a forward pass for a batch's N policy tokens, in the order of `tensor[batch.loss_mask]`; float32."""

    logprobs: Tensor  # [N]
    entropy: Tensor | None = None  # [N], nats
    values: Tensor | None = None  # [N]


def policy_forward(
    policy: Any,
    layout: ModelInputs,
    *,
    entropy: bool = False,
    entropy_gradient: bool = True,
    logits_mib: float | None = None,
) -> tuple[TokenOutputs, Tensor]:
    """Returns the outputs and the last hidden states [N, H] at the wanted positions.

    The distribution is `softmax(logits / T)`, with T the temperature of each token in the layout.
    `entropy_gradient=False` saves the memory for the gradient of the entropy. `logits_mib` limits the logits that exist at
    once (MiB of float32), if the output layer is an `nn.Linear` and the architecture's changes to its logits are
    supported.
    """
    head = policy.get_output_embeddings()
    num_at_once = _num_at_once(head, logits_mib)
    found: list[tuple[LogitShape, Tensor, TokenOutputs]] = []

    def answer(forward: Callable[[Tensor], Tensor], states: Tensor) -> Tensor:
        if num_at_once is None or len(layout.targets) <= num_at_once:
            return forward(states[None])
        dtype, shape = getattr(head, "dtype", None), LogitShape.of(policy.config.get_text_config())
        blocked = BlockedHead(head.weight, head.bias, shape, num_at_once, dtype)
        logprobs, entropies = blocked.outputs(states, layout.targets, layout.temperatures, entropy=entropy)
        outputs = TokenOutputs(logprobs, entropies if entropy else None)
        probe = forward(states[None, :1].detach()).detach()
        probe = probe * (PROBE_LOGIT / probe.abs().max().clamp(min=1e-6))
        found.append((shape, probe[0].clone(), outputs))
        return _Linked.apply(probe, states) if is_sharded(policy) else probe

    logits, states = _run(policy, layout, answer)
    if not found:
        return _plain_outputs(logits[0], layout, entropy, entropy_gradient), states
    shape, probe, outputs = found[0]
    if not shape.maps(probe, logits[0]):
        _log.warning("what %s does to its logits is not known: all of them are kept", type(policy).__name__)
        return policy_forward(policy, layout, entropy=entropy, entropy_gradient=entropy_gradient)
    if is_sharded(policy):
        # the entropy has the same node as the log-probabilities
        outputs.logprobs = _Linked.apply(outputs.logprobs, logits)
    if outputs.entropy is not None and not entropy_gradient:
        outputs.entropy = outputs.entropy.detach()
    return outputs, states


def hidden_states(policy: Any, layout: ModelInputs) -> Tensor:
    """Returns the last hidden states at the wanted positions [N, H], with as few logits as the model allows."""
    return _run(policy, layout, lambda forward, states: forward(states[None, :1]))[1]


def _run(
    policy: Any, layout: ModelInputs, answer: Callable[[Callable[[Tensor], Tensor], Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """Runs the model. In this thread, its output layer returns `answer(its own forward, states)` of the wanted states [N, H].
    Returns the logits and these states; if the output layer is no module that was called, the logits are at all of them."""
    head, is_wanted, thread = policy.get_output_embeddings(), layout.is_wanted, threading.get_ident()
    forward: Any = getattr(head, "forward", None)
    states: list[Tensor] = []

    def stand_in(hidden: Tensor) -> Any:
        if threading.get_ident() != thread or hidden.shape[:-1] != is_wanted.shape:
            return forward(hidden)
        states.append(hidden[is_wanted])
        return answer(forward, states[-1])

    with replaced_forwards([] if head is None else [(head, stand_in)]):
        logits = policy(**layout.arguments).logits
    if states:
        return logits, states[0]
    outputs = policy(**layout.arguments, output_hidden_states=True)
    return outputs.logits[is_wanted][None], outputs.hidden_states[-1][is_wanted]


def _plain_outputs(logits: Tensor, layout: ModelInputs, entropy: bool, entropy_gradient: bool) -> TokenOutputs:
    """Computes the outputs from all logits [N, V] at once."""
    logits, temperatures = wide(logits), layout.temperatures
    distribution = (logits if temperatures is None else logits / temperatures[:, None]).log_softmax(-1)
    judged = distribution if entropy_gradient else distribution.detach()
    return TokenOutputs(
        logprobs=distribution.gather(-1, layout.targets[:, None]).squeeze(-1),
        entropy=entropy_from_logprobs(judged) if entropy else None,
    )


class _Linked(torch.autograd.Function):
    """Returns a tensor unchanged and adds another tensor to its backward pass, with a zero gradient.

    A sharded model gathers its outer weights again when the backward pass reaches its output. If logits are computed in
    blocks, the model returns only a sample of them, so the backward pass must go through the sample.
    """

    @staticmethod
    def forward(context: Any, tensor: Tensor, other: Tensor) -> Tensor:
        context.save_for_backward(other)
        return tensor.view_as(tensor)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        return gradients[0], torch.zeros_like(context.saved_tensors[0])


def _num_at_once(head: Any, logits_mib: float | None) -> int | None:
    """Returns the number of tokens whose logits take this much memory; None: any number."""
    if logits_mib is None or type(head) not in (nn.Linear, Float32Linear):
        return None
    return max(1, int(logits_mib * 2**20) // (BYTES_PER_LOGIT * head.out_features))


def spread(values: Tensor, mask: Tensor) -> Tensor:
    """[n] -> the mask's shape: puts values at the True positions of `mask`, 0 elsewhere; the inverse of `tensor[mask]`."""
    return values.new_zeros(mask.shape).masked_scatter(mask, values)
