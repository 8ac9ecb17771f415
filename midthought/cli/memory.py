"""`midthought memory`: builds, searches and serves a transcript memory, as a whole or step by step."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from midthought.cli.output import tell
from midthought.errors import SettingsError

if TYPE_CHECKING:
    from midthought.types import Task

app = typer.Typer(help="Build, search and serve a podcast memory; also step by step.", no_args_is_help=True)

Transcripts = Annotated[Path, typer.Argument(help="Folder of transcripts, or one file.")]
MemoryPath = Annotated[str, typer.Option(help="Path of the LanceDB memory.")]
ChunkingKind = Annotated[str, typer.Option(help="turns, tokens or sentences (docs/memory.md).")]
ChunkWords = Annotated[int, typer.Option(help="Most words per chunk of turns.")]
ChunkSize = Annotated[int | None, typer.Option(help="Tokens or sentences per chunk; default: 128 or 3.")]
ChunkOverlap = Annotated[int | None, typer.Option(help="Tokens or sentences shared with the previous chunk.")]
EachOnce = Annotated[
    bool, typer.Option("--each-once", help="Of files with the same words, use only the most detailed one.")
]
Strict = Annotated[bool, typer.Option("--strict", help="Fail if a file cannot be read.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON: for each file, what was read and what was not.")]
EmbeddingModel = Annotated[str, typer.Option(help="minilm or a model folder; either with ?dtype=float32.")]
UsedEmbeddingModel = Annotated[str, typer.Option(help="Embedding model that the memory was built with.")]


@app.command()
def build(
    transcripts: Transcripts,
    path: MemoryPath = "memory",
    chunking: ChunkingKind = "turns",
    chunk_words: ChunkWords = 18,
    chunk_size: ChunkSize = None,
    chunk_overlap: ChunkOverlap = None,
    embedding_model: EmbeddingModel = "minilm",
    each_once: EachOnce = False,
    strict: Strict = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Remove from the memory what is not in TRANSCRIPTS.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Build a searchable memory from transcripts. Building again adds no duplicates; transcripts of other folders stay."""
    from dataclasses import asdict

    from midthought.memory.embedding import load_embedder
    from midthought.memory.store import MemoryStore
    from midthought.report.console import Console

    folder, chunks = _read_chunks(transcripts, chunking, chunk_words, chunk_size, chunk_overlap, each_once, strict)
    store = MemoryStore.open(path, embedder=load_embedder(embedding_model))
    with Console(quiet=as_json).stage("Memory", unit="chunks embedded") as bar:
        report = store.build(chunks, bar.follow, replace=replace)
    _print_summary(folder, chunks, as_json, memory=asdict(report))
    if not as_json:
        if report.precision:
            tell(f"Chunks are embedded in {report.precision}")
        tell(f"{path}: {report.num_added} added, {report.num_kept} kept, {report.num_removed} removed")


@app.command()
def add(
    transcripts: Transcripts,
    path: MemoryPath = "memory",
    chunking: ChunkingKind = "turns",
    chunk_words: ChunkWords = 18,
    chunk_size: ChunkSize = None,
    chunk_overlap: ChunkOverlap = None,
    embedding_model: EmbeddingModel = "minilm",
    each_once: EachOnce = False,
    strict: Strict = False,
    replace: Annotated[bool, typer.Option("--replace", help="Replace other transcripts of the same names.")] = False,
    as_json: AsJson = False,
) -> None:
    """Add transcripts to a memory; all others stay. Searches go on meanwhile. A corrected transcript replaces its old version."""
    from dataclasses import asdict

    from midthought.memory.embedding import load_embedder
    from midthought.memory.store import MemoryStore
    from midthought.report.console import Console

    folder, chunks = _read_chunks(transcripts, chunking, chunk_words, chunk_size, chunk_overlap, each_once, strict)
    store = MemoryStore.open(path, embedder=load_embedder(embedding_model))
    with Console(quiet=as_json).stage("Memory", unit="chunks embedded") as bar:
        report = store.add(chunks, bar.follow, replace=replace)
    _print_summary(folder, chunks, as_json, memory=asdict(report))
    if not as_json:
        numbers = f"{report.num_added} added, {report.num_kept} known, {report.num_removed} removed"
        tell(f"{path}: {numbers}; {len(store)} chunks in all")


@app.command()
def delete(
    names: Annotated[list[str], typer.Argument(help="Names of transcripts: their files without suffix.")],
    path: MemoryPath = "memory",
) -> None:
    """Delete transcripts with every trace: vectors, indices, old versions, caches, and questions made from them."""
    from midthought.memory.store import MemoryStore

    report = MemoryStore.open(path).delete(names)
    tell(f"{path}: {report.num_chunks} chunks and {report.num_questions} questions deleted, with all older versions")
    for file in report.remaining:
        tell(f"{file}: it still has words of them; midthought did not write it: delete it yourself", err=True)


@app.command()
def inspect(
    transcripts: Transcripts,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: for each file, how it was understood.")] = False,
) -> None:
    """Show how each file would be understood: format, confidence, speakers, header, first lines, what is skipped and why."""
    from midthought.memory.inspection import inspection_json, inspection_lines
    from midthought.memory.transcripts import read_transcripts

    folder = read_transcripts(transcripts)
    if as_json:
        tell(json.dumps(inspection_json(folder), indent=1, ensure_ascii=False))
        return
    for line in inspection_lines(folder):
        tell(line)


@app.command()
def search(
    query: Annotated[str, typer.Argument(help="Text to search for.")],
    path: MemoryPath = "memory",
    k: Annotated[int, typer.Option(help="Number of results.")] = 3,
    mode: Annotated[str, typer.Option(help="hybrid, vector or full_text.")] = "hybrid",
    token_env: Annotated[str | None, typer.Option(help="Environment variable with the token of a service.")] = None,
) -> None:
    """Search a memory, local or served (--path http://HOST:PORT), as the tool does."""
    from midthought.memory.connect import open_memory
    from midthought.memory.tool import format_hits

    tell(format_hits(open_memory(path, token_env=token_env).search(query, k, mode)))  # type: ignore[arg-type]


@app.command(name="eval")
def evaluate(
    path: Annotated[str, typer.Argument(metavar="MEMORY", help="Path or address of the memory.")],
    questions: Annotated[
        Path, typer.Argument(help="Own questions, or a file of LoCoMo, LongMemEval, BrowseComp-Plus.")
    ],
    at: Annotated[str, typer.Option("--at", help="Ranks at which the ranking is measured.")] = "1,3,10",
    mode: Annotated[str, typer.Option(help="hybrid, vector or full_text.")] = "hybrid",
    level: Annotated[
        str, typer.Option(help="What is found in conversations of published sets: session or turn.")
    ] = "session",
    max_questions: Annotated[int | None, typer.Option(help="Use the first questions only.")] = None,
    chunking: ChunkingKind = "turns",
    chunk_words: ChunkWords = 18,
    chunk_size: ChunkSize = None,
    chunk_overlap: ChunkOverlap = None,
    embedding_model: UsedEmbeddingModel = "minilm",
    token_env: Annotated[str | None, typer.Option(help="Environment variable with the token of a service.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure what a memory finds: nDCG, recall, MRR, latency. A published set builds its memory if there is none."""
    from midthought.memory.connect import open_memory
    from midthought.memory.evaluation.evaluate import evaluate as evaluate_memory
    from midthought.memory.evaluation.evaluate import require_searchable, summary_rows
    from midthought.memory.evaluation.published_sets import read_question_set
    from midthought.report.console import Console

    ks = [int(part) if part.strip().isdecimal() else 0 for part in at.split(",")]
    asked = read_question_set(questions, level, max_questions)  # type: ignore[arg-type]
    memory, console = open_memory(path, embedding_model=embedding_model, token_env=token_env), Console(quiet=as_json)
    with console.stage("Memory", unit="chunks embedded") as bar:
        require_searchable(memory, asked, _chunking(chunking, chunk_words, chunk_size, chunk_overlap), bar.follow)
    with console.stage("Questions", unit="questions") as bar:
        found = evaluate_memory(memory, asked.questions, ks, mode, bar.follow)  # type: ignore[arg-type]
    if as_json:
        tell(json.dumps({"set": asked.name, "mode": mode} | found.to_json(), indent=1, ensure_ascii=False))
        return
    columns, rows = summary_rows(found)
    console.table(f"{asked.name}: {mode} search", columns, rows)
    for line in found.notes():
        tell(line)


@app.command()
def serve(
    path: MemoryPath = "memory",
    table: Annotated[str, typer.Option(help="Name of the table.")] = "transcripts",
    embedding_model: UsedEmbeddingModel = "minilm",
    questions: Annotated[
        Path | None, typer.Option(help="JSON Lines file of questions; default: the memory's own.")
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; other than loopback requires a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 chooses a free one.")] = 8100,
    token_env: Annotated[str | None, typer.Option(help="Environment variable with the required token.")] = None,
    follow: Annotated[
        bool, typer.Option(help="Also serve what later builds write; otherwise the memory as it is now.")
    ] = True,
) -> None:
    """Serve a memory to a cluster and to the browser, until Ctrl-C or SIGTERM."""
    from midthought.memory.service.command import serve as serve_memory

    own = (path, table, embedding_model)
    serve_memory(*own, questions=questions, host=host, port=port, token_env=token_env, follow=follow, tell=tell)


@app.command()
def chunk(
    transcripts: Transcripts,
    out: Annotated[Path, typer.Argument(help="JSON Lines file of chunks.")],
    chunking: ChunkingKind = "turns",
    chunk_words: ChunkWords = 18,
    chunk_size: ChunkSize = None,
    chunk_overlap: ChunkOverlap = None,
    each_once: EachOnce = False,
    strict: Strict = False,
    as_json: AsJson = False,
) -> None:
    """Step 1: split transcripts into chunks."""
    from midthought.memory.chunks import write_chunks

    folder, chunks = _read_chunks(transcripts, chunking, chunk_words, chunk_size, chunk_overlap, each_once, strict)
    write_chunks(chunks, out)
    _print_summary(folder, chunks, as_json)
    if not as_json:
        tell(f"{out}: {len(chunks)} chunks")


@app.command()
def embed(
    chunks: Annotated[Path, typer.Argument(help="JSON Lines file of chunks.")],
    out: Annotated[Path, typer.Argument(help="Parquet file of chunks with vectors.")],
    embedding_model: EmbeddingModel = "minilm",
) -> None:
    """Step 2: compute the vectors of chunks."""
    from midthought.memory.build import embed_chunks
    from midthought.memory.chunks import read_chunks
    from midthought.memory.embedding import load_embedder
    from midthought.memory.rows import write_rows
    from midthought.report.console import Console

    with Console().stage("Embedding", unit="chunks") as bar:
        rows = embed_chunks(read_chunks(chunks), load_embedder(embedding_model), bar.follow)
    write_rows(rows, out)
    tell(f"{out}: {rows.num_rows} chunks")


@app.command()
def ingest(
    rows: Annotated[Path, typer.Argument(help="Parquet file of chunks with vectors.")],
    path: MemoryPath = "memory",
    replace: Annotated[bool, typer.Option("--replace", help="Remove from the memory what is not in ROWS.")] = False,
) -> None:
    """Step 3: add chunks with vectors to the memory; chunks that it already holds are not changed."""
    from midthought.memory.rows import read_rows
    from midthought.memory.store import MemoryStore

    report = MemoryStore.open(path).ingest(read_rows(rows), replace=replace)
    tell(f"{path}: {report.num_added} added, {report.num_kept} kept")


@app.command()
def questions(
    chunks: Annotated[
        Path, typer.Argument(help="A memory, a folder of transcripts, or a JSON Lines file of chunks.")
    ] = Path("memory"),
    out: Annotated[Path, typer.Argument(help="JSON Lines file of questions.")] = Path("questions.jsonl"),
    num_questions: Annotated[int, typer.Option(help="Number of questions made without a model.")] = 200,
    kinds: Annotated[
        str, typer.Option(help="Kinds of question, with commas between (docs/memory.md); default: all.")
    ] = "",
    quotes: Annotated[
        bool, typer.Option("--quotes", help="Ask about quotes of a few words, as the demo does.")
    ] = False,
    no_memory_share: Annotated[
        float, typer.Option(help="With --quotes: share of questions whose prompt holds the answer.")
    ] = 0.0,
    seed: Annotated[int, typer.Option(help="Random seed of the choice.")] = 0,
    from_model: Annotated[str, typer.Option(help="Let a model write them: its address, http://HOST:PORT/v1.")] = "",
    model: Annotated[str, typer.Option(help="Name of the model at that address.")] = "",
    api_key_env: Annotated[str | None, typer.Option(help="Environment variable with its API key.")] = None,
    num_pairs: Annotated[int, typer.Option(help="Questions that the model writes per episode.")] = 20,
    episodes: Annotated[str, typer.Option(help="Only episodes with this text in their title or file name.")] = "",
    max_episodes: Annotated[int | None, typer.Option(help="Most episodes to use.")] = None,
    embedding_model: UsedEmbeddingModel = "minilm",
    parquet: Annotated[Path | None, typer.Option(help="Also write them to this file as verl's rows.")] = None,
    timeout_seconds: Annotated[float, typer.Option(help="Deadline of one request to the model.")] = 300.0,
) -> None:
    """Step 4: make questions with answers and evidence, by rules or with a language model whose questions are verified."""
    if no_memory_share and not quotes:
        raise SettingsError("--no-memory-share is an option of questions about quotes; add --quotes")
    if kinds and (quotes or from_model):
        raise SettingsError("--kinds chooses among the questions made by rules; leave out --quotes and --from-model")
    if from_model:
        from midthought.http_json import EndpointSettings

        endpoint = EndpointSettings(
            base_url=from_model,
            api_key_env=api_key_env,
            timeout_seconds=timeout_seconds,
            retries=6,
            backoff_seconds=1.0,
            max_concurrency=8,
        )
        tasks = _questions_by_model(chunks, out, endpoint, model, num_pairs, episodes, max_episodes, embedding_model)
    elif quotes:
        tasks = _quote_questions(chunks, out, num_questions, no_memory_share, seed)
    else:
        tasks = _listener_questions(chunks, out, num_questions, kinds, seed)
    if parquet and tasks:
        from midthought.cluster.verl.rows import rows_of, write_parquet

        rows = rows_of(tasks, lambda task: task.messages(), data_source="podcast_qa", ability="qa", split="train")
        write_parquet(rows, parquet)
        tell(f"{parquet}: {len(rows)} rows")
    tell(f"{out}: {len(tasks)} questions")


@app.command()
def blind(
    questions: Annotated[Path, typer.Argument(help="JSON Lines file of questions.")] = Path("questions.jsonl"),
    as_json: AsJson = False,
) -> None:
    """Answer questions without the memory: how often constants, and guesses from other questions, are right."""
    from dataclasses import asdict

    from midthought.evaluation.blind_baseline import blind_scores
    from midthought.memory.questions import read_questions
    from midthought.report.console import Console

    scores = blind_scores(read_questions(questions))
    if as_json:
        tell(json.dumps([asdict(score) | {"advantage": score.advantage} for score in scores], indent=1))
        return
    columns = ("kind", "questions", "best constant", "best guesser", "", "advantage")
    rows = [
        (
            each.kind,
            f"{each.num_questions}",
            f"{each.constant:.3f}",
            f"{each.best:.3f}",
            each.guesser,
            f"{each.advantage:+.3f}",
        )
        for each in scores
    ]
    Console().table("Right without the memory", columns, rows)


def _chunks_of(path: Path) -> list[Any]:
    """Returns the chunks of a memory, a folder of transcripts or a file of chunks."""
    from midthought.memory.build import chunk_all
    from midthought.memory.chunks import read_chunks
    from midthought.memory.store import MemoryStore
    from midthought.memory.transcripts import read_transcripts

    if not path.is_dir():
        return read_chunks(path)
    if any(path.glob("*.lance")):
        return MemoryStore.open(path).chunks()
    return chunk_all(read_transcripts(path, each_once=True).transcripts)


def _listener_questions(chunks: Path, out: Path, num_questions: int, kinds: str, seed: int) -> list[Task]:
    from midthought.memory.questions import write_questions
    from midthought.memory.rule_questions.generate import ALL_KINDS, listener_questions

    named = tuple(kind.strip() for kind in kinds.split(",")) if kinds else tuple(ALL_KINDS)
    tasks = listener_questions(_chunks_of(chunks), num_questions, seed, kinds=named)
    write_questions(tasks, out)
    made = Counter(task.labels["kind"] for task in tasks)
    tell("kinds: " + ", ".join(f"{kind} {made[kind]}" for kind in named))
    return tasks


def _quote_questions(chunks: Path, out: Path, num_questions: int, no_memory_share: float, seed: int) -> list[Task]:
    from midthought.memory.questions import QuestionPlan, make_questions, write_questions
    from midthought.recipes.podcast.settings import QuestionsSection

    read = _chunks_of(chunks)
    defaults = QuestionsSection()
    plan = QuestionPlan(
        num_questions,
        needless_share=no_memory_share,
        distractor_share=defaults.distractor_share,
        min_quote_words=defaults.min_quote_words,
        max_quote_words=defaults.max_quote_words,
    )
    tasks = make_questions(read, plan, seed, memory=read)
    write_questions(tasks, out)
    return tasks


def _questions_by_model(
    chunks: Path,
    out: Path,
    endpoint: Any,
    model: str,
    num_pairs: int,
    episodes: str,
    max_episodes: int | None,
    embedding_model: str,
) -> list[Task]:
    from midthought.errors import NoReplyError
    from midthought.memory.embedding import load_embedder
    from midthought.memory.llm_questions.episodes import GenerationPlan
    from midthought.memory.llm_questions.generate import generate_questions
    from midthought.memory.llm_questions.structured_output import StructuredOutputModel
    from midthought.memory.store import MemoryStore
    from midthought.report.console import Console

    asked = StructuredOutputModel(model, endpoint, out.with_suffix(".replies.sqlite"))
    embedder = load_embedder(embedding_model)
    store = MemoryStore.open(str(chunks), embedder=embedder)
    plan = GenerationPlan(num_pairs)
    try:
        with Console().stage("Questions", unit="episodes") as bar:
            report = generate_questions(
                store, asked, embedder, out, plan, only=episodes, max_episodes=max_episodes, progress=bar.follow
            )
    except NoReplyError as error:
        tell(f"midthought: {endpoint.base_url}: {error}", err=True)
        raise typer.Exit(1) from None
    for reason, count in Counter(task.labels["verdict"]["problem"] for task in report.refused).most_common():
        tell(f"refused {count}: {reason}")
    for stem, problem in report.problems:
        tell(f"not finished: {stem}: {problem}; run the same command again to continue", err=True)
    return list(report.accepted)


def _read_chunks(
    transcripts: Path, kind: str, words: int, size: int | None, overlap: int | None, each_once: bool, strict: bool
) -> Any:
    """Returns the transcripts of the folder and their chunks."""
    from midthought.memory.build import chunk_all
    from midthought.memory.transcripts import read_transcripts

    chunking = _chunking(kind, words, size, overlap)
    folder = read_transcripts(transcripts, each_once=each_once)
    if strict:
        folder.require_all()
    return folder, chunk_all(folder.transcripts, chunking)


def _chunking(kind: str, words: int, size: int | None, overlap: int | None) -> Any:
    from midthought.memory.splitting import Chunking

    return Chunking(kind, words if kind == "turns" and size is None else size, overlap)  # type: ignore[arg-type]


def _print_summary(folder: Any, chunks: Any, as_json: bool, **more: Any) -> None:
    from midthought.memory.summary import COLUMNS, notices, summary_json, summary_rows
    from midthought.report.console import Console

    if as_json:
        tell(json.dumps(summary_json(folder, chunks) | more, indent=1, ensure_ascii=False))
        return
    Console().table("Transcripts", COLUMNS, summary_rows(folder, chunks))
    for line in notices(folder):
        tell(line, err=True)
