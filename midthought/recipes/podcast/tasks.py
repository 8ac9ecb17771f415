"""Tasks of the recipe: the memory, its tool, and questions split by episode, with their reward."""

from __future__ import annotations

import functools
import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from midthought.config import settled
from midthought.data.final_answers import NO_ANSWER, is_answerable
from midthought.env.episode import QuestionEnvironment
from midthought.env.rewards import answer_reward, correct
from midthought.errors import MemoryStoreError, SettingsError
from midthought.files.output_folder import MANIFEST, damage_in, write_manifest
from midthought.memory.build import chunk_all
from midthought.memory.chunks import Chunk, words_digest
from midthought.memory.inspection import doubt_lines
from midthought.memory.questions import (
    QuestionPlan,
    make_questions,
    read_questions,
    split_episodes,
    with_windows,
    write_questions,
)
from midthought.memory.remote import RemoteMemory, open_memory
from midthought.memory.splitting import Chunking
from midthought.memory.store import MemoryStore
from midthought.memory.tool import TOOL_NAME, MemoryRetrievalTool, format_hits
from midthought.memory.transcripts import Transcript, read_transcripts
from midthought.memory.upsert import BuildReport
from midthought.recipes.evaluation import RecipeTasks, balanced_accuracy, call_rate, exact_match
from midthought.recipes.podcast.settings import MemorySection, PodcastConfig, sample_transcripts
from midthought.tools.call_formats.in_thought import InThoughtFormat
from midthought.tools.registry import ToolRegistry
from midthought.trainer.sources import PromptBuilder
from midthought.types import Task, Trajectory

_log = logging.getLogger(__name__)
INSTRUCTION = (
    "Think inside <think> and </think>, then answer in as few words as possible. While you think you can search the "
    f'podcast memory: write #call {TOOL_NAME} {{"query": "words to look for"}} and read the result that follows.'
)
NO_MEMORY_SHARE = 0.35
"""Share of training questions whose prompt contains the answer, so that a search is not always right."""


def instruction(config: PodcastConfig, *, may_abstain: bool = False) -> str:
    """Returns the system message: the user's, else one for models that the run did not create.

    `may_abstain`: it names the answer to a question that the memory does not answer.
    """
    if config.questions.instruction is not None:
        return config.questions.instruction
    if not config.model.local_path:
        return ""
    abstain = f" If you searched and the memory has no answer, answer: {NO_ANSWER}" if may_abstain else ""
    return INSTRUCTION + abstain


@dataclass(frozen=True)
class PodcastData:
    """Chunks and questions by part (`train`, `validation`, `test`), and the tool over the whole memory."""

    chunks: dict[str, list[Chunk]]
    """Of one speaker each: what questions and demonstrations are made from."""
    stored: list[Chunk]
    """The memory's chunks: the same, or windows."""
    tasks: dict[str, list[Task]]
    """`test` has questions that need the memory; `test_no_memory` has the same wordings with the answer in the prompt."""
    store: MemoryStore | RemoteMemory
    registry: ToolRegistry
    plan: QuestionPlan
    replaces: bool
    """Whether building removes chunks of other transcripts from the memory."""

    def build(self, run_path: Path, progress: Callable[[int, int], None] | None = None) -> BuildReport:
        """Embeds and stores new chunks, and writes the questions into the run folder.

        Raises `MemoryStoreError` if the memory is a service that does not hold the chunks.
        """
        if isinstance(self.store, RemoteMemory):
            self.store.require(self.stored)
            report = BuildReport(0, len(self.stored), 0, 0, 0.0)
        else:
            report = self.store.build(self.stored, progress, replace=self.replaces)
            own = run_path / "memory"
            if Path(self.store.uri) == own and (report.changes or not (own / MANIFEST).is_file()):
                names = (path.relative_to(own).as_posix() for path in own.rglob("*") if path.is_file())
                write_manifest(own, [name for name in names if name != MANIFEST])
        write_questions((task for part in self.tasks.values() for task in part), run_path / "questions.jsonl")
        return report

    def proof(self, task: Task) -> str:
        """Returns the tool's result that proves the task's answer."""
        return format_hits(self._by_id[chunk_id] for chunk_id in task.evidence)

    def with_evidence(self, tasks: Sequence[Task]) -> list[tuple[Task, Chunk]]:
        """Returns the tasks that one chunk of this memory proves, with it, and those without an answer, with what is nearest."""
        return [
            (task, self._by_id[task.evidence[0]])
            for task in tasks
            if (len(task.evidence) == 1 or not is_answerable(task)) and self.can_prove([task])
        ]

    @property
    def may_abstain(self) -> bool:
        """Whether a question has no answer in the memory."""
        return any(not is_answerable(task) for tasks in self.tasks.values() for task in tasks)

    def can_prove(self, tasks: Sequence[Task]) -> bool:
        """Whether the evidence of each task is chunks of this memory."""
        return all(task.evidence and self._by_id.keys() >= {*task.evidence} for task in tasks)

    @property
    def names(self) -> dict[str, str]:
        """Speakers and episodes of the memory, with "speaker" or "episode"."""
        speakers = {name: "speaker" for chunk in self.stored for name in chunk.speakers if name}
        return speakers | {chunk.episode: "episode" for chunk in self.stored}

    @functools.cached_property
    def _by_id(self) -> dict[str, Chunk]:
        return {chunk.chunk_id: chunk for chunk in self.stored}


class PodcastTasks(RecipeTasks):
    """Questions with the memory's tool, which is called inside the thought."""

    def __init__(self, config: PodcastConfig, data: PodcastData) -> None:
        spoken = instruction(config, may_abstain=data.may_abstain)
        prompts = PromptBuilder(spoken, data.registry, InThoughtFormat(), describes_tools=False)
        super().__init__(config, data.tasks, prompts, QuestionEnvironment(answer_reward(config.reward)))

    def evaluation_metrics(self, done: Sequence[Trajectory]) -> dict[str, float]:
        needed = [t for t in done if t.task.labels.get("needs_memory", True)]
        needless = [t for t in done if not t.task.labels.get("needs_memory", True)]
        metrics = {"exact_match": exact_match(done, correct), "call_rate_needed": call_rate(needed)}
        metrics |= balanced_accuracy(done, correct)
        return metrics | ({"call_rate_needless": call_rate(needless)} if needless else {})


def read_recipe_transcripts(config: PodcastConfig) -> tuple[Transcript, ...]:
    """Reads the transcripts that the settings name. Logs a warning for each file that cannot be read.

    Raises `TranscriptError`, before anything is written, if no file can be read.
    """
    folder = read_transcripts(config.memory.transcripts or sample_transcripts())
    for _, reason in folder.failures:
        _log.warning("left out: %s", reason)
    for line in doubt_lines(folder):
        _log.warning(line)
    for group in folder.copies:
        names = ", ".join(str(path) for path in group)
        _log.warning("the same words are learned and asked about several times; keep one of these files: %s", names)
    return folder.transcripts


def prepare_data(config: PodcastConfig, transcripts: Sequence[Transcript], run_path: Path) -> PodcastData:
    """Returns chunks, questions and their memory. Writes nothing, so that errors in the settings are found first.

    The data depend only on the settings and the transcripts.
    """
    memory, questions, seed = config.memory, config.questions, config.training.seed
    store = _open_memory(config, run_path)
    chunks = stored = chunk_all(transcripts, memory.chunk_words)
    if memory.chunking == "windows":
        stored = chunk_all(transcripts, Chunking("windows"))
    num_episodes = len({chunk.stem for chunk in chunks})
    num_test = min(8, max(1, num_episodes // 3))
    num_validation = max(1, num_episodes // 12)
    own = _split_own(read_questions(Path(questions.path)), seed) if questions.path else {}
    parts = _parts_of(own, chunks) or split_episodes(chunks, num_test, num_validation, seed)
    kinds = tuple[str, ...](questions.kinds)
    plan = QuestionPlan(questions.num_train, needless_share=NO_MEMORY_SHARE, kinds=kinds)
    tasks = own | _tasks(config, chunks, parts, plan, set(own))
    if empty := [name for name, made in tasks.items() if not made]:
        raise SettingsError(
            f"no question could be made for {', '.join(empty)}: chunks of {plan.min_quote_words} words or more are needed, with "
            "words that no other file has; add transcripts, and keep one file of each episode"
        )
    if memory.chunking == "windows":
        tasks = {name: with_windows(made, stored) for name, made in tasks.items()}
    replaces = memory.replace or not memory.path  # a run's own memory holds nothing else
    if isinstance(store, MemoryStore) and not replaces:
        store.require_kept(stored)
    registry = ToolRegistry([search_tool(memory, store)])
    return PodcastData(parts, stored, _with_own_evidence(tasks, stored), store, registry, plan, replaces)


def _with_own_evidence(tasks: dict[str, list[Task]], stored: Sequence[Chunk]) -> dict[str, list[Task]]:
    """Returns the tasks without evidence that has the ids of chunks, but was made from other words: from another splitting."""
    by_id, foreign = {chunk.chunk_id: chunk for chunk in stored}, list[Task]()

    def own(task: Task) -> Task:
        digest = task.labels.get("evidence_digest")
        if digest in (None, words_digest(by_id[each] for each in task.evidence if each in by_id)):
            return task
        foreign.append(task)
        return replace(task, evidence=())

    kept = {part: [own(task) for task in made] for part, made in tasks.items()}
    if foreign:
        _log.warning(
            "%d questions, such as %s, were made from chunks with other words than this memory's: their evidence is not used. "
            "Make them from the chunks of this run (midthought memory chunk --chunking …), or from the memory at memory.path",
            len(foreign),
            foreign[0].task_id,
        )
    return kept


def tools_of_run(config: PodcastConfig, run_path: Path) -> ToolRegistry:
    """Returns the tool over the memory of a finished run. Raises `MemoryStoreError` if it is gone or was changed."""
    store = _open_memory(config, run_path)
    if isinstance(store, MemoryStore) and not store.is_built:
        remedy = "restore the folder, or leave the tool out with --no-tools"
        raise MemoryStoreError(f"{store.uri} holds no memory; {remedy}")
    return ToolRegistry([search_tool(config.memory, store)])


def _open_memory(config: PodcastConfig, run_path: Path) -> MemoryStore | RemoteMemory:
    """Opens the memory. Raises `MemoryStoreError` if a file of the run's own memory is not as it was written."""
    memory, own = config.memory, run_path / "memory"
    if not memory.path and (found := damage_in(own)):
        remedy = "restore it from a copy, or delete it: the run, resumed, builds it again"
        raise MemoryStoreError(f"{own} {found}; {remedy}")
    return open_memory(memory.path or own, embedding_model=memory.embedding_model, token_env=memory.token_env)


def search_tool(memory: MemorySection, store: MemoryStore | RemoteMemory) -> MemoryRetrievalTool:
    """Returns the tool that searches the store, with the options of the section `memory`."""
    return MemoryRetrievalTool(store, k=memory.k, mode=memory.search)


def _tasks(
    config: PodcastConfig, chunks: list[Chunk], parts: dict[str, list[Chunk]], plan: QuestionPlan, given: set[str]
) -> dict[str, list[Task]]:
    questions, seed = config.questions, config.training.seed
    most = questions.test_sizes
    num_test = settled(questions.num_test, most["num_test"])
    num_test_no_memory = settled(questions.num_test_no_memory, most["num_test_no_memory"])
    sizes = {
        "train": ("train", plan.num_questions, plan.needless_share),
        "validation": ("validation", config.training.num_validation_questions, 0.3),
        "test": ("test", num_test, 0.0),
        "test_no_memory": ("test", num_test_no_memory, 1.0),
    }
    return {
        name: make_questions(parts[part], replace(plan, num_questions=num, needless_share=share), seed, memory=chunks)
        for name, (part, num, share) in sizes.items()
        if name not in given
    }


def _parts_of(own: dict[str, list[Task]], chunks: Sequence[Chunk]) -> dict[str, list[Chunk]]:
    """Returns the chunks by part, as a user's questions about these episodes are split: no demonstration is about an episode of
    the test. Empty if not all of them name their episode."""
    part_of = {str(task.labels.get("episode", "")): part for part, tasks in own.items() for task in tasks}
    if not own or not part_of.keys() <= {chunk.stem for chunk in chunks}:
        return {}
    return {part: [chunk for chunk in chunks if part_of.get(chunk.stem, "train") == part] for part in own}


def _split_own(tasks: list[Task], seed: int) -> dict[str, list[Task]]:
    """Splits a user's questions into 70, 10 and 20 %: by the label `episode` or, without it, by question. A question that occurs
    twice is in one part."""
    keys = [str(task.labels.get("episode", " ".join(task.prompt.casefold().split()))) for task in tasks]
    names = sorted(set(keys))
    random.Random(f"split-{seed}").shuffle(names)
    num_test, num_validation = max(1, len(names) // 5), max(1, len(names) // 10)
    if len(names) <= num_test + num_validation:
        needed = "at least 3 are needed for a split"
        raise SettingsError(f"questions.path holds {len(names)} questions or episodes; {needed}")
    test, validation, train = names[:num_test], names[num_test:][:num_validation], names[num_test + num_validation :]
    parts = {"train": set(train), "validation": set(validation), "test": set(test)}
    return {part: [task for task, key in zip(tasks, keys, strict=True) if key in own] for part, own in parts.items()}
