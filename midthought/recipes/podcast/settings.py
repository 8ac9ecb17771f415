"""The podcast recipe's settings: the library's sections and four of its own."""

from __future__ import annotations

from importlib import resources
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from midthought.config import Auto, Harmless, RecipeConfig, Section, SupervisedSection
from midthought.recipes.recipe import RecipeEvaluation

Kind = Literal["speaker", "episode", "continuation"]
DEFAULT_KINDS: tuple[Kind, ...] = ("speaker", "episode")


class MemorySection(Section):
    """The podcast memory."""

    transcripts: str = ""
    """Folder of transcripts (Markdown, text, JSON, SRT, VTT, HTML); unreadable files are reported and
    skipped. At least 3, because training, validation and test share no transcript. Empty: the sample episodes of the package."""
    path: Harmless[str] = ""
    """Folder of the LanceDB memory, or URL of a service that has these transcripts (`http://HOST:PORT`,
    `midthought memory serve`). Empty: `memory/` in the run folder."""
    replace: Harmless[bool] = False
    """Remove the chunks of all other transcripts from the memory at `path`. If false and there are any, the run stops before it
    starts, and reports their number."""
    token_env: Harmless[str | None] = None
    """Environment variable with the token of the service."""
    chunking: Literal["turns", "windows"] = "turns"
    """How episodes are split: into pieces of a turn of a few words (`turns`), or into overlapping parts of
    whole sentences of several turns (`windows`, which searches find best; docs/memory.md)."""
    chunk_words: int = Field(18, ge=4)
    """Maximum words of a chunk with `turns`. With `windows` (128 embedded tokens): of the part of a turn that a question is made
    from."""
    embedding_model: str = "minilm"
    """`minilm` (packaged, offline), the folder of a sentence-transformers model, or `https://HOST/v1?api_key_env=NAME#MODEL`."""
    search: Literal["full_text", "vector", "hybrid"] = "full_text"
    """Search mode of the tool. `full_text` is best for exact quotes (docs/measured.md)."""
    k: int = Field(1, ge=1, le=10)
    """Default number of results per call."""


class QuestionsSection(Section):
    """Questions about the episodes."""

    test_sizes: ClassVar = {"num_test": 440, "num_test_no_memory": 200}

    path: str = ""
    """JSON lines with your own questions (`question`, `answer`, optional `evidence`, `labels`). Empty: generated from the
    episodes."""
    kinds: list[Kind] = Field(default_factory=lambda: list(DEFAULT_KINDS), min_length=1)
    """Kinds of question: `speaker`, `episode`, `continuation` (complete the quote; too hard for the small model in minutes)."""
    num_train: int = Field(3000, ge=1)
    """Number of training questions. The prompt of 35 % contains the answer."""
    num_test: Annotated[int, Field(ge=1)] | Auto = "auto"
    """Number of test questions that need the memory. `auto`: 440, with a given model fewer if an evaluation arm would
    take more than ten minutes, as planned, but at least 100."""
    num_test_no_memory: Annotated[int, Field(ge=1)] | Auto = "auto"
    """Number of test questions whose prompt contains the answer. `auto`: 200, or fewer, as `num_test`."""
    instruction: str | None = None
    """System message. Null: how to call the tool, for a model from `model.local_path`; none for the small model."""


class WarmupSection(SupervisedSection):
    """Supervised warm-up on demonstrations of mixed habits."""

    num_steps: int = Field(100, ge=0)
    """Number of optimizer steps."""
    batch_tokens: int = Field(6144, ge=64)
    """Tokens of demonstrations per optimizer step."""
    habits: Literal["mixed", "clean"] = "mixed"
    """`mixed`: besides exact queries, too short queries (0.35 of those questions), giving up without a call
    (0.3 of those without a note), answers from a note that does not help (0.05) and needless calls (0.25 of the others):
    reinforcement learning makes the choice. `clean`: none of these."""


class EvaluationSection(RecipeEvaluation):
    """Evaluation before and after RL."""

    sampled: bool = True
    """Also evaluate with sampling at temperature 1."""


class PodcastConfig(RecipeConfig):
    """Settings of `midthought train podcast`."""

    memory: MemorySection = Field(default_factory=MemorySection)
    questions: QuestionsSection = Field(default_factory=QuestionsSection)
    warmup: WarmupSection = Field(default_factory=WarmupSection)
    evaluation: EvaluationSection = Field(default_factory=EvaluationSection)


def sample_transcripts() -> str:
    """The folder of the sample episodes that ship with the package."""
    return str(resources.files("midthought.recipes.podcast") / "sample")
