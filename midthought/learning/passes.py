"""A rank's forward passes over a batch: micro-batches, packing, recomputed layers, and smaller micro-batches if memory runs out.

Does not depend on a loss or an optimizer.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor

from midthought.config import TrainingConfig
from midthought.learning.attention import attending_by_rows, can_pack, can_share
from midthought.learning.batch import Packing, TokenBatch
from midthought.learning.distributed.process_group import ProcessGroup
from midthought.learning.forward import TokenOutputs
from midthought.learning.fused_modules import FusedModules
from midthought.learning.layers import RecomputedLayers
from midthought.learning.micro_batch_limit import MicroBatchLimit, Result
from midthought.learning.model import Critic, token_outputs
from midthought.models.varlen_attention import no_cudnn_attention


class ForwardPasses:
    """Runs models over this rank's micro-batches of a batch.

    Args:
        policy, critic: the models that learn; one of them may be missing.
        others: models that only score.
        training: the settings; `training` may be replaced later, but `gradient_checkpointing` stays.
        process_group: the other ranks.
    """

    def __init__(
        self,
        policy: Any,
        critic: Critic | None,
        others: Sequence[Any],
        training: TrainingConfig,
        process_group: ProcessGroup,
    ) -> None:
        self.training = training
        self.process_group = process_group
        self.limit = MicroBatchLimit(is_alone=process_group.is_alone)
        self._policy = policy
        trunk = critic.trunk if critic is not None else None
        learning = [policy] if trunk is None else [policy, trunk]
        self._models = [*learning, *(model for model in others if model not in (None, policy))]
        self._recomputed = None
        if training.recomputes_layers:
            self._recomputed = RecomputedLayers(*learning, offload=training.offloads_activations)
        self._fused = FusedModules(*self._models)

    @property
    def device(self) -> torch.device:
        return next(iter(self._policy.parameters())).device

    @functools.cached_property
    def packing(self) -> Packing:
        """Whether rows are concatenated without padding, and share their group's prompt: if the settings request it and every
        model supports it."""
        wanted = self.training.packing
        if not (wanted and all(can_pack(model) for model in self._models)):
            return False
        return "shared" if wanted == "shared" and all(can_share(model) for model in self._models) else True

    @contextmanager
    def context(self) -> Iterator[None]:
        """Context of forward and backward passes: a layer that is recomputed must use the same attention."""
        with ExitStack() as stack:
            stack.enter_context(no_cudnn_attention(self.device))
            if self.packing:
                stack.enter_context(attending_by_rows(*self._models))
            stack.enter_context(self._fused.active())
            if self._recomputed is not None:
                stack.enter_context(self._recomputed.active())
            yield

    def forward(
        self,
        model: Any,
        micro: TokenBatch,
        critic: Critic | None = None,
        *,
        entropy: bool = False,
        learns_entropy: bool = False,
    ) -> TokenOutputs:
        """Runs one pass of a policy over a micro-batch; with a critic also of the critic, even if it has its own trunk."""
        outputs = token_outputs(
            model,
            micro,
            critic,
            entropy=entropy,
            entropy_gradient=learns_entropy,
            packed=self.packing,
            logits_mib=self.training.max_logits_mib,
        )
        if critic is not None and outputs.values is None:
            outputs.values = critic.token_values(micro, packed=self.packing)
        return outputs

    def logprobs(self, model: Any, batch: TokenBatch) -> Tensor:
        """Returns the log-probabilities of this rank's rows at policy tokens, 0 elsewhere: [N] float32. Call it in `context`."""
        filled = torch.zeros(batch.num_tokens)
        for rows, is_own, micro in self.over(batch):
            fill(filled, batch, rows, self.forward(model, micro).logprobs, is_own)
        return filled

    def over(self, batch: TokenBatch) -> Iterator[tuple[Tensor, bool, TokenBatch]]:
        """Yields this rank's micro-batches: rows, whether they count (`ProcessGroup.rows`), and their tokens on the device."""
        max_tokens = self.limit.max_tokens(self.training.max_micro_batch_tokens)
        for rows, is_own in self.process_group.rows(batch, max_tokens, packed=self.packing):
            self.limit.current = batch.select(rows)
            yield rows, is_own, self.limit.current.to(self.device)

    @property
    def fitting(self) -> Callable[[Callable[[], Result]], Result]:
        """`fitting(compute)` returns `compute()`, repeated with smaller micro-batches if memory runs out."""
        return functools.partial(self.limit.fitting, self.training.max_micro_batch_tokens)


def fill(filled: Tensor, batch: TokenBatch, rows: Tensor, values: Tensor, is_own: bool) -> None:
    """Writes values at the policy tokens of these rows of the batch into `filled` [N], if `is_own`."""
    if is_own:
        tokens = batch.tokens_of(rows)
        filled[tokens[batch.loss_mask[tokens]]] = values.to(filled)
