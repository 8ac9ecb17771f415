"""A model's tensors as bytes: what is sent of them, in pieces of bounded size, and the digests that prove what arrived.

Knows models and tensors; nothing of Ray, episodes or versions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

BUCKET_BYTES = 128 * 2**20
"""What stands in the object store of a set of weights at once is two of these."""


@dataclass(frozen=True, slots=True)
class TensorSlice:
    """Some bytes of a tensor."""

    name: str
    offset: int
    """Where they stand among the tensor's bytes."""
    data: np.ndarray  # uint8 [n]


def named_tensors(model: Any) -> dict[str, torch.Tensor]:
    """The model's parameters and buffers by name, those that are shared (a tied output layer) under one name."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def placeholder_of(tensors: Mapping[str, torch.Tensor]) -> Callable[[object], object | None]:
    """For pickling a model without its tensors' contents: what stands for each of them."""
    name_of = {id(tensor): name for name, tensor in tensors.items()}

    def name(thing: object) -> object | None:
        if not isinstance(thing, torch.Tensor) or id(thing) not in name_of:
            return None
        return name_of[id(thing)], tuple(thing.shape), thing.dtype, isinstance(thing, torch.nn.Parameter)

    return name


def fill_placeholders(device: str) -> Callable[[Any], torch.Tensor]:
    """For unpickling it: tensors of the same shape and type, one for each name, on the device, not filled yet."""
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
    """The tensors of these names in lists of pieces, at most `max_bytes` each; a larger tensor is cut."""
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
    """Write the bytes into the tensors where they are."""
    for piece in pieces:
        flat = tensors[piece.name].detach().view(-1).view(torch.uint8)
        data = torch.from_numpy(np.array(piece.data))  # the object store's memory is read-only, which torch warns of
        flat[piece.offset : piece.offset + len(data)].copy_(data)


def _bytes_of(tensor: torch.Tensor) -> np.ndarray:
    """uint8 [n]; without a copy where the tensor lies contiguous on the CPU."""
    flat = tensor.detach().cpu().contiguous().view(-1)
    return flat.view(torch.uint8).numpy() if flat.numel() else np.zeros(0, np.uint8)
