"""`midthought memory`: builds, searches and serves a transcript memory, as a whole or step by step."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from midthought.cli import questions
from midthought.cli.questions import UsedEmbeddingModel
from midthought.errors import SettingsError
from midthought.files.output_folder import require_our_lines
from midthought.memory.rows import require_our_parquet
from midthought.report.console import Console, tell

app = typer.Typer(help="Build, search and serve a podcast memory; also step by step.", no_args_is_help=True)

Transcripts = Annotated[Path, typer.Argument(help="Folder of transcripts, or one file.")]
MemoryPath = Annotated[str, typer.Option(help="Path of the LanceDB memory.")]
ChunkingKind = Annotated[str, typer.Option(help="windows or turns (docs/memory.md).")]
ChunkSize = Annotated[
    int | None, typer.Option(help="Embedded tokens per window (default: 128), or most words per chunk of turns (18).")
]
ChunkOverlap = Annotated[int | None, typer.Option(help="Tokens shared with the previous window; default: 32.")]
EachOnce = Annotated[
    bool, typer.Option("--each-once", help="Of files with the same words, use only the most detailed one.")
]
Strict = Annotated[bool, typer.Option("--strict", help="Fail if a file cannot be read.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON: for each file, what was read and what was not.")]
EmbeddingModel = Annotated[str, typer.Option(help="minilm, a model folder, or https://HOST/v1#MODEL.")]
TokenEnv = Annotated[str | None, typer.Option(help="Environment variable with the token of a service.")]


_BUILD = """Build a searchable memory from transcripts. Building again adds new and changed ones, without duplicates.

It stops if the memory has transcripts that are not in TRANSCRIPTS: 'add' keeps them, --replace removes them."""
_ADD = """Add transcripts to a memory; all others stay. Searches go on meanwhile. A corrected transcript replaces its old version
with --replace."""


@app.command("build", help=_BUILD)
@app.command("add", help=_ADD)
def write(
    context: typer.Context,
    transcripts: Transcripts,
    path: MemoryPath = "memory",
    chunking: Annotated[
        str, typer.Option(help="windows or turns (docs/memory.md); default: windows, of add: as the memory has.")
    ] = "",
    chunk_size: ChunkSize = None,
    chunk_overlap: ChunkOverlap = None,
    embedding_model: EmbeddingModel = "minilm",
    each_once: EachOnce = False,
    strict: Strict = False,
    replace: Annotated[
        bool,
        typer.Option(
            "--replace", help="build: remove what is not in TRANSCRIPTS; add: replace transcripts of these names."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    from midthought.memory.embedding import load_embedder
    from midthought.memory.store import MemoryStore

    store, is_added = MemoryStore.open(path, embedder=load_embedder(embedding_model)), context.info_name == "add"
    kind = chunking or ("turns" if is_added and store.is_built and not store.has_windows else "windows")
    folder, chunks = _read_chunks(transcripts, (kind, chunk_size, chunk_overlap, each_once, strict))
    with Console(quiet=as_json).stage("Memory", unit="texts embedded") as bar:
        report = (store.add if is_added else store.build)(chunks, bar.follow, replace=replace)
    _print_summary(folder, chunks, as_json, memory=asdict(report))
    if not as_json:
        numbers = f"{report.num_added} added, {report.num_kept} kept, {report.num_removed} removed"
        tell(f"{path}: {numbers}; {len(store)} chunks in all")


@app.command()
def delete(
    names: Annotated[list[str], typer.Argument(help="Names of transcripts: their files without suffix (see inspect).")],
    path: MemoryPath = "memory",
) -> None:
    """Delete transcripts. Questions made from them stay; older versions of the table are removed by later builds."""
    from midthought.memory.store import MemoryStore

    tell(f"{path}: {MemoryStore.open(path).delete(names)} chunks deleted")


@app.command()
def inspect(transcripts: Transcripts, as_json: AsJson = False) -> None:
    """Show how each file would be understood: format, style, failed checks, speakers, first turns, what is skipped and why.

    The exit code is 2 if no file can be read.
    """
    from midthought.memory.inspection import inspection_json, inspection_lines
    from midthought.memory.transcripts import read_transcripts

    folder = read_transcripts(transcripts, require_any=False)
    if as_json:
        tell(json.dumps(inspection_json(folder), indent=1, ensure_ascii=False))
    else:
        for line in inspection_lines(folder):
            tell(line)
    if not folder.transcripts:
        raise typer.Exit(2)


@app.command()
def search(
    query: Annotated[str, typer.Argument(help="Text to search for.")],
    path: MemoryPath = "memory",
    k: Annotated[int, typer.Option("--k", "-k", help="Number of results.")] = 3,
    mode: Annotated[str, typer.Option(help="hybrid, vector or full_text.")] = "hybrid",
    episode: Annotated[
        list[str] | None, typer.Option(help="Only the episode with this title; may be repeated.")
    ] = None,
    speaker: Annotated[list[str] | None, typer.Option(help="Only this speaker; may be repeated.")] = None,
    embedding_model: UsedEmbeddingModel = "minilm",
    token_env: TokenEnv = None,
) -> None:
    """Search a memory, local or served (--path http://HOST:PORT), as the tool does."""
    from midthought.memory.remote import open_memory
    from midthought.memory.tool import format_hits

    if not query.strip():
        raise SettingsError("the query is empty; give words to search for")
    memory = open_memory(path, embedding_model=embedding_model, token_env=token_env)
    hits = memory.search(query, k, mode, episodes=episode or (), speakers=speaker or ())  # type: ignore[arg-type]
    names = "; the names of episodes and speakers must be exact" if episode or speaker else ""
    tell(format_hits(hits) if hits else f"Nothing found{names}.")


@app.command()
def serve(
    path: MemoryPath = "memory",
    embedding_model: UsedEmbeddingModel = "minilm",
    questions: Annotated[
        Path | None, typer.Option(help="JSON Lines file of questions; default: the memory's own.")
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; other than loopback requires a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 chooses a free one.")] = 8100,
    token_env: Annotated[str | None, typer.Option(help="Environment variable with the required token.")] = None,
) -> None:
    """Serve a memory to a cluster, until Ctrl-C or SIGTERM."""
    from midthought.memory.service.command import serve as serve_memory

    serve_memory(path, embedding_model, questions=questions, host=host, port=port, token_env=token_env, tell=tell)


@app.command()
def chunk(
    transcripts: Transcripts,
    out: Annotated[Path, typer.Argument(help="JSON Lines file of chunks.")],
    chunking: ChunkingKind = "windows",
    chunk_size: ChunkSize = None,
    chunk_overlap: ChunkOverlap = None,
    each_once: EachOnce = False,
    strict: Strict = False,
    as_json: AsJson = False,
) -> None:
    """Step 1: split transcripts into chunks."""
    from midthought.memory.chunks import write_chunks

    require_our_lines(out, ("chunk_id", "transcript"))
    folder, chunks = _read_chunks(transcripts, (chunking, chunk_size, chunk_overlap, each_once, strict))
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

    require_our_parquet(out, ("chunk_id", "vector"))
    read, embedder = read_chunks(chunks), load_embedder(embedding_model)
    with Console().stage("Embedding", unit="texts embedded") as bar:
        rows = embed_chunks(read, embedder, bar.follow)
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


app.command()(questions.questions)


def _read_chunks(transcripts: Path, how: tuple[Any, ...]) -> Any:
    """Returns the transcripts of the folder, and their chunks."""
    from midthought.memory.build import chunk_all
    from midthought.memory.splitting import Chunking
    from midthought.memory.transcripts import read_transcripts

    kind, size, overlap, each_once, strict = how
    chunking = Chunking(kind, size, overlap)
    folder = read_transcripts(transcripts, each_once=each_once)
    if strict:
        folder.require_all()
    return folder, chunk_all(folder.transcripts, chunking)


def _print_summary(folder: Any, chunks: Any, as_json: bool, **more: Any) -> None:
    from midthought.memory.inspection import COLUMNS, inspection_json, notices, summary_rows

    if as_json:
        tell(json.dumps(inspection_json(folder, chunks) | more, indent=1, ensure_ascii=False))
        return
    Console().table("Transcripts", COLUMNS, summary_rows(folder, chunks))
    for line in notices(folder):
        tell(line, err=True)
