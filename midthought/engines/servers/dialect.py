"""What differs between kinds of model servers: how one is started, asked for tokens, and given new weights.

Everything that is the same for all of them is elsewhere.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from midthought.engines.engine import Sampling
from midthought.engines.servers.streams import Chunk

Post = Callable[[str, Any], Awaitable[dict[str, Any] | None]]
"""(path, JSON body or None) -> the answer, None where the server has no such route; EngineError where it refuses."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerOptions:
    """What a server is started with."""

    served_model_name: str | None = None
    """The name that requests use; the model's path by default."""
    host: str = "127.0.0.1"
    port: int = 0
    """0: one that is free."""
    dtype: str = "auto"
    max_seq_len: int | None = None
    """Most tokens of a sequence; the model's own limit by default."""
    max_num_seqs: int = 128
    num_gpus: int = 1
    """GPUs that share every layer (tensor parallel)."""
    takes_weights: bool = False
    """The server can be given new weights while it runs: whoever reaches it can do that."""
    max_lora_rank: int = 0
    """The server can be given adapters of ranks up to this one; 0: none."""
    flags: Sequence[str] = ()
    """Further words of the command line; they win."""


class Dialect(Protocol):
    """How one kind of server is spoken to."""

    name: str
    """Of the package that makes such a server, and of our extra."""
    path: str
    """Where completions are asked for."""
    num_spare_tokens: int
    """Of its context that prompt and completion together must leave unused."""
    penalises_prompt: bool
    """Whether `repetition_penalty` looks at the whole sequence, as ours does; else what it samples is another thing."""

    def command(self, model_path: str, options: ServerOptions) -> tuple[list[str], dict[str, str]]:
        """The words after the interpreter's name that start a server, and variables for its environment."""
        ...

    def body(
        self,
        model: str,
        token_ids: Sequence[int],
        sampling: Sampling,
        stop_token_ids: Sequence[int],
        adapter: str | None = None,
    ) -> dict[str, Any]:
        """A request for one streamed completion. Everything is said, so that no default of the server's applies."""
        ...

    def reader(self, token_ids: Sequence[int]) -> Callable[[dict[str, Any]], Chunk]:
        """Reads the events of one stream in their order; `token_ids` is the prompt as it was sent.

        What it gives raises Interrupted where another request may do better, EngineError where none will; other errors
        are taken as an event that is not of the documented form.
        """
        ...

    async def load_weights(self, post: Post, path: str) -> None:
        """Have the server take the weights in the folder `path`, and drop what it computed with the old ones."""
        ...

    async def load_adapter(self, post: Post, name: str, path: str) -> None:
        """Have the server take the adapter in the folder `path` under a new name."""
        ...

    async def unload_adapter(self, post: Post, name: str) -> None:
        """Have the server drop it."""
        ...
