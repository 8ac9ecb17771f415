"""An embedding model behind an OpenAI-compatible `/embeddings` endpoint. Does not depend on the store.

Failed requests are repeated as `json_requests.JsonEndpoint` says. If a request keeps failing, an error is raised; no vector
is left out.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit, urlunsplit

import numpy as np

from midthought.errors import MemoryStoreError, NoReplyError, SettingsError, near_names
from midthought.http.json_requests import EndpointSettings, JsonEndpoint


@dataclass(frozen=True, kw_only=True, slots=True)
class EndpointModel(EndpointSettings):
    """Settings of an embedding endpoint: the model, its address, retries and timeouts. `base_url` is without `/embeddings`."""

    model: str
    """Name of the model at the endpoint."""
    api_key_env: str | None = None
    dimension: int | None = None
    """Requested length of the vectors, for models that can shorten them. None: the model's own."""
    query_prompt: str = ""
    """Prefix of queries."""
    text_prompt: str = ""
    """Prefix of texts that are stored."""
    texts_per_call: int = 256
    """Texts per request."""
    max_concurrency: int = 4
    timeout_seconds: float = 60.0
    retries: int = 8
    backoff_seconds: float = 1.0
    max_letters: int = 24_000
    """Longer texts are truncated to this many characters, because endpoints refuse texts longer than the model's context."""

    @classmethod
    def of_url(cls, url: str) -> EndpointModel:
        """Parses `https://HOST/v1?SETTING=VALUE&…#MODEL`. Raises SettingsError if a part is missing or unknown."""
        parts = urlsplit(url)
        if not parts.fragment:
            raise SettingsError(f"{url!r} has no model name; write https://HOST/v1#MODEL")
        known = {each.name: each for each in fields(cls) if each.name not in ("model", "base_url")}
        given: dict[str, Any] = {}
        for name, word in parse_qsl(parts.query, keep_blank_values=True):
            if name not in known:
                raise SettingsError(f"{name!r} in {url!r} is not a setting of an endpoint. {near_names(name, known)}")
            kind = next(kind for kind in (int, float, str) if kind.__name__ in str(known[name].type))
            try:
                given[name] = kind(word)
            except ValueError:
                raise SettingsError(f"{name}={word!r} in {url!r} is not a number") from None
        base_url = urlunsplit((parts.scheme, parts.netloc, parts.path, "", ""))
        return cls(model=unquote(parts.fragment), base_url=base_url, **given)


class EndpointEmbedder:
    """Raises SettingsError for invalid settings, MissingExtraError if httpx is not installed."""

    def __init__(self, settings: EndpointModel) -> None:
        for name in ("texts_per_call", "max_concurrency", "max_letters"):
            if (value := getattr(settings, name)) < 1:
                raise SettingsError(f"{name} must be at least 1, not {value}")
        self._settings = settings
        prompt = f" after {settings.text_prompt!r}" if settings.text_prompt else ""
        self.name = f"{settings.model}{prompt}"
        self.texts_per_call = (
            settings.texts_per_call * settings.max_concurrency
        )  # `embed` sends them in requests of their own
        self._endpoint = JsonEndpoint(settings, "/embeddings")

    @cached_property
    def dimension(self) -> int:
        """The configured dimension, or that of one request to the endpoint (cached)."""
        return self._settings.dimension or self._vectors(["a"], None).shape[1]

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """Returns unit vectors, float32 [N, D]. Raises MemoryStoreError if all attempts fail."""
        return self._vectors([self._settings.text_prompt + text for text in texts], self.dimension)

    def embed_queries(self, queries: Sequence[str]) -> np.ndarray:
        """Returns unit vectors of queries, float32 [N, D]."""
        return self._vectors([self._settings.query_prompt + query for query in queries], self.dimension)

    def _vectors(self, texts: Sequence[str], dimension: int | None) -> np.ndarray:
        size = self._settings.texts_per_call
        parts = [texts[start : start + size] for start in range(0, len(texts), size)]
        if not parts:
            return np.zeros((0, dimension or 0), dtype=np.float32)
        from anyio.from_thread import start_blocking_portal  # also works if this thread runs an event loop

        try:
            with start_blocking_portal() as portal:
                return np.concatenate(portal.call(self._ask_all, parts, dimension))
        except NoReplyError as error:
            raise MemoryStoreError(
                f"{self._endpoint.url} returned no vectors: {error}; finished batches are kept, run the command again to continue"
            ) from None

    async def _ask_all(self, parts: Sequence[Sequence[str]], dimension: int | None) -> list[np.ndarray]:
        return await asyncio.gather(*(self._ask(part, dimension) for part in parts))

    async def _ask(self, texts: Sequence[str], dimension: int | None) -> np.ndarray:
        settings = self._settings
        inputs = [text[: settings.max_letters] if text.strip() else " " for text in texts]  # some endpoints refuse ""
        body: dict[str, Any] = {"model": settings.model, "input": inputs, "encoding_format": "float"}
        if settings.dimension:
            body["dimensions"] = settings.dimension
        return await self._endpoint.post(
            json.dumps(body).encode(), lambda document: vectors_of_reply(document, len(inputs), dimension)
        )


def vectors_of_reply(document: Any, num_texts: int, dimension: int | None) -> np.ndarray:
    """Returns unit vectors, float32 [N, D], in the order of the texts. Raises ValueError if one is missing or invalid."""
    rows = document["data"]
    if sorted(row["index"] for row in rows) != list(range(num_texts)):
        raise ValueError(f"{len(rows)} vectors for {num_texts} texts, or not exactly one for each")
    vectors = [np.asarray(row["embedding"], dtype=np.float32) for row in sorted(rows, key=lambda row: row["index"])]
    sizes = {vector.shape for vector in vectors}
    if len(sizes) != 1 or (dimension is not None and sizes != {(dimension,)}):
        found = ", ".join(sorted("×".join(map(str, size)) for size in sizes))
        raise ValueError(f"vectors of {found} numbers instead of {dimension or 'one length'}")
    found_vectors = np.stack(vectors)
    lengths = np.linalg.norm(found_vectors.astype(np.float64), axis=1, keepdims=True)
    if not (np.isfinite(lengths) & (lengths > 0)).all():
        raise ValueError("a vector that is zero or not finite")
    return (found_vectors / lengths).astype(np.float32)
