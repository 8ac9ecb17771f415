"""Chooses how a policy's weights reach servers: CUDA IPC, NCCL, or files in memory or on the disk."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from midthought.errors import SettingsError

TransportName = Literal["ipc", "nccl", "shared_memory", "disk"]

_NUM_GPUS_FLAGS = (
    *("--tensor-parallel-size", "-tp", "--pipeline-parallel-size", "-pp", "--data-parallel-size", "-dp"),
    *("--tp-size", "--tp", "--pp-size", "--pp", "--dp-size", "--dp"),
)
"""Flags of vLLM and SGLang whose values multiply the number of GPUs."""
_FIRST_GPU_FLAG = "--base-gpu-id"


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
    announces_transport: bool = True,
) -> WeightTransport:
    """Returns the transport of `inference.weight_transport`, chosen by the situation for `auto`.

    Args:
        device: the policy's device, such as `cuda:0`. A server that is started here uses the first GPU, unless its flags say
            otherwise.
        sends_adapters: whether LoRA adapters are sent alone; servers load these from files only.
        is_started_here: whether the run starts the server.
        weights_path: folder for the weights from the settings.
        announces_transport: whether a running server says that it was started for `nccl`. If not, it may be on the policy's
            GPU, which NCCL refuses, or on a machine that cannot reach this one.

    Raises `SettingsError` if the setting is impossible here.
    """
    if setting in ("ipc", "nccl") and not device.startswith("cuda"):
        raise SettingsError(
            f"inference.weight_transport={setting!r} needs a policy on a GPU, and this one is on {device!r}: use 'auto', "
            "'shared_memory' or 'disk'"
        )
    if setting == "shared_memory" and weights_path is not None:
        raise SettingsError(
            f"inference.weight_transport='shared_memory' and inference.weights_path={weights_path!r}: one excludes the other; "
            "use 'disk' or 'auto' with a folder of your own"
        )
    in_memory: TransportName = "shared_memory" if is_started_here and weights_path is None else "disk"
    if sends_adapters:
        name: TransportName = setting if setting in ("disk", "shared_memory") else in_memory  # type: ignore[assignment]
        return WeightTransport(name=name, reason="servers load adapters from files", may_be_refused=False)
    if setting != "auto":
        return WeightTransport(
            name=setting,  # type: ignore[arg-type]
            reason="inference.weight_transport",
            is_required=True,
        )
    if weights_path is not None:
        return WeightTransport(name="disk", reason="inference.weights_path is set", may_be_refused=False)
    if not device.startswith("cuda"):
        return WeightTransport(name=in_memory, reason="the policy is on the CPU", may_be_refused=False)
    if is_started_here:
        return _for_started_server(int(device.partition(":")[2] or 0), server_gpus(server_flags))
    if announces_transport:
        return WeightTransport(name="nccl", reason="the server may have other GPUs")
    reason = "the server does not say on which GPUs it is; set inference.weight_transport=nccl if they are others"
    return WeightTransport(name="disk", reason=reason, may_be_refused=False)


def _for_started_server(policy_gpu: int, gpus: range) -> WeightTransport:
    if policy_gpu not in gpus:
        return WeightTransport(name="nccl", reason="the server is on other GPUs", may_be_refused=False)
    if len(gpus) == 1:
        return WeightTransport(name="ipc", reason="the server is on the policy's GPU", may_be_refused=False)
    reason = "the policy's GPU is one of several of the server, which neither CUDA IPC nor NCCL serves"
    return WeightTransport(name="shared_memory", reason=reason, may_be_refused=False)


def shares_gpu(device: str, *, is_started_here: bool, server_flags: Sequence[str]) -> bool:
    """Whether the server is on the policy's GPU, so that it should release its memory while the policy learns."""
    is_on_gpu = is_started_here and device.startswith("cuda")
    return is_on_gpu and int(device.partition(":")[2] or 0) in server_gpus(server_flags)


def server_gpus(server_flags: Sequence[str]) -> range:
    """Returns the numbers of the GPUs of a server that is started here: the first ones, as many as its flags say."""
    first, count = 0, 1
    for flag, following in itertools.pairwise([*server_flags, ""]):
        name, _, value = flag.partition("=")
        value = value or following
        if name in _NUM_GPUS_FLAGS and value.isdecimal():
            count *= int(value)
        elif name == _FIRST_GPU_FLAG and value.isdecimal():
            first = int(value)
    return range(first, first + count)
