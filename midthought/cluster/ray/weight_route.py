"""Chooses how new weights reach the rollout actors: by NCCL broadcast or through Ray's object store. Does not depend on Ray."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from midthought.config import RayConfig
from midthought.errors import SettingsError


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightRoute:
    """How new weights reach the actors."""

    name: Literal["nccl", "object_store"]
    reason: str


def choose_weight_route(
    settings: RayConfig, policy_device: str, gpu_ids: Sequence[str] | None = None, *, has_nccl: bool = True
) -> WeightRoute:
    """Returns the route of `ray.weight_transport`, chosen by the situation for `auto`.

    Args:
        policy_device: device of the policy in the training process, such as `cuda:0`.
        gpu_ids: identifiers of the policy's GPU and of each actor's GPU, in this order; None: not known yet. Ray does not
            reserve the training process's GPU, so an actor may be on it.
        has_nccl: whether this PyTorch has NCCL.

    Raises `SettingsError` if the setting is `nccl`, which is impossible here.
    """
    if settings.weight_transport == "object_store":
        return WeightRoute(name="object_store", reason="ray.weight_transport")
    found = _obstacle(settings, policy_device, gpu_ids, has_nccl=has_nccl)
    if found is None:
        return WeightRoute(name="nccl", reason="the policy and each worker have a GPU of their own")
    obstacle, remedy = found
    if settings.weight_transport == "nccl":
        raise SettingsError(
            f"ray.weight_transport='nccl', but {obstacle}: {remedy}, or set ray.weight_transport to 'auto' or 'object_store'"
        )
    return WeightRoute(name="object_store", reason=obstacle)


def _obstacle(
    settings: RayConfig, policy_device: str, gpu_ids: Sequence[str] | None, *, has_nccl: bool
) -> tuple[str, str] | None:
    """Returns why NCCL is impossible, and the remedy; None if it is possible."""
    own_gpus = "give each actor a whole GPU that the policy is not on (ray.gpus_per_actor=1)"
    if not policy_device.startswith("cuda"):
        return f"the policy in the training process is on {policy_device!r}", "train on a GPU"
    if not settings.gpus_per_actor:
        return "the workers have no GPUs (ray.gpus_per_actor=0)", own_gpus
    if settings.colocate:
        return "the workers share GPUs with the learners (ray.colocate)", "set ray.colocate to false"
    if not has_nccl:
        return "this PyTorch has no NCCL", "install one with CUDA"
    if gpu_ids and gpu_ids[0] in gpu_ids[1:]:
        return (
            "a worker is on the policy's GPU",
            "set model.device to a GPU that no worker is on (Ray gives out cuda:0 first)",
        )
    if gpu_ids and max(Counter(gpu_ids).values()) > 1:
        return "several workers share a GPU", own_gpus
    return None
