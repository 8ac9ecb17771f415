"""Chooses how a policy's weights reach servers: CUDA IPC, NCCL, or files in memory or on the disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from midthought.errors import SettingsError

TransportName = Literal["ipc", "nccl", "shared_memory", "disk"]

_PARALLEL_FLAGS = (
    *("--tensor-parallel-size", "-tp", "--pipeline-parallel-size", "-pp", "--data-parallel-size", "-dp"),
    *("--tp-size", "--tp", "--pp-size", "--pp", "--dp-size", "--dp", "--base-gpu-id"),
)
"""Flags with which vLLM or SGLang uses other GPUs than the first one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightTransport:
    """The way of whole models to the servers."""

    name: TransportName
    reason: str
    is_required: bool = False
    """The settings name it, so no other one is used instead."""
    may_be_refused: bool = True
    """False if the servers were started for it."""

    @property
    def sends_tensors(self) -> bool:
        """Whether tensors are sent instead of files."""
        return self.name in ("ipc", "nccl")


FOLDER = WeightTransport(name="disk", reason="files", may_be_refused=False)


def choose_transport(
    setting: str,
    *,
    device: str,
    sends_adapters: bool,
    is_started_here: bool,
    server_flags: Sequence[str] = (),
    weights_path: str | None = None,
) -> WeightTransport:
    """Returns the transport of `inference.weight_transport`, chosen by the situation for `auto`.

    Args:
        device: the policy's device, such as `cuda:0`. A server that is started here uses the first GPU, unless its flags say
            otherwise.
        sends_adapters: whether LoRA adapters are sent alone; servers load these from files only.
        is_started_here: whether the run starts the server.
        weights_path: folder for the weights from the settings.

    Raises `SettingsError` if the setting is impossible here.
    """
    if setting in ("ipc", "nccl") and not device.startswith("cuda"):
        raise SettingsError(
            f"inference.weight_transport={setting!r} needs a policy on a GPU, and this one is on {device!r}: use 'auto', "
            "'shared_memory' or 'disk'"
        )
    in_memory: TransportName = "shared_memory" if is_started_here and weights_path is None else "disk"
    if sends_adapters:
        name: TransportName = (
            "disk" if setting == "disk" else "shared_memory" if setting == "shared_memory" else in_memory
        )
        return WeightTransport(name=name, reason="servers load adapters from files", may_be_refused=False)
    if setting != "auto":
        return WeightTransport(
            name=setting,  # type: ignore[arg-type]
            reason="inference.weight_transport",
            is_required=True,
            may_be_refused=not is_started_here,
        )
    if weights_path is not None:
        return WeightTransport(name="disk", reason="inference.weights_path is set", may_be_refused=False)
    if not device.startswith("cuda"):
        return WeightTransport(name=in_memory, reason="the policy is on the CPU", may_be_refused=False)
    if not is_started_here:
        return WeightTransport(name="nccl", reason="the server has other GPUs")
    if device in ("cuda", "cuda:0") and not _uses_other_gpus(server_flags):
        return WeightTransport(name="ipc", reason="the server is on the policy's GPU", may_be_refused=False)
    return WeightTransport(name="nccl", reason="the server has other GPUs", may_be_refused=False)


def shares_gpu(device: str, *, is_started_here: bool, server_flags: Sequence[str]) -> bool:
    """Whether the server is on the policy's GPU, so that it should release its memory while the policy learns."""
    return is_started_here and device in ("cuda", "cuda:0") and not _uses_other_gpus(server_flags)


def _uses_other_gpus(server_flags: Sequence[str]) -> bool:
    return any(flag.partition("=")[0] in _PARALLEL_FLAGS for flag in server_flags)
