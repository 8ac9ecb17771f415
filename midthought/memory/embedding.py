"""Embedding models: their interface, the choice of one by a setting, and embedding in batches. Does not depend on the store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Protocol, cast, get_args, runtime_checkable

import numpy as np

from midthought.errors import SettingsError
from midthought.memory.endpoint_embedder import EndpointEmbedder, EndpointModel
from midthought.memory.minilm import Dtype, MiniLMEmbedder
from midthought.memory.sentence_transformer import SentenceTransformerEmbedder
from midthought.precision import Precision, PrecisionChoice

Progress = Callable[[int, int], None]
"""Called with (texts embedded so far, texts to embed)."""

_TEXTS_PER_CALL = 512
_DTYPES = get_args(Dtype)


class Embedder(Protocol):
    """What the store needs of an embedding model. `embed` may be called from several threads.

    A model that treats queries in another way than what is searched has `embed_queries` besides `embed`. One that
    answers several calls at once says so by `max_concurrency`, and how many texts a call should hold by
    `texts_per_call`.
    """

    @property
    def name(self) -> str:
        """What the store writes beside the vectors, to know them again; another model has another name."""
        ...

    @property
    def dimension(self) -> int:
        """D, the length of a vector."""
        ...

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """Unit vectors, float32 [N, D], in the order of `texts`."""
        ...


@runtime_checkable
class MeasuredEmbedder(Embedder, Protocol):
    """An embedder that computes texts in float32 or bfloat16. All vectors of a table are of one precision."""

    dtype: str
    """As the user set it: `auto`, `float32` or `bfloat16`."""
    precision: Precision | None
    """Of texts; None: not settled yet."""
    choice: PrecisionChoice | None
    """What was measured, if that settled it."""

    def in_precision(self, precision: Precision | None) -> MeasuredEmbedder:
        """The same model with texts in this precision; None: not settled."""
        ...

    def settle(self, texts: Sequence[str]) -> Precision:
        """Choose the precision of these and all later texts, unless that is done."""
        ...


def load_embedder(name: str | Path = "minilm", *, measures: bool = True) -> Embedder:
    """`minilm`; the folder of a sentence-transformers model; the folder of another encoder, used like MiniLM; or a model
    behind an OpenAI-compatible endpoint, as `https://HOST/v1#MODEL`, with any settings of `EndpointModel` before the `#`:
    `https://api.openai.com/v1?api_key_env=OPENAI_API_KEY&dimension=512#text-embedding-3-small`.

    `minilm?dtype=float32` (or `bfloat16`, also behind a folder of an encoder) fixes the precision of texts; `auto`, the default,
    measures which one is faster, unless `measures` is False: then it is float32. Raises `SettingsError` for another value.
    """
    if "://" in str(name):
        return EndpointEmbedder(EndpointModel.of_url(str(name)))
    model, _, dtype = str(name).partition("?dtype=")
    if (Path(model) / "modules.json").is_file():
        if dtype:
            raise SettingsError(f"{name}: a sentence-transformers model has no dtype; leave out ?dtype={dtype}")
        return SentenceTransformerEmbedder(model)
    if (dtype or "auto") not in _DTYPES:
        raise SettingsError(f"{name}: dtype={dtype} is not known; give one of {', '.join(_DTYPES)}")
    embedder = MiniLMEmbedder(None if model == "minilm" else model, dtype=cast(Dtype, dtype or "auto"))
    return embedder if measures or embedder.precision else embedder.in_precision("float32")


def embed_queries(queries: Sequence[str], embedder: Embedder) -> np.ndarray:
    """Unit vectors, float32 [N, D], of what is asked, in order."""
    own: Callable[[Sequence[str]], np.ndarray] = getattr(embedder, "embed_queries", embedder.embed)
    return own(queries)


def embed_texts(texts: Sequence[str], embedder: Embedder, progress: Progress | None = None) -> np.ndarray:
    """Unit vectors, float32 [N, D], in the order of `texts`; equal texts are embedded once."""
    unique = in_order(set(texts))
    row_of = {text: row for row, text in enumerate(unique)}
    vectors = np.zeros((len(unique), embedder.dimension), dtype=np.float32)
    for part, found in embed_in_parts(unique, embedder, progress):
        vectors[[row_of[text] for text in part]] = found
    return vectors[[row_of[text] for text in texts]] if texts else vectors


def in_order(texts: set[str]) -> list[str]:
    """Texts of like length together, and the same order for the same texts."""
    return sorted(texts, key=lambda text: (len(text), text))


def embed_in_parts(
    texts: Sequence[str], embedder: Embedder, progress: Progress | None = None
) -> Iterator[tuple[Sequence[str], np.ndarray]]:
    """Parts of `texts` with their vectors, each as soon as it is there.

    The parts are those that begin at every `texts_per_call`, so that what is left of an interrupted job is cut as the
    whole would have been. Where a part fails, those under way are given before its error is raised.
    """
    size, at_once = getattr(embedder, "texts_per_call", _TEXTS_PER_CALL), getattr(embedder, "max_concurrency", 1)
    parts = [texts[start : start + size] for start in range(0, len(texts), size)]
    num_done = 0
    if isinstance(embedder, MeasuredEmbedder) and parts:
        embedder.settle(texts)
    if progress and parts:
        progress(0, len(texts))
    for part, vectors in _one_by_one(parts, embedder) if at_once == 1 else _at_once(parts, embedder, at_once):
        yield part, vectors
        num_done += len(part)
        if progress:
            progress(num_done, len(texts))


def _one_by_one(parts: list[Sequence[str]], embedder: Embedder) -> Iterator[tuple[Sequence[str], np.ndarray]]:
    for part in parts:
        yield part, embedder.embed(part)


def _at_once(
    parts: list[Sequence[str]], embedder: Embedder, max_concurrency: int
) -> Iterator[tuple[Sequence[str], np.ndarray]]:
    left = parts[::-1]
    under_way: dict[Future[np.ndarray], Sequence[str]] = {}
    failure: BaseException | None = None
    with ThreadPoolExecutor(max_concurrency, thread_name_prefix="embedding") as pool:
        while under_way or (left and failure is None):
            while left and failure is None and len(under_way) < max_concurrency:
                part = left.pop()
                under_way[pool.submit(embedder.embed, part)] = part
            for done in wait(under_way, return_when=FIRST_COMPLETED).done:
                part = under_way.pop(done)
                if (error := done.exception()) is None:
                    yield part, done.result()
                else:
                    failure = failure or error
    if failure is not None:
        raise failure
