"""Tensors that another process on this machine reads, without the disk: a memory-backed file, or CUDA IPC handles on a GPU.

Imports midthought for an error only: vLLM's worker process, which reads, imports this module.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

MEMORY_FOLDER = Path("/dev/shm")  # noqa: S108  # files there are created exclusively
"""A folder whose files are in memory (Linux)."""
_ALIGNMENT = 64

Manifest = Mapping[str, Any]
"""What the other process needs to find the tensors: plain values, which any message format transports."""


class SharedTensors:
    """Named tensors in memory that another process can read until `close`.

    A tensor on a CUDA device is not copied: its memory is shared by a CUDA IPC handle, so the other process must read it before
    it changes. All other tensors are copied into one file in `folder`; None: `/dev/shm`, or the folder for temporary files on a
    system without it. Raises `StorageError` if there is too little room.
    """

    def __init__(self, tensors: Iterable[tuple[str, Tensor]], folder: str | None = None) -> None:
        self._kept: list[Tensor] = []
        folder = folder or str(MEMORY_FOLDER if MEMORY_FOLDER.is_dir() else tempfile.gettempdir())
        descriptor, name = tempfile.mkstemp(prefix="midthought-weights-", dir=folder)
        self._file, self._path = open(descriptor, "wb"), Path(name)  # noqa: SIM115  # until `close`
        without_name = f"/proc/{os.getpid()}/fd/{descriptor}"
        if _is_readable_by_others(without_name, descriptor):
            self._path.unlink()  # nothing is left of the file if this process is killed
            name = without_name
        entries: list[list[Any]] = []
        try:
            for key, tensor in tensors:
                tensor = tensor.detach()
                place = self._share(tensor) if tensor.is_cuda else _append(self._file, tensor)
                entries.append([key, str(tensor.dtype).removeprefix("torch."), list(tensor.shape), place])
            self._file.flush()
            num_bytes = self._file.tell()
        except BaseException as error:
            num_written = os.fstat(descriptor).st_size
            self.close()
            if not isinstance(error, OSError) or error.errno != errno.ENOSPC:
                raise
            from midthought.errors import StorageError

            raise StorageError(
                f"{folder} is full after {num_written:,} bytes of the weights; give it more memory (docker run --shm-size)"
            ) from error
        self.manifest: Manifest = {"path": name, "num_bytes": num_bytes, "tensors": entries}

    def close(self) -> None:
        """Releases the memory. May be called twice."""
        self._kept.clear()
        self._path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # of what could not be written
            self._file.close()

    def _share(self, tensor: Tensor) -> list[Any]:
        """Returns the arguments of torch's `rebuild_cuda_tensor`, without the types."""
        from torch.multiprocessing.reductions import reduce_tensor

        self._kept.append(tensor)
        _, arguments = reduce_tensor(tensor)
        plain = [list(each) if isinstance(each, torch.Size) else each for each in arguments]
        return [None if isinstance(each, type | torch.dtype) else each for each in plain]


def read_shared_tensors(manifest: Manifest) -> Iterator[tuple[str, Tensor]]:
    """Yields the (name, tensor) pairs of `SharedTensors.manifest`. They are views of shared memory: copy them, do not write.
    Raises `OSError` if the file cannot be opened, for example because the process that wrote it has ended."""
    data = None
    if manifest["num_bytes"]:
        with open(manifest["path"], "r+b"):  # torch would raise a RuntimeError
            data = torch.from_file(manifest["path"], shared=True, size=manifest["num_bytes"], dtype=torch.uint8)
    for name, dtype_name, shape, place in manifest["tensors"]:
        dtype = getattr(torch, dtype_name)
        if isinstance(place, int):
            num_bytes = torch.Size(shape).numel() * dtype.itemsize
            flat = torch.empty(0, dtype=dtype) if data is None else data[place : place + num_bytes].view(dtype)
            yield name, flat.view(shape)
        else:
            yield name, _open_cuda(place, dtype)


class WeightReceiver:
    """Mixed into the `Worker` of an in-process vLLM (`worker_extension_cls`), whose `collective_rpc` calls the method."""

    reload_weights: Any
    """vLLM's own method."""

    def load_shared_weights(self, manifest: Manifest) -> None:
        """Replaces the weights. The tensors of `SharedTensors.manifest` have the names of a Hugging Face checkpoint."""
        self.reload_weights(weights_iterator=read_shared_tensors(manifest), is_checkpoint_format=True)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
            torch.cuda.ipc_collect()


def memory_folder(num_bytes: int) -> Path | None:
    """Returns a folder in memory with room for `num_bytes`; None if there is none."""
    if not MEMORY_FOLDER.is_dir() or shutil.disk_usage(MEMORY_FOLDER).free < num_bytes:
        return None
    return MEMORY_FOLDER


def _is_readable_by_others(path: str, descriptor: int) -> bool:
    """Whether this path in /proc leads other processes to the file. Not if /proc is of other processes (a namespace), or if this
    process hides its files (it has changed its user)."""
    try:
        return os.path.samefile(path, descriptor) and os.stat(Path(path).parent).st_uid == os.geteuid()
    except OSError:
        return False


def _append(file: Any, tensor: Tensor) -> int:
    """Writes the tensor's bytes at the next aligned position, which is returned."""
    start: int = file.seek(-file.tell() % _ALIGNMENT, os.SEEK_CUR)
    file.write(memoryview(tensor.cpu().contiguous().view(-1).view(torch.uint8).numpy()))  # type: ignore[arg-type]
    return start


def _open_cuda(arguments: list[Any], dtype: torch.dtype) -> Tensor:
    """Opens the memory of another process (`torch.multiprocessing.reductions.rebuild_cuda_tensor`)."""
    from torch.multiprocessing.reductions import rebuild_cuda_tensor

    _, size, stride, offset, _, _, *rest = arguments
    opened: Tensor = rebuild_cuda_tensor(Tensor, size, stride, offset, torch.UntypedStorage, dtype, *rest)
    return opened
