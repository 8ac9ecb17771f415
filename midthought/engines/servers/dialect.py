"""Differences between kinds of model servers: start command, completion requests, weight updates."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from midthought.engines.engine import Sampling
from midthought.engines.servers.streams import Chunk

if TYPE_CHECKING:
    from torch import Tensor

Post = Callable[[str, Any], Awaitable[dict[str, Any] | None]]
"""(path, JSON body or None) -> response; None if the server lacks the route. Raises `EngineError` if it refuses."""
Get = Callable[[str], Awaitable[dict[str, Any] | None]]
"""path -> response; None if the server lacks the route."""
Wake = Callable[[str], Awaitable[None]]
"""Takes a part of the server's memory again, if it is released: `weights` or `kv_cache`."""
WeightIterator = Callable[[], Iterable[tuple[str, "Tensor"]]]
"""Returns the (name, tensor) pairs of a whole model, with the names of a Hugging Face checkpoint."""


@dataclass(frozen=True, slots=True)
class Routes:
    """Requests to one server."""

    get: Get
    post: Post


class WeightSender(Protocol):
    """Sends whole models to one server, tensor by tensor instead of as files."""

    async def refusal(self, server: Routes) -> str | None:
        """Returns the reason why the server cannot receive tensors in this way, None if it can."""
        ...

    async def send(self, server: Routes, weights: WeightIterator, *, is_new: bool) -> None:
        """Makes the server load the weights. Raises `EngineError` if it does not.

        Args:
            is_new: whether this is the first time, or the server may have been restarted since the last one.
        """
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerOptions:
    """Options of a server's start command."""

    served_model_name: str | None = None
    """Model name in requests; the model's path by default."""
    host: str = "127.0.0.1"
    port: int = 0
    """0: a free port."""
    uds: str = ""
    """Path of the Unix socket to listen on instead, for servers with `Dialect.has_socket`."""
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


def common_sampling_fields(sampling: Sampling, stop_token_ids: Sequence[int]) -> dict[str, Any]:
    """Returns the fields of a request that all servers name alike. Greedy requests have no filters."""
    is_greedy = sampling.temperature == 0
    return {
        "temperature": sampling.temperature,
        "top_p": 1.0 if is_greedy else sampling.top_p,
        "min_p": 0.0 if is_greedy else sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "stop_token_ids": list(stop_token_ids),
        "skip_special_tokens": False,
    }


class Dialect(Protocol):
    """Protocol of one kind of server."""

    name: str
    """Name of the server's package, and of our install extra."""
    path: str
    """Route of completion requests."""
    num_reserved_tokens: int
    """Tokens of the context that prompt and completion must leave unused."""
    penalizes_prompt: bool
    """Whether `repetition_penalty` applies to the whole sequence, as in our engine."""
    has_socket: bool
    """Whether it can listen on a Unix socket. If not, a key protects all its routes that change something."""
    announces_transport: bool
    """Whether a server that can receive tensors was started for that and says so."""
    senders: Mapping[str, Callable[[], WeightSender]]
    """Makes senders of whole models, by the name of the transport: `ipc`, `nccl`."""

    def command(self, model_path: str, options: ServerOptions) -> tuple[list[str], dict[str, str]]:
        """Returns the start command without the interpreter, and environment variables."""
        ...

    def body(
        self,
        model: str,
        token_ids: Sequence[int],
        sampling: Sampling,
        stop_token_ids: Sequence[int],
        adapter: str | None = None,
    ) -> dict[str, Any]:
        """Returns the request of one streamed completion. Sets every option, so that no default of the server applies."""
        ...

    def reader(self, token_ids: Sequence[int]) -> Callable[[dict[str, Any]], Chunk]:
        """Returns the function that reads the events of one stream in order. `token_ids`: the prompt as sent.

        That function raises `RetryableError` if another request may succeed, `EngineError` if none will; any other error
        means that the event has an unexpected form.
        """
        ...

    def updating(self, post: Post, wake: Wake, *, is_asleep: bool) -> AbstractAsyncContextManager[None]:
        """Context in which the server loads a whole model; afterwards its caches have no results of older weights.

        A server that is asleep takes memory for its weights before, and memory for its cache after they are loaded.
        """
        ...

    async def load_weights(self, post: Post, path: str) -> None:
        """Makes the server load the weights in the folder `path`, inside `updating`."""
        ...

    async def load_adapter(self, post: Post, name: str, path: str) -> None:
        """Makes the server load the adapter in the folder `path` under a new name."""
        ...

    async def unload_adapter(self, post: Post, name: str) -> None:
        """Makes the server unload the adapter."""
        ...

    async def sleep(self, post: Post, *, keeps_weights: bool) -> Sequence[str]:
        """Makes the server release its GPU memory. Returns the parts that it must take again.

        Args:
            keeps_weights: False if it gets a whole model before it samples again.
        """
        ...

    async def wake(self, post: Post, part: str) -> None:
        """Makes the server take a part of its memory again."""
        ...
