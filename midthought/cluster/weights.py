"""A model's tensors as bytes: splits them into buckets of bounded size and computes digests. Does not depend on Ray."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

BUCKET_BYTES = 128 * 2**20
"""Size of a bucket. At most two buckets are in the object store at a time."""


@dataclass(frozen=True, slots=True)
class TensorSlice:
    """Some bytes of a tensor."""

    name: str
    offset: int
    """Position of the first byte in the tensor."""
    data: np.ndarray  # uint8 [n]


def named_tensors(model: Any) -> dict[str, torch.Tensor]:
    """Returns the parameters and buffers by name; a shared tensor (a tied output layer) has one name."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def placeholder_of(tensors: Mapping[str, torch.Tensor]) -> Callable[[object], object | None]:
    """Returns the function that replaces each tensor by a placeholder, to pickle a model without its weights."""
    name_of = {id(tensor): name for name, tensor in tensors.items()}

    def name(thing: object) -> object | None:
        if not isinstance(thing, torch.Tensor) or id(thing) not in name_of:
            return None
        return name_of[id(thing)], tuple(thing.shape), thing.dtype, isinstance(thing, torch.nn.Parameter)

    return name


def fill_placeholders(device: str) -> Callable[[Any], torch.Tensor]:
    """Returns the function that replaces placeholders by uninitialized tensors on the device, one per name."""
    made: dict[str, torch.Tensor] = {}

    def find(frame: tuple[str, tuple[int, ...], torch.dtype, bool]) -> torch.Tensor:
        name, shape, dtype, is_parameter = frame
        if name not in made:
            empty = torch.empty(shape, dtype=dtype, device=device)
            made[name] = torch.nn.Parameter(empty, requires_grad=False) if is_parameter else empty
        return made[name]

    return find


def digest_of(tensor: torch.Tensor) -> str:
    """BLAKE2b of the tensor's bytes."""
    return hashlib.blake2b(_bytes_of(tensor).data, digest_size=16).hexdigest()


def buckets(tensors: Mapping[str, torch.Tensor], names: Iterable[str], max_bytes: int) -> Iterator[list[TensorSlice]]:
    """Yields these tensors as lists of slices of at most `max_bytes` in all; a larger tensor is split."""
    bucket: list[TensorSlice] = []
    room = max_bytes
    for name in names:
        data, offset = _bytes_of(tensors[name]), 0
        while offset < len(data):
            piece = TensorSlice(name, offset, data[offset : offset + room])
            bucket.append(piece)
            offset += len(piece.data)
            room -= len(piece.data)
            if not room:
                yield bucket
                bucket, room = [], max_bytes
    if bucket:
        yield bucket


def copy_slices(tensors: Mapping[str, torch.Tensor], pieces: Iterable[TensorSlice]) -> None:
    """Copies the bytes into the tensors in place."""
    for piece in pieces:
        flat = tensors[piece.name].detach().view(-1).view(torch.uint8)
        data = torch.from_numpy(
            np.array(piece.data)
        )  # a copy: the object store's memory is read-only, and torch would warn
        flat[piece.offset : piece.offset + len(data)].copy_(data)


def _bytes_of(tensor: torch.Tensor) -> np.ndarray:
    """Returns uint8 [n], without a copy if the tensor is contiguous on the CPU."""
    flat = tensor.detach().cpu().contiguous().view(-1)
    return flat.view(torch.uint8).numpy() if flat.numel() else np.zeros(0, np.uint8)
