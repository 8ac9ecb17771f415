"""An embedding model behind an endpoint that speaks OpenAI's `/embeddings`. Knows no store.

A request that fails is sent again as `endpoint.JsonEndpoint` says; one that goes on failing is an error and never a gap.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit, urlunsplit

import numpy as np

from midthought.errors import MemoryStoreError, NoReplyError, SettingsError, near_names
from midthought.http_json import EndpointSettings, JsonEndpoint

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True, slots=True)
class EndpointModel:
    """Which model to ask, where, and how patiently."""

    model: str
    """As the endpoint names it."""
    base_url: str
    """Up to and without `/embeddings`, such as `https://api.openai.com/v1`."""
    api_key_env: str | None = None
    """Environment variable that holds the key. None: no key is sent."""
    dimension: int | None = None
    """Asked of the endpoint, for models that can shorten their vectors. None: the model's own."""
    query_prompt: str = ""
    """Stands before what is asked."""
    text_prompt: str = ""
    """Stands before what is searched."""
    texts_per_call: int = 256
    """Texts of a request."""
    max_concurrency: int = 4
    """Requests at once."""
    timeout_seconds: float = 60.0
    """Deadline of one attempt."""
    retries: int = 8
    """Attempts beyond the first, with growing and random pauses, or those that `Retry-After` asks for."""
    backoff_seconds: float = 1.0
    max_letters: int = 24_000
    """Of a text; the rest is not sent. Endpoints refuse texts longer than the model reads."""

    @classmethod
    def of_url(cls, url: str) -> EndpointModel:
        """`https://HOST/v1?SETTING=VALUE&…#MODEL`. Raises SettingsError where a part is missing or unknown."""
        parts = urlsplit(url)
        if not parts.fragment:
            raise SettingsError(f"{url!r} names no model; write https://HOST/v1#MODEL")
        known = {each.name: each for each in fields(cls) if each.name not in ("model", "base_url")}
        given: dict[str, Any] = {}
        for name, word in parse_qsl(parts.query, keep_blank_values=True):
            if name not in known:
                raise SettingsError(f"{name!r} in {url!r} is no setting of an endpoint. {near_names(name, known)}")
            kind = next(kind for kind in (int, float, str) if kind.__name__ in str(known[name].type))
            try:
                given[name] = kind(word)
            except ValueError:
                raise SettingsError(f"{name}={word!r} in {url!r} is no number") from None
        base_url = urlunsplit((parts.scheme, parts.netloc, parts.path, "", ""))
        return cls(model=unquote(parts.fragment), base_url=base_url, **given)


class EndpointEmbedder:
    """Raises SettingsError for settings that cannot work, MissingExtraError where httpx is not installed."""

    def __init__(self, settings: EndpointModel) -> None:
        for name in ("texts_per_call", "max_concurrency", "max_letters"):
            if (value := getattr(settings, name)) < 1:
                raise SettingsError(f"{name} must be at least 1, not {value}")
        self._settings = settings
        prompt = f" after {settings.text_prompt!r}" if settings.text_prompt else ""
        self.name = f"{settings.model}{prompt}"
        self.texts_per_call = settings.texts_per_call
        self.max_concurrency = settings.max_concurrency
        self._endpoint = JsonEndpoint(
            EndpointSettings(
                base_url=settings.base_url,
                api_key_env=settings.api_key_env,
                timeout_seconds=settings.timeout_seconds,
                retries=settings.retries,
                backoff_seconds=settings.backoff_seconds,
                max_concurrency=settings.max_concurrency,
            ),
            "/embeddings",
        )

    @property
    def num_retries(self) -> int:
        """Attempts beyond the first ones, so far."""
        return self._endpoint.num_retries

    @cached_property
    def dimension(self) -> int:
        """As set, or as the endpoint answers; it is asked once."""
        return self._settings.dimension or self._vectors(["a"], None).shape[1]

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """Unit vectors, float32 [N, D]. Raises MemoryStoreError where the endpoint gives none in all its attempts."""
        return self._vectors([self._settings.text_prompt + text for text in texts], self.dimension)

    def embed_queries(self, queries: Sequence[str]) -> np.ndarray:
        """Unit vectors, float32 [N, D], of what is asked."""
        return self._vectors([self._settings.query_prompt + query for query in queries], self.dimension)

    def _vectors(self, texts: Sequence[str], dimension: int | None) -> np.ndarray:
        size = self._settings.texts_per_call
        parts = [texts[start : start + size] for start in range(0, len(texts), size)]
        if not parts:
            return np.zeros((0, dimension or 0), dtype=np.float32)
        try:
            return np.concatenate(_run(self._ask_all(parts, dimension)))
        except NoReplyError as error:
            raise MemoryStoreError(
                f"{self._endpoint.url} gave no vectors: {error}; what was embedded before is kept, start again to go on"
            ) from None

    async def _ask_all(self, parts: Sequence[Sequence[str]], dimension: int | None) -> list[np.ndarray]:
        return await asyncio.gather(*(self._ask(part, dimension) for part in parts))

    async def _ask(self, texts: Sequence[str], dimension: int | None) -> np.ndarray:
        settings = self._settings
        inputs = [text[: settings.max_letters] if text.strip() else " " for text in texts]  # "" is refused by some
        body: dict[str, Any] = {"model": settings.model, "input": inputs, "encoding_format": "float"}
        if settings.dimension:
            body["dimensions"] = settings.dimension
        return await self._endpoint.post(
            json.dumps(body).encode(), lambda document: vectors_of_reply(document, len(inputs), dimension)
        )


def vectors_of_reply(document: Any, num_texts: int, dimension: int | None) -> np.ndarray:
    """Unit vectors, float32 [N, D], in the order of the texts. Raises ValueError where one is missing or is none."""
    rows = document["data"]
    if sorted(row["index"] for row in rows) != list(range(num_texts)):
        raise ValueError(f"{len(rows)} vectors for {num_texts} texts, or not one for each")
    vectors = [_numbers(row["embedding"]) for row in sorted(rows, key=lambda row: row["index"])]
    sizes = {vector.shape for vector in vectors}
    if len(sizes) != 1 or (dimension is not None and sizes != {(dimension,)}):
        found = ", ".join(sorted("×".join(map(str, size)) for size in sizes))
        raise ValueError(f"vectors of {found} numbers where {dimension or 'one length'} was expected")
    found_vectors = np.stack(vectors)
    lengths = np.linalg.norm(found_vectors.astype(np.float64), axis=1, keepdims=True)
    if not (np.isfinite(lengths) & (lengths > 0)).all():
        raise ValueError("a vector that is zero or not finite")
    return (found_vectors / lengths).astype(np.float32)


def _numbers(embedding: Any) -> np.ndarray:
    """A list of numbers, or the same as float32 in base64."""
    if isinstance(embedding, str):
        return np.frombuffer(base64.b64decode(embedding, validate=True), dtype="<f4")
    return np.asarray(embedding, dtype=np.float32)


def _run(work: Coroutine[Any, Any, Result]) -> Result:
    """Wait for it, also where a loop runs in this thread already."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()
