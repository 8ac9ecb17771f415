"""Models as the learner sees them: any Hugging Face causal LM as the policy, a critic, log-probabilities of tokens.

Logits exist at policy tokens only: the hidden states are gathered before the model's own output layer, so whatever the
architecture does to its logits afterwards (softcapping, scaling) is done to these. Knows no loss and no tokenizer.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from midthought.algo.losses import entropy_from_logprobs
from midthought.learning.batch import PPOBatch


class PolicyHead(nn.Module):
    """Hidden states to logits: the policy's own output layer, shared with it, not a copy."""

    def __init__(self, policy: Any) -> None:
        super().__init__()
        self.linear = policy.get_output_embeddings()

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., H] -> [..., V]. What an architecture does to its logits afterwards (soft-capping, scaling) is not in them."""
        return self.linear(hidden)


class ValueHead(nn.Module):
    """A linear map from a hidden state to one number, zero at first: a fresh critic says 0 everywhere."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden_size, 1)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., H] -> [...], in float32."""
        return self.linear(hidden.to(self.linear.weight.dtype)).squeeze(-1).float()


class Critic(nn.Module):
    """The value function: a value head on a transformer trunk of its own, or (`trunk` None) on the policy's."""

    def __init__(self, head: ValueHead, trunk: nn.Module | None = None) -> None:
        super().__init__()
        self.head = head
        self.trunk = trunk

    @classmethod
    def separate(cls, policy: Any) -> Critic:
        """A copy of the policy's transformer as it stands, with a head that says 0."""
        trunk = copy.deepcopy(policy.base_model).requires_grad_(True)
        return cls(_head_for(policy), trunk)

    @classmethod
    def shared(cls, policy: Any) -> Critic:
        """A head alone, on the policy's last hidden state; the value loss trains the policy's trunk, too."""
        return cls(_head_for(policy))

    @property
    def is_shared(self) -> bool:
        return self.trunk is None

    def token_values(self, batch: PPOBatch) -> Tensor:
        """Values at the policy tokens of the batch, [N] in row order, for a critic with a trunk of its own."""
        if self.trunk is None:
            raise ValueError("a shared critic has no trunk: take the values of `token_figures(policy, batch, critic)`")
        hidden = self.trunk(input_ids=batch.token_ids[:, :-1], use_cache=False).last_hidden_state
        return self.head(hidden[batch.loss_mask[:, 1:]])


class PolicyValueModel(nn.Module):
    """Policy and value function in one module: one trunk with two heads (`shared`), or two trunks (`separate`)."""

    def __init__(self, policy: Any, critic: Critic | None = None) -> None:
        super().__init__()
        self.policy = policy
        self.critic = critic if critic is not None else Critic.shared(policy)

    @property
    def policy_head(self) -> PolicyHead:
        """The policy's output layer."""
        return PolicyHead(self.policy)

    @property
    def value_head(self) -> ValueHead:
        """The critic's."""
        return self.critic.head

    def forward(self, batch: PPOBatch, *, entropy: bool = False) -> TokenFigures:
        """Log-probabilities, values and (where asked) entropy at the policy tokens."""
        figures = token_figures(self.policy, batch, self.critic, entropy=entropy)
        if figures.values is None:
            figures.values = self.critic.token_values(batch)
        return figures


@dataclass
class TokenFigures:
    """What a forward pass says of a batch's N policy tokens, in the order of `tensor[batch.loss_mask]`; float32."""

    logprobs: Tensor  # [N]
    entropy: Tensor | None = None  # [N], nats
    values: Tensor | None = None  # [N]


def token_figures(
    policy: Any,
    batch: PPOBatch,
    critic: Critic | None = None,
    *,
    entropy: bool = False,
    entropy_gradient: bool = True,
) -> TokenFigures:
    """One forward pass: log-probabilities of the policy tokens at temperature 1; entropy, shared values if asked for.

    `values` is filled where `critic` shares the policy's trunk. No attention mask is passed: rows are padded on the
    right, and under causal attention no token sees what stands to its right. `entropy_gradient=False` saves the memory
    that learning from the entropy would take.
    """
    mask = batch.loss_mask[:, 1:]
    logits, hidden = _logits_at(policy, batch.token_ids[:, :-1], mask)
    distribution = torch.log_softmax(logits.float(), dim=-1)
    judged = distribution if entropy_gradient else distribution.detach()
    targets = batch.token_ids[:, 1:][mask]
    return TokenFigures(
        logprobs=distribution.gather(-1, targets[:, None]).squeeze(-1),
        entropy=entropy_from_logprobs(judged) if entropy else None,
        values=critic.head(hidden) if critic is not None and critic.is_shared else None,
    )


def token_logprobs(policy: Any, batch: PPOBatch) -> Tensor:
    """log π(token t | tokens before t) at policy tokens, 0 elsewhere: [B, T] float32."""
    return spread(token_figures(policy, batch).logprobs, batch.loss_mask)


def spread(figures: Tensor, mask: Tensor) -> Tensor:
    """[N] at the True places of `mask` -> [B, T], 0 elsewhere; the inverse of `tensor[mask]`."""
    return figures.new_zeros(mask.shape).masked_scatter(mask, figures)


def _logits_at(policy: Any, token_ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Logits [N, V] and last hidden states [N, H] at the True positions of `mask` [B, T]."""
    seen: list[Tensor] = []
    with _gathered_output(policy, mask, seen):
        outputs = policy(input_ids=token_ids, use_cache=False)
    if seen:
        return outputs.logits.squeeze(0), seen[0]
    outputs = policy(input_ids=token_ids, use_cache=False, output_hidden_states=True)
    return outputs.logits[mask], outputs.hidden_states[-1][mask]


@contextmanager
def _gathered_output(policy: Any, mask: Tensor, seen: list[Tensor]) -> Iterator[None]:
    """Within it, and for this thread alone, the policy's output layer gets [1, N, H] instead of [B, T, H]."""
    head = policy.get_output_embeddings()
    thread = threading.get_ident()

    def gather(module: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if threading.get_ident() != thread or arguments[0].shape[:2] != mask.shape:
            return None
        seen.append(arguments[0][mask])
        return (seen[-1][None], *arguments[1:])

    if head is None:
        yield
        return
    handle = head.register_forward_pre_hook(gather)
    try:
        yield
    finally:
        handle.remove()


def frozen_copy(policy: Any) -> Any:
    """A copy that never learns: the reference policy."""
    return copy.deepcopy(policy).requires_grad_(False).eval()


def _head_for(policy: Any) -> ValueHead:
    weight = policy.get_output_embeddings().weight
    return ValueHead(policy.config.get_text_config().hidden_size).to(weight.device)
