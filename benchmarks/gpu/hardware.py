"""Check 1: versions, what the device copies and multiplies per second, and which attention kernels it has."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.gpu.findings import Report
from benchmarks.gpu.machine import Machine
from midthought.models.varlen_attention import is_usable, no_cudnn_attention

PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "numpy", "peft", "accelerate", "pydantic", "triton")
BACKENDS = (
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
)
CUDA_VERSIONS: dict[str, Callable[[], object]] = {
    "CUDA of torch": lambda: torch.version.cuda,
    "cuDNN": lambda: torch.backends.cudnn.version(),
    "NCCL": lambda: torch.cuda.nccl.version(),
    "float32 matmul precision": torch.get_float32_matmul_precision,
}
GIB = 2**30


def run(machine: Machine, report: Report) -> None:
    _versions(machine, report)
    report.figure("", "copy bandwidth, bytes read and written", machine.bandwidth / 1e9, "GB/s")
    report.figure("bfloat16", "matmul rate", machine.matmul_rate / 1e12, "TFLOP/s")
    rows, length = machine.pick(32, 4), machine.pick(2048, 64)
    prompt = _tensors(machine, (1, 16, length), (1, 16, length))
    _attention(machine, report, f"prompt of {length} tokens", *prompt, None)
    step = _tensors(machine, (rows, 8, 2), (rows, 8, length))
    _varlen(machine, report)
    mask = torch.zeros(rows, 1, 1, length, dtype=torch.bfloat16, device=machine.device)
    with no_cudnn_attention(machine.device):  # as the engine decodes: cuDNN builds a plan for every shape
        _attention(machine, report, f"step, {rows} rows", *step, mask)


def _varlen(machine: Machine, report: Report) -> None:
    """Whether packed rows are one call of torch's varlen attention, which is compared with float32 first."""
    query, key = (torch.zeros(1, heads, 128, dtype=torch.bfloat16, device=machine.device) for heads in (16, 8))
    for name, window in (("full", None), ("sliding window", 256)):
        is_used = is_usable(query, key, key, window)
        if machine.is_cuda:
            report.require(
                f"packed rows, {name}", "torch's varlen attention is right and used", str(is_used), is_used, "True"
            )
        else:
            report.figure(f"packed rows, {name}", "torch's varlen attention is used", str(is_used))


def _versions(machine: Machine, report: Report) -> None:
    report.figure("", "python", platform.python_version())
    for name in PACKAGES:
        try:
            report.figure("", name, importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            report.figure("", name, "not installed")
    if not machine.is_cuda:
        report.figure("", "cpu capability", torch.backends.cpu.get_cpu_capability())
        return
    properties = torch.cuda.get_device_properties(machine.device)
    free, total = torch.cuda.mem_get_info(machine.device)
    report.figure("", "device", properties.name)
    report.figure("", "compute capability", f"{properties.major}.{properties.minor}")
    report.figure("", "memory, free", free / GIB, "GiB")
    report.figure("", "memory, total", total / GIB, "GiB")
    for name, find in CUDA_VERSIONS.items():
        try:
            report.figure("", name, str(find()))
        except Exception as error:
            report.figure("", name, f"unknown: {type(error).__name__}")


def _tensors(
    machine: Machine, queries: tuple[int, int, int], keys: tuple[int, int, int]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries, keys and values with heads of 128, as the engine attends a prompt and a step of decoding."""
    sizes = (queries, keys, keys)
    query, key, value = (torch.randn(*size, 128, device=machine.device, dtype=torch.bfloat16) for size in sizes)
    return query, key, value


def _attention(
    machine: Machine,
    report: Report,
    setting: str,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
) -> None:
    """Without a mask it is causal."""
    is_causal = mask is None

    def attend() -> torch.Tensor:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=is_causal)

    try:
        chosen = torch._fused_sdp_choice(query, key, value, mask, 0.0, is_causal)
        names = {int(backend): name for name, backend in SDPBackend.__members__.items()}
        report.detail(setting, "attention backend that torch selects", names.get(int(chosen), str(chosen)))
    except Exception as error:  # not a public function
        report.detail(setting, "attention backend that torch selects", f"unknown: {type(error).__name__}")
    report.detail(setting, "attention as torch selects it", 1e6 * machine.seconds_of(attend), "µs")
    for backend in BACKENDS:
        if backend is SDPBackend.CUDNN_ATTENTION and not torch.backends.cuda.cudnn_sdp_enabled():
            continue
        if not machine.has_time(1.0):
            return report.left_out(setting, "no time is left")
        try:
            with sdpa_kernel(backend):
                report.detail(setting, f"attention with {backend.name}", 1e6 * machine.seconds_of(attend), "µs")
        except RuntimeError:
            report.detail(setting, f"attention with {backend.name}", "not available")
