"""One model server: its properties, its completions, and the weights that it has loaded.

Each kind of server is a subclass that knows its routes (`vllm.py`, `sglang.py`). Does not retry, and does not choose between
servers.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from midthought.engines.engine import Sampling
from midthought.engines.servers.connection import RetryPolicy, http_client, named
from midthought.engines.servers.streams import (
    Chunk,
    EventSplitter,
    LogprobMode,
    PartialCompletion,
    RetryableError,
    add_events,
    response_error,
)
from midthought.engines.weight_publication import Publication
from midthought.errors import EngineError

if TYPE_CHECKING:
    import httpx


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
    """File with the key that requests must have, for servers without sockets (`launch.write_key_file`)."""
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
    gpu_memory_share: float | None = None
    """Share of the GPU's memory that it takes; its own default if None."""
    flags: Sequence[str] = ()
    """Further command-line arguments; they override the others, except address, keys and code (`launch.py`)."""

    @property
    def accepts_updates(self) -> bool:
        """Whether requests can change its weights or adapters."""
        return self.accepts_weights or self.max_lora_rank > 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Requirements:
    """What the servers of an engine must have."""

    model: str
    """Name of the model on the servers, or the path that it was loaded from."""
    probe: tuple[str, Sequence[int]] | None = None
    """A text and its ids in our tokenizer, to compare with the servers' tokenizers."""
    max_seq_len: int | None = None
    """Maximum tokens of a sequence; the server's own limit if that is smaller."""
    training_temperature: float | None = None
    """Temperature of training rollouts; a server must return the log-probabilities of that distribution."""


class Server(ABC):
    """A server's properties and state, and the protocol of its kind. Times are from `time.monotonic`.

    One event loop uses it.

    Args:
        url: `http://HOST:PORT`, or `unix:/PATH` of its socket.
        key: its API key; empty for none.
        max_num_seqs: maximum number of concurrent completions.
    """

    name: ClassVar[str]
    """Name of the server's package, and of our install extra."""
    path: ClassVar[str]
    """Route of completion requests."""
    num_reserved_tokens: ClassVar[int] = 0
    """Tokens of the context that prompt and completion must leave unused."""
    has_socket: ClassVar[bool]
    """Whether it can listen on a Unix socket. If not, a key protects all its routes that change something."""

    def __init__(
        self, url: str, needed: Requirements, retry_policy: RetryPolicy, *, key: str = "", max_num_seqs: int = 128
    ) -> None:
        self.url, self.needed, self.retry_policy = url, needed, retry_policy
        self._client = http_client(url, key, retry_policy)
        self.slots = asyncio.Semaphore(max_num_seqs)
        """Limits the completions that run at once."""
        self.lock = asyncio.Lock()
        """Held while the server is checked or loads weights."""
        self.model: str | None = None
        """Its name of our model; None before the first check."""
        self.max_seq_len = 0
        self.logprob_mode: LogprobMode | None = None
        """None before it was probed."""
        self.has_warned = False
        """Whether the warning about inexact log-probabilities was given."""
        self.loaded: Publication | None = None
        """The verified weights that it has loaded; None: those from its start, or unknown ones."""
        self.num_taken = 0
        """Requests that it is processing or that wait for it."""
        self.num_failures = 0
        """Consecutive failures without a token between them; failures of one outage count once."""
        self.failed_at = 0.0
        self.free_at = 0.0
        """End of the pause after a failure."""
        self.last_error = ""
        self.on_token: Callable[[], None] = lambda: None
        """Called when it has returned a token."""

    # -- requests ------------------------------------------------------------------------------------------------

    async def ask(self, method: str, path: str, body: Any = None, *, seconds: float | None = None) -> httpx.Response:
        """Sends a request and returns the whole response. Raises `RetryableError` if there is none."""
        import httpx

        seconds = self.retry_policy.next_token_timeout_seconds if seconds is None else seconds
        try:
            async with asyncio.timeout(seconds):
                return await self._client.request(method, path, json=body)
        except TimeoutError:
            raise RetryableError(f"no response for {seconds:g} s") from None
        except httpx.HTTPError as error:
            raise RetryableError(named(error), is_disconnected=True) from None

    async def post(self, path: str, body: Any = None) -> dict[str, Any] | None:
        """Sends a slow request, such as a weight update. Returns the JSON response, or None if the server lacks the route: then
        web frameworks return `{"detail": "Not Found"}`, or no JSON.

        Raises `RetryableError` if there is no response, `EngineError` with the server's message if it refuses.
        """
        answer = await self.ask("POST", path, body, seconds=self.retry_policy.load_timeout_seconds)
        try:
            said = answer.json()
        except ValueError:
            said = None
        if answer.status_code == 404 and said in (None, {"detail": "Not Found"}):
            return None
        if answer.status_code != 200:
            raise EngineError(str(response_error(answer)))
        return said if isinstance(said, dict) else {}

    # -- completions -------------------------------------------------------------------------------------------

    async def stream(self, draft: PartialCompletion, room: int, adapter: str | None = None) -> None:
        """Sends one request and adds its tokens as they arrive. Returning early closes the connection, which cancels it."""
        import httpx

        num_before = num_kept = len(draft.token_ids)
        token_ids = [*draft.prompt, *draft.token_ids]
        seed = request_seed(draft.sampling.seed, len(token_ids))
        sampling = dataclasses.replace(draft.sampling, max_tokens=room, seed=seed)
        model = self.model or self.needed.model
        body = self.body(model, token_ids, sampling, sorted(draft.eos_token_ids), adapter)
        read = self.reader(token_ids)
        splitter, seconds = EventSplitter(), self.retry_policy.first_token_timeout_seconds
        try:
            async with (
                asyncio.timeout(seconds) as deadline,
                self._client.stream("POST", self.path, json=body) as response,
                contextlib.aclosing(response.aiter_bytes()) as pieces,  # type: ignore[type-var]
            ):
                if response.status_code != 200:
                    await response.aread()
                    raise response_error(response)
                async for piece in pieces:
                    has_ended = add_events(splitter.feed(piece), read, draft)
                    if len(draft.token_ids) > num_kept:
                        num_kept, seconds = len(draft.token_ids), self.retry_policy.next_token_timeout_seconds
                        deadline.reschedule(asyncio.get_running_loop().time() + seconds)
                        self.on_token()
                    if has_ended:
                        break
                else:
                    raise RetryableError("the stream ended before the completion did")
        except TimeoutError:
            if not deadline.expired():
                raise
            raise RetryableError(f"no token for {seconds:g} s") from None
        except (httpx.HTTPError, httpx.StreamError) as error:
            raise RetryableError(named(error), is_disconnected=True) from None
        if draft.finish is None and num_kept == num_before:
            raise RetryableError("the stream ended without a token")

    async def next_token(self, prompt: Sequence[int], sampling: Sampling, adapter: str | None) -> tuple[int, float]:
        """Returns one sampled token and its log-probability."""
        draft = PartialCompletion(prompt, sampling, frozenset())
        await self.stream(draft, room=1, adapter=adapter)
        return draft.token_ids[0], draft.logprobs[0]

    # -- the protocol of one kind of server --------------------------------------------------------------------

    @staticmethod
    @abstractmethod
    def command(model_path: str, options: ServerOptions) -> tuple[list[str], dict[str, str]]:
        """Returns the start command without the interpreter, and environment variables."""

    @staticmethod
    @abstractmethod
    def body(
        model: str, token_ids: Sequence[int], sampling: Sampling, stop_token_ids: Sequence[int], adapter: str | None
    ) -> dict[str, Any]:
        """Returns the request of one streamed completion. Sets every option, so that no default of the server applies."""

    @staticmethod
    @abstractmethod
    def reader(token_ids: Sequence[int]) -> Callable[[dict[str, Any]], Chunk]:
        """Returns the function that reads the events of one stream in order. `token_ids`: the prompt as sent.

        That function raises `RetryableError` if another request may succeed, `EngineError` if none will; any other error
        means that the event has an unexpected form.
        """

    @abstractmethod
    async def load_weights(self, path: str) -> None:
        """Makes the server load a whole model from the folder `path`; its caches then have no results of older weights."""

    @abstractmethod
    async def load_adapter(self, name: str, path: str) -> None:
        """Makes the server load the adapter in the folder `path` under a new name."""

    @abstractmethod
    async def unload_adapter(self, name: str) -> None:
        """Makes the server unload the adapter."""


def common_sampling_fields(sampling: Sampling, stop_token_ids: Sequence[int]) -> dict[str, Any]:
    """Returns the fields of a request that all servers name alike. Greedy requests have no filters."""
    is_greedy = sampling.temperature == 0
    return {
        "temperature": sampling.temperature,
        "top_p": 1.0 if is_greedy else sampling.top_p,
        "min_p": 0.0 if is_greedy else sampling.min_p,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "stop_token_ids": list(stop_token_ids),
        "skip_special_tokens": False,
    }


def request_seed(seed: int, position: int) -> int:
    """Returns a 63-bit seed from an episode's seed and the position of a request's first token.

    Each request needs its own seed, because servers seed requests, not positions: two spans must not share random numbers.
    """
    return int.from_bytes(hashlib.blake2b(f"{seed} {position}".encode(), digest_size=8).digest()) >> 1
