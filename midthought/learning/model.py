"""The models of a learner: any Hugging Face causal LM as the policy, with LoRA adapters (peft) if only these learn, a critic,
and their outputs for a batch's tokens; the public padded batch. Does not depend on a loss or a tokenizer.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import fields
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from midthought.config import RecipeConfig
from midthought.config.references import optional
from midthought.errors import SettingsError
from midthought.learning.attention import attending_by_rows
from midthought.learning.batch import OF_ROWS, Packing, TokenBatch
from midthought.learning.forward import ModelInputs, TokenOutputs, policy_forward, spread
from midthought.learning.logprobs import wide
from midthought.models.peft_weights import base_of, unadaptable_layers
from midthought.types import Trajectory


class PolicyHead(nn.Module):
    """Maps hidden states to logits with the policy's own output layer, which is shared, not copied."""

    def __init__(self, policy: Any) -> None:
        super().__init__()
        if not hasattr(policy, "get_output_embeddings"):
            raise TypeError(f"PolicyHead({policy!r:.40}): give a causal LM of transformers, whose output layer it uses")
        self.linear = policy.get_output_embeddings()

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., H] -> [..., V], before the architecture's own changes to its logits (soft-capping, scaling)."""
        return self.linear(hidden)


class ValueHead(nn.Module):
    """A linear map from a hidden state to one number, initialized to zero: a new critic returns 0 everywhere."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden_size, 1)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., H] -> [...], in float32."""
        return wide(self.linear(hidden.to(self.linear.weight.dtype)).squeeze(-1))


class Critic(nn.Module):
    """The value function: a value head on its own transformer trunk, or (`trunk` None) on the policy's trunk."""

    def __init__(self, head: ValueHead, trunk: nn.Module | None = None) -> None:
        super().__init__()
        self.head = head
        self.trunk = trunk

    @classmethod
    def separate(cls, policy: Any) -> Critic:
        """Copies the policy's transformer and adds a head that returns 0. All parameters learn; for a PEFT model, only the
        parameters that learn in the policy."""
        trunk = copy.deepcopy(base_of(policy).base_model)
        return cls(_head_for(policy), trunk if has_adapters(policy) else trunk.requires_grad_(True))

    @classmethod
    def shared(cls, policy: Any) -> Critic:
        """Creates only a head, on the policy's last hidden state. The value loss also trains the policy's trunk."""
        return cls(_head_for(policy))

    @property
    def is_shared(self) -> bool:
        return self.trunk is None

    def token_values(self, batch: TokenBatch, *, packed: Packing = False) -> Tensor:
        """Returns the values at the policy tokens of the batch, [N] in row order. The critic must have its own trunk."""
        if self.trunk is None:
            raise ValueError("a shared critic has no trunk: take the values of `token_outputs(policy, batch, critic)`")
        layout = ModelInputs.of(batch, packed=packed)
        with attending_by_rows(self.trunk) if packed else nullcontext():
            hidden = self.trunk(**layout.arguments).last_hidden_state
        return self.head(hidden[layout.is_wanted])


class Models(NamedTuple):
    """The models of a learner. With LoRA, the reference is the policy itself."""

    policy: Any
    critic: Critic | None
    reference: Any | None
    teacher: Any | None = None

    @classmethod
    def from_config(cls, policy: Any, config: RecipeConfig, teacher: Any | None = None) -> Models:
        """Uses the policy as it is; adds a critic and a reference if the settings need them.

        With `model.lora_rank`, adapters are added to the policy. They learn, and the policy without them is the reference.
        A PEFT model whose adapters do not change its outputs yet is also its own reference. Raises SettingsError if
        `model.lora_rank` is set for a PEFT model.
        """
        training, rank = config.training, config.model.adapter_rank
        if rank and has_adapters(policy):
            raise SettingsError(
                f"model.lora_rank={rank}, but the model has adapters already; set model.lora_rank=0 to train those"
            )
        make_critic = Critic.separate if config.model.critic_kind == "separate" else Critic.shared
        critic = make_critic(policy) if training.has_critic else None
        needs_reference, is_own_reference = training.needs_reference, bool(rank) or are_adapters_idle(policy)
        if rank:
            policy = add_adapters(policy, rank, config.model.lora_alpha, config.training.seed)
        if not needs_reference:
            return cls(policy, critic, None, teacher)
        return cls(policy, critic, policy if is_own_reference else frozen_copy(policy), teacher)

    def tensors(self) -> dict[str, Tensor]:
        """Returns parameters and buffers as `policy.NAME`, `critic.NAME` and so on; shared tensors appear once."""
        found: dict[str, Tensor] = {}
        for prefix, module in self._asdict().items():
            if module is not None and (prefix == "policy" or module is not self.policy):
                named = [*module.named_parameters(), *module.named_buffers()]
                found |= {f"{prefix}.{name}": tensor for name, tensor in named}
        return found


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
        """The critic's value head."""
        return self.critic.head

    def forward(self, batch: TokenBatch | PPOBatch, *, entropy: bool = False) -> TokenOutputs:
        """Returns log-probabilities, values and (if requested) entropy at the policy tokens."""
        batch = batch.flat() if isinstance(batch, PPOBatch) else batch
        outputs = token_outputs(self.policy, batch, self.critic, entropy=entropy)
        if outputs.values is None:
            outputs.values = self.critic.token_values(batch)
        return outputs


def token_outputs(
    policy: Any,
    batch: TokenBatch,
    critic: Critic | None = None,
    *,
    entropy: bool = False,
    entropy_gradient: bool = True,
    packed: Packing = False,
    logits_mib: float | None = None,
) -> TokenOutputs:
    """Runs one forward pass. Returns log-probabilities of the policy tokens under the distribution that each was sampled
    from (`TokenBatch.temperatures`); entropy and shared values if requested.

    `values` is filled if `critic` shares the policy's trunk. `packed`: concatenates the rows without padding, for a model
    that `can_pack`; `shared`: with each group's prompt once, for a model that `can_share`. `entropy_gradient`, `logits_mib`: see
    `policy_forward`.
    """
    layout = ModelInputs.of(batch, packed=packed)
    with attending_by_rows(policy) if packed else nullcontext():
        outputs, hidden = policy_forward(
            policy, layout, entropy=entropy, entropy_gradient=entropy_gradient, logits_mib=logits_mib
        )
    if critic is not None and critic.is_shared:
        outputs.values = critic.head(hidden)
    return outputs


def token_logprobs(policy: Any, batch: TokenBatch) -> Tensor:
    """Returns log π(token t | tokens before t) at policy tokens, at each token's temperature; 0 elsewhere: [N] float32."""
    return spread(token_outputs(policy, batch).logprobs, batch.loss_mask)


def frozen_copy(policy: Any) -> Any:
    """Returns a copy that does not learn, for use as the reference policy."""
    return copy.deepcopy(policy).requires_grad_(False).eval()


def _head_for(policy: Any) -> ValueHead:
    weight = policy.get_output_embeddings().weight
    return ValueHead(weight.shape[1]).to(weight.device)


def add_adapters(policy: Any, rank: int, alpha: int, seed: int = 0) -> Any:
    """Adds adapters to all linear layers of the policy but the output layer. Only they learn; they change no output yet.
    Those that `unadaptable_layers` names are left out.

    `W x` becomes `W x + (alpha / rank) B A x`, A [rank, in], B [out, rank] initialized to 0. Source: Hu et al. 2021 (arXiv
    2106.09685), section 4.1. The layers of `policy` itself are replaced, so it also computes with the adapters.
    A is drawn with `seed`; the global random state does not change. Raises MissingExtraError if peft is not installed.
    """
    peft = optional("peft", "lora")
    config = peft.LoraConfig(
        r=rank,
        lora_alpha=alpha,
        target_modules="all-linear",
        exclude_modules=unadaptable_layers(policy) or None,
        lora_dropout=0.0,
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return peft.get_peft_model(policy, config)


def has_adapters(policy: Any) -> bool:
    """Whether it is a PEFT model, such as `add_adapters` returns, or a model to which transformers' `add_adapter` added some."""
    return hasattr(policy, "get_base_model") or getattr(policy, "_hf_peft_config_loaded", False)


def are_adapters_idle(policy: Any) -> bool:
    """Whether this is a PEFT model with LoRA whose outputs equal its base model's: every B is zero, and the copies made by
    `modules_to_save` are equal to the originals."""
    is_peft_model = hasattr(policy, "disable_adapter")
    if not is_peft_model or any(str(each.peft_type) != "PeftType.LORA" for each in policy.peft_config.values()):
        return False
    factors = [tensor for name, tensor in policy.named_parameters() if "lora_B" in name or "lora_embedding_A" in name]
    if not factors or any(bool(tensor.any()) for tensor in factors):
        return False
    saved: list[Any] = [module for module in policy.modules() if hasattr(module, "original_module")]
    if any(hasattr(module, "token_adapter") for module in saved):
        return False
    pairs = [(each.original_module, copied) for each in saved for copied in each.modules_to_save.values()]
    return all(
        torch.equal(one, other)
        for original, copied in pairs
        for one, other in zip(original.parameters(), copied.parameters(), strict=True)
    )


_PADDING = {"turns": -1, "calls": -1, "temperatures": 1.0}
"""The value of padding; 0 in other fields."""
_FIELDS = {"lengths", *(field.name for field in fields(TokenBatch))}


class PPOBatch:
    """B rows (segments of E episodes), padded on the right to T tokens, with the fields of `TokenBatch`.

    Fields of tokens are [B, T], fields of rows [B]. `turns` and `calls` are padded with -1, `temperatures` with 1, `token_ids`
    with `pad_token_id`, the others with 0. Pass `flat()` to a learner.
    """

    def __init__(self, batch: TokenBatch, pad_token_id: int = 0) -> None:
        self._flat = batch
        self._padding = {"token_ids": pad_token_id, **_PADDING}

    @classmethod
    def from_trajectories(
        cls, trajectories: Sequence[Trajectory], *, pad_token_id: int = 0, **options: Any
    ) -> PPOBatch:
        """Pads `TokenBatch.from_trajectories(trajectories, **options)`."""
        return cls(TokenBatch.from_trajectories(trajectories, **options), pad_token_id)

    def flat(self) -> TokenBatch:
        """Returns the same rows without padding."""
        return self._flat

    def __getattr__(self, name: str) -> Any:
        if name not in _FIELDS:
            raise AttributeError(name)
        value = getattr(self._flat, name)
        is_of_tokens = isinstance(value, Tensor) and name not in (*OF_ROWS, "cu_seqlens")
        return self._flat.padded(value, self._padding.get(name, 0)) if is_of_tokens else value

    def __len__(self) -> int:
        """Number of rows."""
        return len(self._flat)

    @property
    def attention_mask(self) -> Tensor:
        """[B, T] bool, True before the padding. Causal attention does not need it: no token sees the padding to its right."""
        positions: Tensor = self.position_ids
        return positions < self._flat.lengths[:, None]

    @property
    def position_ids(self) -> Tensor:
        """[B, T] int64: 0, 1, … in every row."""
        longest = int(self._flat.lengths.max())
        return torch.arange(longest, device=self._flat.token_ids.device).expand(len(self), longest)
