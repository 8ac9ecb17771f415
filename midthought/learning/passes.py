"""A rank's forward passes over a batch: micro-batches, packing, recomputed layers.

Does not depend on a loss or an optimizer.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint

from midthought.config import TrainingConfig, settled
from midthought.errors import SettingsError
from midthought.learning.attention import attending_by_rows, can_pack, can_share
from midthought.learning.batch import Packing, TokenBatch
from midthought.learning.forward import TokenOutputs
from midthought.learning.fused import FusedModules, replaced_forwards
from midthought.learning.model import Critic, token_outputs
from midthought.learning.ranks import ProcessGroup
from midthought.models.varlen_attention import no_cudnn_attention

_REMEDY = (
    "training.gradient_checkpointing=true or a smaller training.logits_mib; or begin a new one with a smaller "
    "inference.max_tokens or model.lora_rank=32"
)
"""What saves memory besides smaller micro-batches."""


class LearnerPasses:
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
        self._current: TokenBatch | None = None
        """The micro-batch that is computed now."""
        self._policy = policy
        trunk = critic.trunk if critic is not None else None
        learning = [policy] if trunk is None else [policy, trunk]
        self._models = [*learning, *(model for model in others if model not in (None, policy))]
        self._recomputed = None
        if (recomputes := settled(training.gradient_checkpointing, False)) is not False:
            self._recomputed = RecomputedLayers(*learning, offload=recomputes == "offload")
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
        """Context of forward and backward passes: a layer that is recomputed must use the same attention.

        Raises `SettingsError`, with the size of the micro-batch and the remedy, if it does not fit in memory.
        """
        with ExitStack() as stack:
            stack.enter_context(self._explained())
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
        for rows, is_own in self.process_group.rows(batch, self.training.max_micro_batch_tokens, packed=self.packing):
            self._current = batch.select(rows)
            yield rows, is_own, self._current.to(self.device)
        self._current = None

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except torch.OutOfMemoryError as error:
            if self._current is None:
                raise
            num_rows, max_tokens = len(self._current), self.training.max_micro_batch_tokens
            num_tokens = int(self._current.units(max_tokens, packed=self.packing)[1].sum())
            longest = int(self._current.lengths.max())
            smaller = f"training.micro_batch_tokens={max(64, longest, num_tokens // 2)}, "
            raise SettingsError(
                f"out of memory while learning from a micro-batch of {num_tokens} tokens in {num_rows} rows, the longest of "
                f"{longest}: resume the run with {smaller if num_rows > 1 else ''}{_REMEDY} "
                f"({str(error).partition(chr(10))[0][:200]})"
            ) from error


def fill(filled: Tensor, batch: TokenBatch, rows: Tensor, values: Tensor, is_own: bool) -> None:
    """Writes values at the policy tokens of these rows of the batch into `filled` [N], if `is_own`."""
    if is_own:
        tokens = batch.tokens_of(rows)
        filled[tokens[batch.loss_mask[tokens]]] = values.to(filled)


class RecomputedLayers:
    """Gradient checkpointing: within `active()` a layer keeps only its input, and the backward pass computes it again.

    Activation memory falls from all layers to one layer and the inputs of the others. Cost: a third more compute.
    Source: Chen et al. 2016 (arXiv 1604.06174). Unlike transformers' own switch, it works in eval mode (no dropout).
    Raises ValueError for a model without layers that transformers can recompute.

    With `offload`, the inputs of the layers are kept in main memory: no memory of a GPU grows with the number of layers.
    """

    def __init__(self, *models: Any, offload: bool = False) -> None:
        compute = _recomputed_from_main_memory if offload else _recomputed
        layers = [layer for model in models for layer in decoder_layers(model)]
        self._forwards = [(layer, functools.partial(compute, layer.forward)) for layer in layers]

    def active(self) -> AbstractContextManager[None]:
        return replaced_forwards(self._forwards)


def decoder_layers(model: Any) -> list[nn.Module]:
    """Returns the model's decoder layers. Raises ValueError if there are none."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    found: list[nn.Module] = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not found:
        raise ValueError(
            f"{type(model).__name__} has no layers of transformers' GradientCheckpointingLayer; "
            "set training.gradient_checkpointing to false"
        )
    return found


def _recomputed(forward: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*arguments, **options)
    return checkpoint(forward, *arguments, use_reentrant=False, preserve_rng_state=False, **options)


def _recomputed_from_main_memory(forward: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    with save_on_cpu(pin_memory=torch.cuda.is_available()):
        return _recomputed(forward, *arguments, **options)
