"""`midthought memory questions`: makes questions from a memory, about quotes or by a language model."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from midthought.errors import SettingsError, TranscriptError
from midthought.files.output_folder import require_our_lines
from midthought.memory.rows import require_our_parquet
from midthought.report.console import Console, tell

if TYPE_CHECKING:
    from midthought.memory.llm_questions.episodes import GenerationPlan
    from midthought.memory.llm_questions.generate import GenerationReport
    from midthought.types import Task

_OF_QUOTES = ("num_questions", "no_memory_share", "seed")
_OF_A_MODEL = ("model", "api_key_env", "num_pairs", "episodes", "max_episodes", "embedding_model")
"""Options that only one of the two ways to make questions has."""

UsedEmbeddingModel = Annotated[str, typer.Option(help="Embedding model that the memory was built with.")]


def questions(
    context: typer.Context,
    chunks: Annotated[
        Path,
        typer.Argument(
            help="A memory, a folder of transcripts (split into windows; for other chunks first: midthought memory chunk "
            "--chunking), or a JSON Lines file of chunks."
        ),
    ] = Path("memory"),
    out: Annotated[Path, typer.Argument(help="JSON Lines file of questions.")] = Path("questions.jsonl"),
    num_questions: Annotated[int, typer.Option(help="Number of questions made without a model.")] = 200,
    kinds: Annotated[
        str,
        typer.Option(
            help="Kinds of question, with commas between; default: all. About quotes: speaker, episode, continuation; "
            "of a model: docs/memory.md."
        ),
    ] = "",
    no_memory_share: Annotated[
        float, typer.Option(help="Without a model: share of questions whose prompt holds the answer.")
    ] = 0.0,
    seed: Annotated[int, typer.Option(help="Without a model: random seed of the choice.")] = 0,
    from_model: Annotated[str, typer.Option(help="Let a model write them: its address, http://HOST:PORT/v1.")] = "",
    model: Annotated[str, typer.Option(help="Name of the model at that address.")] = "",
    api_key_env: Annotated[str | None, typer.Option(help="Environment variable with its API key.")] = None,
    num_pairs: Annotated[int, typer.Option(help="Questions that the model writes per episode.")] = 20,
    episodes: Annotated[str, typer.Option(help="Only episodes with this text in their title or file name.")] = "",
    max_episodes: Annotated[int | None, typer.Option(help="Most episodes to use.")] = None,
    embedding_model: UsedEmbeddingModel = "minilm",
    parquet: Annotated[Path | None, typer.Option(help="Also write them to this file as verl's rows.")] = None,
) -> None:
    """Step 4: make questions with answers and evidence: about quotes, as the demo, or by a language model, verified."""
    require_our_lines(out, ("task_id", "prompt", "answer"))
    if parquet:
        if parquet.resolve() == out.resolve():
            raise SettingsError(f"--parquet {parquet} is the file of questions itself; give another path")
        require_our_parquet(parquet, ("data_source", "prompt"))
    if num_questions < 1:
        raise SettingsError(f"--num-questions {num_questions}: give 1 or more")
    _require_no_option_of_the_other_way(context, from_model)
    if from_model:
        from midthought.http.json_requests import EndpointSettings

        endpoint = EndpointSettings(
            base_url=from_model,
            api_key_env=api_key_env,
            timeout_seconds=300.0,
            retries=6,
            backoff_seconds=1.0,
            max_concurrency=8,
        )
        from midthought.memory.llm_questions.episodes import GenerationPlan
        from midthought.memory.llm_questions.verification import KINDS

        plan = GenerationPlan(num_pairs, _named(kinds, KINDS))
        limits = {"only": episodes, "max_episodes": max_episodes}
        tasks = _questions_by_model(chunks, out, endpoint, model, plan, embedding_model, limits)
    else:
        tasks = _quote_questions(chunks, out, num_questions, kinds, no_memory_share, seed)
    if parquet and tasks:
        from midthought.cluster.verl.record import rows_of, write_parquet

        rows = rows_of(tasks, lambda task: task.messages(), data_source="podcast_qa", ability="qa", split="train")
        write_parquet(rows, parquet)
        tell(f"{parquet}: {len(rows)} rows")
    tell(f"{out}: {len(tasks)} questions")


def _require_no_option_of_the_other_way(context: typer.Context, from_model: str) -> None:
    for name in _OF_QUOTES if from_model else _OF_A_MODEL:
        if (source := context.get_parameter_source(name)) and source.name == "COMMANDLINE":
            option = f"--{name.replace('_', '-')} {context.params[name]}"
            if from_model:
                raise SettingsError(f"{option} is an option of questions about quotes; leave out it or --from-model")
            raise SettingsError(f"{option} is an option of questions by a model; leave it out, or add --from-model")


def _chunks_of(path: Path) -> list[Any]:
    """Returns the chunks of a memory, of a file, or those that `memory build` makes of a folder of transcripts."""
    from midthought.memory.build import chunk_all
    from midthought.memory.chunks import read_chunks
    from midthought.memory.splitting import Chunking
    from midthought.memory.store import MemoryStore
    from midthought.memory.transcripts import read_transcripts

    if not path.exists():
        raise TranscriptError(
            f"{path}: there is no such file or folder; give a memory, a folder of transcripts, or a file that "
            "'midthought memory chunk' wrote"
        )
    if not path.is_dir():
        return read_chunks(path)
    if any(path.glob("*.lance")):
        return MemoryStore.open(path).chunks()
    return chunk_all(read_transcripts(path, each_once=True).transcripts, Chunking("windows"))


def _named(kinds: str, known: Iterable[str]) -> tuple[str, ...]:
    """Returns the kinds of an option's value; all known ones if it is empty."""
    return tuple(kind.strip() for kind in kinds.split(",")) if kinds else tuple(known)


def _quote_questions(
    chunks: Path, out: Path, num_questions: int, kinds: str, no_memory_share: float, seed: int
) -> list[Task]:
    from midthought.memory import questions as quotes

    read = _chunks_of(chunks)
    plan = quotes.QuestionPlan(num_questions, no_memory_share, kinds=_named(kinds, quotes.WORDINGS))
    said = quotes.one_speaker_chunks(read)
    tasks = quotes.make_questions(said, plan, seed, memory=said)
    if said != read:
        tasks = quotes.with_windows(tasks, read)
    quotes.write_questions(tasks, out)
    return tasks


def _questions_by_model(
    chunks: Path,
    out: Path,
    endpoint: Any,
    model: str,
    plan: GenerationPlan,
    embedding_model: str,
    limits: dict[str, Any],
) -> list[Task]:
    from midthought.errors import NoReplyError
    from midthought.memory.embedding import load_embedder
    from midthought.memory.llm_questions.generate import generate_questions, require_our_files
    from midthought.memory.llm_questions.structured_output import StructuredOutputModel
    from midthought.memory.store import MemoryStore

    require_our_files(out)
    asked = StructuredOutputModel(model, endpoint, out.with_suffix(".replies.sqlite"))
    embedder = load_embedder(embedding_model)
    store = MemoryStore.open(str(chunks), embedder=embedder)
    try:
        with Console().stage("Questions", unit="sources") as bar:
            report = generate_questions(store, asked, embedder, out, plan, progress=bar.follow, **limits)
    except NoReplyError as error:
        tell(f"midthought: {endpoint.base_url}: {error}", err=True)
        raise typer.Exit(1) from None
    _tell_report(report)
    return list(report.accepted)


def _tell_report(report: GenerationReport) -> None:
    for kind, count in report.to_dict()["questions"].items():
        tell(f"accepted {count}: {kind}")
    for reason, count in report.refusals.most_common():
        tell(f"refused {count}: {reason}")
    for reason, count in sorted(report.bad_replies.items()):
        tell(f"bad replies {count}: {reason}")
    for stem, problem in report.problems:
        tell(f"not finished: {stem}: {problem}; run the same command again to continue", err=True)
