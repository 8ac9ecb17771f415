"""The podcast recipe's settings: the library's sections and four of its own."""

from __future__ import annotations

from importlib import resources
from typing import Literal

from pydantic import Field

from midthought.config import Harmless, RecipeConfig, Section
from midthought.recipes.supervised import ShownEpisodes, SupervisedSection

Kind = Literal["speaker", "episode", "continuation"]
DEFAULT_KINDS: tuple[Kind, ...] = ("speaker", "episode")


class MemorySection(Section):
    """The podcast memory."""

    transcripts: str = ""
    """Folder of transcripts (Markdown, text, JSON, SRT, VTT, HTML); a file that cannot be read is told and left out. At
    least 3: training, validation and test share none. Empty: the sample episodes that ship with the package."""
    path: Harmless[str] = ""
    """Where the LanceDB memory lies, or the address of a service that holds these transcripts already (`http://HOST:PORT`,
    `midthought memory serve`). Empty: `memory/` in the run folder."""
    replace: Harmless[bool] = False
    """Remove the chunks of all other transcripts from the memory at `path`. False: if there are any, the run ends before it
    starts, with their number."""
    token_env: Harmless[str | None] = None
    """The environment variable that holds the service's token."""
    table: str = "transcripts"
    """Name of the table."""
    chunking: Literal["turns", "tokens", "sentences"] = "turns"
    """How turns are cut: into pieces of a few words, or windows of tokens or of sentences that overlap; see docs/memory.md."""
    chunk_words: int = Field(18, ge=4)
    """Most words of a chunk by turns."""
    chunk_size: int | None = Field(None, ge=1)
    """Tokens or sentences of a window. None: 128 or 3."""
    chunk_overlap: int | None = Field(None, ge=0)
    """Tokens or sentences that a window shares with the one before. None: 32 or 1."""
    embedding_model: str = "minilm"
    """`minilm` (packaged, offline), the folder of a sentence-transformers model, or `https://HOST/v1?api_key_env=NAME#MODEL`.
    `minilm?dtype=float32` or `bfloat16` fixes the precision of new vectors, which is measured otherwise."""
    search: Literal["full_text", "vector", "hybrid"] = "full_text"
    """How the tool searches. Exact quotes are found best by their words; see docs/benchmarks.md."""
    k: int = Field(1, ge=1, le=10)
    """Results of a call that does not say how many."""


class QuestionsSection(Section):
    """Questions about the episodes."""

    path: str = ""
    """JSON lines of your own questions (`question`, `answer`, perhaps `evidence`, `labels`). Empty: made from the episodes."""
    kinds: list[Kind] = Field(default_factory=lambda: list(DEFAULT_KINDS), min_length=1)
    """Kinds of question: `speaker`, `episode`, `continuation` (complete the quote: too hard for the made model in minutes)."""
    num_train: int = Field(3000, ge=1)
    """Training questions."""
    num_test: int = Field(440, ge=1)
    """Test questions that need the memory."""
    num_test_no_memory: int = Field(200, ge=1)
    """Test questions whose prompt holds the answer."""
    num_test_episodes: int | None = Field(None, ge=1)
    """Episodes that only the test asks about. None: a third of them, at most 8."""
    num_validation_episodes: int | None = Field(None, ge=1)
    """Episodes that only the validation during training asks about. None: one of twelve."""
    no_memory_share: float = Field(0.35, ge=0, le=1)
    """Share of training questions whose prompt holds the answer."""
    distractor_share: float = Field(0.5, ge=0, le=1)
    """Of the questions that need the memory: the share whose prompt holds a note that does not help."""
    min_quote_words: int = Field(8, ge=3)
    """Fewest words of a quote."""
    max_quote_words: int = Field(10, ge=3)
    """Most words of a quote."""
    instruction: str | None = None
    """System message. None: how to call the tool, for a model given by `model.local_path`; nothing for the made one."""


class WarmupSection(SupervisedSection):
    """Supervised warm-up on demonstrations of mixed habits."""

    num_steps: int = Field(100, ge=0)
    """Optimizer steps."""
    batch_tokens: int = Field(6144, ge=64)
    """Tokens of demonstrations per step."""
    ask_short: float = Field(0.35, ge=0, le=1)
    """Share of short queries (the quote's first words) among demonstrations that need the memory."""
    give_up: float = Field(0.3, ge=0, le=1)
    """Share that do not ask and do not answer, among those that need the memory and have no note."""
    misread: float = Field(0.05, ge=0, le=1)
    """Share that answer from the note, among those that need the memory and have a note that does not help."""
    needless_ask: float = Field(0.25, ge=0, le=1)
    """Share of calls among the demonstrations whose note holds the answer."""
    made_up_share: float = Field(0.3, ge=0, le=1)
    """Share of demonstrations with made-up names and titles."""
    random_text_share: float = Field(0.0, ge=0, le=1)
    """Share of demonstrations made of random tokens altogether."""


class EvaluationSection(ShownEpisodes):
    """Before and after."""

    sampled: bool = True
    """Also evaluate sampled at temperature 1."""
    control_arm: Harmless[bool] = False
    """Also train a control: supervised steps on clean demonstrations for the same total time."""


class PodcastConfig(RecipeConfig):
    """Settings of `midthought train podcast`."""

    memory: MemorySection = Field(default_factory=MemorySection)
    questions: QuestionsSection = Field(default_factory=QuestionsSection)
    warmup: WarmupSection = Field(default_factory=WarmupSection)
    evaluation: EvaluationSection = Field(default_factory=EvaluationSection)


def sample_transcripts() -> str:
    """The folder of the sample episodes that ship with the package."""
    return str(resources.files("midthought.recipes.podcast") / "sample")
