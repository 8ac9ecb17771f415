"""Options with which a model server is started."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerOptions:
    """Options of a server's start command."""

    served_model_name: str | None = None
    """Model name in requests; the model's path by default."""
    host: str = "127.0.0.1"
    port: int = 0
    """0: a free port."""
    uds: str = ""
    """Path of the Unix socket to listen on instead, for servers with `Server.has_socket`."""
    key_file: str = ""
    """File with the key that requests must have, for servers without sockets (`access.write_key_file`)."""
    dtype: str = "auto"
    max_seq_len: int | None = None
    """Maximum tokens of a sequence; the model's own limit by default."""
    max_num_seqs: int = 128
    num_gpus: int = 1
    """GPUs for tensor parallelism."""
    accepts_weights: bool = False
    """The server accepts new weights while it runs, from anyone who can reach it."""
    max_lora_rank: int = 0
    """Maximum rank of adapters that the server accepts; 0: none."""
    weight_transport: str = ""
    """How it gets whole models, if it must be started for that: `ipc` or `nccl`."""
    can_sleep: bool = False
    """The server can release its GPU memory while it does nothing."""
    gpu_memory_share: float | None = None
    """Share of the GPU's memory that it takes; its own default if None."""
    flags: Sequence[str] = ()
    """Further command-line arguments; they override the others, except address, keys and code (`launch.py`)."""

    @property
    def accepts_updates(self) -> bool:
        """Whether requests can change its weights, adapters or memory."""
        return self.accepts_weights or self.can_sleep or self.max_lora_rank > 0
