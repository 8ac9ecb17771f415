"""`midthought COMMAND`: reads words, calls a room, prints. A user's mistake is one message and exit code 2."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from midthought.errors import SettingsError, UserError, near_names

if TYPE_CHECKING:
    from midthought.config import RecipeConfig

app = typer.Typer(
    help="Train language models to use tools while they reason.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
memory_app = typer.Typer(help="Build and search a podcast memory; its steps one by one.", no_args_is_help=True)
app.add_typer(memory_app, name="memory")
engine_app = typer.Typer(help="Model servers for inference.backend=vllm and sglang.", no_args_is_help=True)
app.add_typer(engine_app, name="engine")
feedback_app = typer.Typer(help="Feedback: logs, problems, servers.", no_args_is_help=True)
app.add_typer(feedback_app, name="feedback")

Assignments = Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]…", help="Settings, e.g. training.seed=1")]


def main() -> None:
    """Entry point of the `midthought` command."""
    os.environ.setdefault(
        "ONEDNN_PRIMITIVE_CACHE_CAPACITY", "32"
    )  # batches differ in shape: a full cache holds gigabytes
    try:
        app()
    except UserError as error:
        print(f"midthought: {error}", file=sys.stderr)
        sys.exit(2)


@app.command()
def train(
    recipe: Annotated[str, typer.Argument(help="Which recipe: podcast or feedback.")],
    settings: Assignments = None,
    config: Annotated[Path | None, typer.Option(help="YAML file of settings, or the name of one that ships.")] = None,
    stage: Annotated[str, typer.Option(help="sft (warm-up alone), rl, or all.")] = "all",
    from_: Annotated[Path | None, typer.Option("--from", help="Run, checkpoint or model to begin with.")] = None,
    run: Annotated[Path | None, typer.Option(help="Run folder; runs/RECIPE-TIME by default.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --run.")] = False,
    allow_changes: Annotated[
        bool, typer.Option("--allow-changes", help="With --resume: take settings that change what is learned.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print the last table only.")] = False,
    engine: Annotated[
        str, typer.Option(help="Who trains: midthought, or verl on a cluster (docs/verl.md).")
    ] = "midthought",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="With verl: write its bundle to --run and end.")] = False,
) -> None:
    """Train a policy: warm-up, reinforcement learning, evaluation, report."""
    from midthought.recipes import find_recipe
    from midthought.report.console import Console

    found = find_recipe(recipe)
    path = run or Path("runs") / f"{recipe}-{time.strftime('%Y%m%d-%H%M%S')}"
    if engine != "midthought":
        _require_verl_options(engine, stage, resume)
        _train_with_verl(recipe, path, settings or [], config, stage, from_, dry_run)
        return
    if dry_run:
        raise SettingsError("--dry-run is of --engine verl; this library's own trainer has nothing to write beforehand")
    console = Console(quiet=quiet)
    try:
        found.run(
            path,
            console,
            words=settings or [],
            config=config,
            stage=stage,
            from_path=from_,
            resume=resume,
            allow_changes=allow_changes,
        )
    except KeyboardInterrupt:
        console.error(f"Stopped; everything done is saved. Go on with: midthought train {recipe} --run {path} --resume")
        raise typer.Exit(130) from None


def _require_verl_options(engine: str, stage: str, resume: bool) -> None:
    if engine != "verl":
        raise SettingsError(f"unknown engine {engine!r}. {near_names(engine, ('midthought', 'verl'))}")
    if stage not in ("sft", "rl", "all"):
        raise SettingsError(f"unknown stage {stage!r}. {near_names(stage, ('sft', 'rl', 'all'))}")
    if resume:
        raise SettingsError("--resume with --engine verl: run the bundle's train.sh again, it goes on by itself")


def _train_with_verl(
    recipe: str, path: Path, words: list[str], config: Path | None, stage: str, from_path: Path | None, dry_run: bool
) -> None:
    """The stage `sft` by verl's SFT trainer, any other as reinforcement learning: the bundle is one or the other."""
    from importlib import import_module
    from importlib.util import find_spec

    from midthought.cluster.verl.bundle import SCRIPT, write_bundle
    from midthought.cluster.verl.installed import launch, require_verl
    from midthought.cluster.verl.sft_bundle import write_sft_bundle

    if find_spec(f"midthought.recipes.{recipe}.verl") is None:
        raise SettingsError(f"--engine verl: the recipe {recipe!r} has nothing for verl yet; leave --engine out")
    supplied = import_module(f"midthought.recipes.{recipe}.verl")
    if stage == "sft" and not hasattr(supplied, "sft_job"):
        raise SettingsError(
            f"--stage sft with --engine verl: verl learns whole messages, and the demonstrations of {recipe!r} hold results "
            "within an answer; leave --engine out for the warm-up"
        )
    chosen = supplied.settings(words, config, from_path)
    python = None if dry_run else require_verl(chosen.verl.python)
    if stage == "sft":
        files = write_sft_bundle(supplied.sft_job(chosen), chosen.verl, path)
    else:
        files = write_bundle(supplied.job(chosen, path), chosen.verl, path)
    typer.echo(f"{path}: {len(files)} files. Train with: {path / SCRIPT}")
    if python is not None:
        raise typer.Exit(launch(path / SCRIPT, python))


@app.command()
def evaluate(
    model: Annotated[Path, typer.Argument(help="Run folder, checkpoint, or any Hugging Face folder.")],
    settings: Assignments = None,
    recipe: Annotated[str, typer.Option(help="Whose evaluation: podcast or feedback.")] = "podcast",
    config: Annotated[Path | None, typer.Option(help="YAML file of settings; those of the model's run.")] = None,
    run: Annotated[Path | None, typer.Option(help="Folder of the result; runs/evaluate-TIME by default.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print the last table only.")] = False,
) -> None:
    """Run a model through a recipe's evaluation: figures, trajectories, report."""
    from midthought.recipes import find_recipe
    from midthought.report.console import Console

    found = find_recipe(recipe)
    path = run or Path("runs") / f"evaluate-{time.strftime('%Y%m%d-%H%M%S')}"
    console = Console(quiet=quiet)
    try:
        found.run(path, console, words=settings or [], config=config, stage="evaluate", from_path=model, resume=False)
    except KeyboardInterrupt:
        console.error("Stopped; nothing was trained, so evaluate again from the beginning.")
        raise typer.Exit(130) from None


@app.command()
def settings(
    recipe: Annotated[
        str, typer.Argument(help="Whose settings: podcast, feedback, or library (RayPPOTrainer).")
    ] = "library",
) -> None:
    """Print every setting with its default and what it means."""
    from midthought.config import ConfigStore
    from midthought.config.page import settings_page
    from midthought.recipes import find_recipe

    store = ConfigStore if recipe == "library" else find_recipe(recipe).config_class()
    typer.echo(settings_page(store, recipe))


@app.command()
def plan(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]…", help="e.g. model=Qwen/Qwen3-8B gpus=8: docs/scaling.md"),
    ] = None,
    recipe: Annotated[
        str | None, typer.Option(help="Plan what this recipe's settings say: podcast or feedback.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="With --recipe: YAML file of settings, or the name of one that ships.")
    ] = None,
    engine: Annotated[str, typer.Option(help="With --recipe: who trains, midthought or verl.")] = "midthought",
    sizes: Annotated[
        bool, typer.Option("--sizes", help="A table of models; with --recipe, what train chooses.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Bytes and seconds for programs.")] = False,
) -> None:
    """Memory per GPU and time per step of a run, before it is paid for; no weights are loaded."""

    from midthought.plan.command import choice_rows, make_plan, size_rows, split_words
    from midthought.plan.table import to_dict, to_lines

    own, of_recipe = split_words(words or [])
    if recipe is None and (config is not None or of_recipe):
        raise SettingsError(f"{config or of_recipe[0]}: settings are a recipe's; say which with --recipe")
    if sizes and (as_json or engine != "midthought"):
        raise SettingsError("--sizes plans several models with the words given; leave --json and --engine out")
    if sizes and recipe:

        def begin(model: str) -> RecipeConfig:
            return _recipe_settings(recipe, [*of_recipe, f"model.local_path={model}"], config, engine)

        typer.echo("\n".join(choice_rows(begin, own)))
        return
    if sizes:
        typer.echo("\n".join(size_rows(own)))
        return
    memory = make_plan(own, _recipe_settings(recipe, of_recipe, config, engine) if recipe else None)
    typer.echo(json.dumps(to_dict(memory), indent=1) if as_json else "\n".join(to_lines(memory)))


def _recipe_settings(recipe: str, words: list[str], config: Path | None, engine: str) -> RecipeConfig:
    from importlib import import_module

    from midthought.recipes import find_recipe
    from midthought.recipes.presets import begin

    found: Any = find_recipe(recipe)
    if engine != "midthought":
        _require_verl_options(engine, "all", resume=False)
        chosen: RecipeConfig = import_module(f"midthought.recipes.{recipe}.verl").settings(words, config)
        return chosen
    chosen, _ = begin(
        found.config_class(),
        Path(found.__file__).parent,
        found.SHIPPED,
        Path(),
        words=words,
        config=config,
        stage="all",
        from_path=None,
        resume=False,
    )
    return chosen


@app.command()
def report(run: Annotated[Path, typer.Argument(help="Run folder.")]) -> None:
    """Write RUN/report.html anew from the run's files."""
    from midthought.report.html import write_report

    typer.echo(write_report(run))


@memory_app.command("build")
def memory_build(
    transcripts: Annotated[Path, typer.Argument(help="Folder of transcripts, or one file.")],
    path: Annotated[str, typer.Option(help="Where the LanceDB memory lies.")] = "memory",
    chunking: Annotated[str, typer.Option(help="turns, tokens or sentences: docs/memory.md.")] = "turns",
    chunk_words: Annotated[int, typer.Option(help="Most words of a chunk by turns.")] = 18,
    chunk_size: Annotated[int | None, typer.Option(help="Tokens or sentences of a chunk; 128 or 3.")] = None,
    chunk_overlap: Annotated[int | None, typer.Option(help="Tokens or sentences shared with the one before.")] = None,
    embedding_model: Annotated[
        str, typer.Option(help="minilm, a model's folder, or either with ?dtype=float32.")
    ] = "minilm",
    each_once: Annotated[
        bool, typer.Option("--each-once", help="Of files that say the same words, take the one that tells most.")
    ] = False,
    strict: Annotated[bool, typer.Option("--strict", help="End where a file cannot be read.")] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Remove from the memory what is not in TRANSCRIPTS.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON: every file, what was read of it, what was not.")
    ] = False,
) -> None:
    """Transcripts to a searchable memory. Building again adds nothing twice; transcripts of other folders stay."""
    from dataclasses import asdict

    from midthought.memory.embedding import load_embedder
    from midthought.memory.store import MemoryStore
    from midthought.report.console import Console

    folder, chunks = _chunks_of(transcripts, chunking, chunk_words, chunk_size, chunk_overlap, each_once, strict)
    store = MemoryStore.open(path, embedder=load_embedder(embedding_model))
    with Console(quiet=as_json).stage("Memory", unit="chunks embedded") as bar:
        report = store.build(chunks, bar.follow, replace=replace)
    _tell_summary(folder, chunks, as_json, memory=asdict(report))
    if not as_json:
        if report.precision:
            typer.echo(f"Chunks are embedded in {report.precision}")
        typer.echo(f"{path}: {report.num_added} added, {report.num_kept} kept, {report.num_removed} removed")


def _chunks_of(
    transcripts: Path, kind: str, words: int, size: int | None, overlap: int | None, each_once: bool, strict: bool
) -> Any:
    """(what the folder held, its chunks)."""
    from midthought.memory.build import chunk_all
    from midthought.memory.splitting import Chunking
    from midthought.memory.transcripts import read_transcripts

    chunking = Chunking(kind, words if kind == "turns" and size is None else size, overlap)  # type: ignore[arg-type]
    folder = read_transcripts(transcripts, each_once=each_once)
    if strict:
        folder.require_all()
    return folder, chunk_all(folder.transcripts, chunking)


def _tell_summary(folder: Any, chunks: Any, as_json: bool, **more: Any) -> None:
    from midthought.memory.summary import COLUMNS, notices, summary_json, summary_rows
    from midthought.report.console import Console

    if as_json:
        typer.echo(json.dumps(summary_json(folder, chunks) | more, indent=1, ensure_ascii=False))
        return
    Console().table("Transcripts", COLUMNS, summary_rows(folder, chunks))
    for line in notices(folder):
        typer.echo(line, err=True)


@memory_app.command("search")
def memory_search(
    query: Annotated[str, typer.Argument(help="Words to look for.")],
    path: Annotated[str, typer.Option(help="Where the LanceDB memory lies.")] = "memory",
    k: Annotated[int, typer.Option(help="How many results.")] = 3,
    mode: Annotated[str, typer.Option(help="hybrid, vector or full_text.")] = "hybrid",
    token_env: Annotated[str | None, typer.Option(help="Environment variable with a service's token.")] = None,
) -> None:
    """Search a memory, here or served (--path http://HOST:PORT), as the tool does."""
    from midthought.memory.connect import open_memory
    from midthought.memory.tool import format_hits

    typer.echo(format_hits(open_memory(path, token_env=token_env).search(query, k, mode)))  # type: ignore[arg-type]


@memory_app.command("serve")
def memory_serve(
    path: Annotated[str, typer.Option(help="Where the LanceDB memory lies.")] = "memory",
    table: Annotated[str, typer.Option(help="Name of the table.")] = "transcripts",
    embedding_model: Annotated[str, typer.Option(help="What it was built with.")] = "minilm",
    questions: Annotated[
        Path | None, typer.Option(help="JSON-lines file of questions; the memory's own by default.")
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address that it listens on; beyond loopback a token is needed.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0: one that is free.")] = 8100,
    token_env: Annotated[str | None, typer.Option(help="Environment variable with the token to ask for.")] = None,
    follow: Annotated[bool, typer.Option(help="See what builds write meanwhile, or serve it as it is now.")] = True,
) -> None:
    """Serve a memory to a cluster and to the browser, until Ctrl-C or SIGTERM."""
    from midthought.memory.service.command import serve

    own = (path, table, embedding_model)
    serve(*own, questions=questions, host=host, port=port, token_env=token_env, follow=follow, tell=typer.echo)


@memory_app.command("chunk")
def memory_chunk(
    transcripts: Annotated[Path, typer.Argument(help="Folder of transcripts, or one file.")],
    out: Annotated[Path, typer.Argument(help="JSON-lines file of chunks.")],
    chunking: Annotated[str, typer.Option(help="turns, tokens or sentences: docs/memory.md.")] = "turns",
    chunk_words: Annotated[int, typer.Option(help="Most words of a chunk by turns.")] = 18,
    chunk_size: Annotated[int | None, typer.Option(help="Tokens or sentences of a chunk; 128 or 3.")] = None,
    chunk_overlap: Annotated[int | None, typer.Option(help="Tokens or sentences shared with the one before.")] = None,
    each_once: Annotated[
        bool, typer.Option("--each-once", help="Of files that say the same words, take the one that tells most.")
    ] = False,
    strict: Annotated[bool, typer.Option("--strict", help="End where a file cannot be read.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON: every file, what was read of it, what was not.")
    ] = False,
) -> None:
    """Step 1: transcripts to chunks."""
    from midthought.memory.chunks import write_chunks

    folder, chunks = _chunks_of(transcripts, chunking, chunk_words, chunk_size, chunk_overlap, each_once, strict)
    write_chunks(chunks, out)
    _tell_summary(folder, chunks, as_json)
    if not as_json:
        typer.echo(f"{out}: {len(chunks)} chunks")


@memory_app.command("embed")
def memory_embed(
    chunks: Annotated[Path, typer.Argument(help="JSON-lines file of chunks.")],
    out: Annotated[Path, typer.Argument(help="Parquet file of chunks with vectors.")],
    embedding_model: Annotated[
        str, typer.Option(help="minilm, a model's folder, or either with ?dtype=float32.")
    ] = "minilm",
) -> None:
    """Step 2: chunks to vectors."""
    from midthought.memory.build import embed_chunks
    from midthought.memory.chunks import read_chunks
    from midthought.memory.embedding import load_embedder
    from midthought.memory.rows import write_rows
    from midthought.report.console import Console

    with Console().stage("Embedding", unit="chunks") as bar:
        rows = embed_chunks(read_chunks(chunks), load_embedder(embedding_model), bar.follow)
    write_rows(rows, out)
    typer.echo(f"{out}: {rows.num_rows} chunks")


@memory_app.command("ingest")
def memory_ingest(
    rows: Annotated[Path, typer.Argument(help="Parquet file of chunks with vectors.")],
    path: Annotated[str, typer.Option(help="Where the LanceDB memory lies.")] = "memory",
    replace: Annotated[bool, typer.Option("--replace", help="Remove from the memory what is not in ROWS.")] = False,
) -> None:
    """Step 3: chunks with vectors into the memory; what is there already stays as it is."""
    from midthought.memory.rows import read_rows
    from midthought.memory.store import MemoryStore

    report = MemoryStore.open(path).ingest(read_rows(rows), replace=replace)
    typer.echo(f"{path}: {report.num_added} added, {report.num_kept} kept")


@memory_app.command("questions")
def memory_questions(
    chunks: Annotated[Path, typer.Argument(help="A memory, or a JSON-lines file of chunks.")] = Path("memory"),
    out: Annotated[Path, typer.Argument(help="JSON-lines file of questions.")] = Path("questions.jsonl"),
    num_questions: Annotated[int, typer.Option(help="How many without a model.")] = 200,
    no_memory_share: Annotated[float, typer.Option(help="Share whose prompt holds the answer.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Which ones are drawn.")] = 0,
    from_model: Annotated[str, typer.Option(help="A model writes them: its address, http://HOST:PORT/v1.")] = "",
    model: Annotated[str, typer.Option(help="The model's name at that address.")] = "",
    api_key_env: Annotated[str | None, typer.Option(help="Environment variable with its key.")] = None,
    num_pairs: Annotated[int, typer.Option(help="Questions of an episode that a model writes.")] = 20,
    episodes: Annotated[str, typer.Option(help="Only episodes with this in their title or file name.")] = "",
    max_episodes: Annotated[int | None, typer.Option(help="At most so many episodes.")] = None,
    embedding_model: Annotated[str, typer.Option(help="What the memory was built with.")] = "minilm",
    parquet: Annotated[Path | None, typer.Option(help="Also write them as verl's rows.")] = None,
    timeout_seconds: Annotated[float, typer.Option(help="Deadline of one request to the model.")] = 300.0,
) -> None:
    """Step 4: questions with their answers and proofs, by rules, or by a language model that is then put to the test."""
    if from_model:
        from midthought.errors import NoReplyError
        from midthought.http_json import EndpointSettings
        from midthought.memory.embedding import load_embedder
        from midthought.memory.llm_questions.episodes import GenerationPlan
        from midthought.memory.llm_questions.generate import generate_questions
        from midthought.memory.llm_questions.structured_output import StructuredOutputModel
        from midthought.memory.store import MemoryStore
        from midthought.report.console import Console

        endpoint = EndpointSettings(
            base_url=from_model,
            api_key_env=api_key_env,
            timeout_seconds=timeout_seconds,
            retries=6,
            backoff_seconds=1.0,
            max_concurrency=8,
        )
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
            typer.echo(f"midthought: {from_model}: {error}", err=True)
            raise typer.Exit(1) from None
        tasks = list(report.accepted)
        for reason, count in Counter(task.labels["verdict"]["problem"] for task in report.refused).most_common():
            typer.echo(f"refused {count}: {reason}")
        for stem, problem in report.problems:
            typer.echo(f"not finished: {stem}: {problem}; the same command goes on", err=True)
    else:
        from midthought.memory.chunks import read_chunks
        from midthought.memory.questions import QuestionPlan, make_questions, write_questions

        read = _chunks_in(chunks) if chunks.is_dir() else read_chunks(chunks)
        tasks = make_questions(read, QuestionPlan(num_questions, needless_share=no_memory_share), seed, memory=read)
        write_questions(tasks, out)
    if parquet and tasks:
        from midthought.cluster.verl.rows import rows_of, write_parquet

        rows = rows_of(tasks, lambda task: task.messages(), data_source="podcast_qa", ability="qa", split="train")
        write_parquet(rows, parquet)
        typer.echo(f"{parquet}: {len(rows)} rows")
    typer.echo(f"{out}: {len(tasks)} questions")


def _chunks_in(memory: Path) -> Any:
    from midthought.memory.store import MemoryStore

    return MemoryStore.open(memory).chunks()


@feedback_app.command("convert")
def feedback_convert(
    log: Annotated[Path, typer.Argument(help="JSON lines, one record a problem and round.")],
    out: Annotated[Path, typer.Argument(help="Parquet file of conversations for SFT.")],
    dataset: Annotated[str, typer.Option(help="Whose problems: it says how answers are asked for.")] = "math",
    strict: Annotated[bool, typer.Option("--strict", help="Fail at the first bad row.")] = False,
    recheck: Annotated[
        bool, typer.Option("--recheck", help="Judge answers anew; logs call some right ones wrong.")
    ] = False,
) -> None:
    """Published feedback logs to tool-calling conversations."""
    from midthought.feedback.commands import convert_log

    convert_log(log, out, dataset=dataset, strict=strict, recheck=recheck, tell=typer.echo)


@feedback_app.command("problems")
def feedback_problems(
    dataset: Annotated[str, typer.Argument(help="math, gsm8k, mmlu, trivia_qa, multiplication, …: docs/feedback.md.")],
    out: Annotated[Path, typer.Argument(help=".parquet: verl's rows; .jsonl: tasks.")],
    source: Annotated[str | None, typer.Option(help="File, or name on the hub; its own by default.")] = None,
    split: Annotated[str | None, typer.Option(help="Split on the hub.")] = None,
    limit: Annotated[int | None, typer.Option(help="Draw this many.")] = None,
    seed: Annotated[int, typer.Option(help="Which are drawn or made; the order of GPQA's options.")] = 14,
    strict: Annotated[bool, typer.Option("--strict", help="Fail at the first bad row.")] = False,
) -> None:
    """A data set's problems, from the hub, a file or a seed."""
    from midthought.feedback.commands import write_problems

    write_problems(dataset, out, source=source, split=split, limit=limit, seed=seed, strict=strict, tell=typer.echo)


@feedback_app.command("check")
def feedback_check(
    config: Annotated[Path, typer.Argument(help="YAML file: plain settings, or verl's tool configuration.")],
) -> None:
    """Ask the feedback servers a few questions; every failure is told with its remedy."""
    from midthought.feedback.check import run_check

    raise typer.Exit(run_check(config, typer.echo))


@engine_app.callback()
def _engine() -> None:
    """Model servers for inference.backend=vllm and sglang."""


@engine_app.command("serve")
def engine_serve(
    model: Annotated[str, typer.Argument(help="Folder or Hugging Face name.")],
    flags: Annotated[list[str] | None, typer.Argument(help="Further words for the server, after --; they win.")] = None,
    backend: Annotated[str, typer.Option(help="Whose server: vllm or sglang.")] = "vllm",
    host: Annotated[str, typer.Option(help="Address that it listens on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0: one that is free.")] = 8000,
    served_model_name: Annotated[str | None, typer.Option(help="Name for requests; MODEL by default.")] = None,
    dtype: Annotated[str, typer.Option(help="Type of the weights; as in training (model.dtype).")] = "auto",
    max_seq_len: Annotated[int | None, typer.Option(help="Most tokens of a sequence; the model's limit.")] = None,
    max_num_seqs: Annotated[int, typer.Option(help="Most sequences at once.")] = 128,
    tensor_parallel: Annotated[int, typer.Option(help="GPUs that share every layer.")] = 1,
    weights: Annotated[
        bool, typer.Option("--weights/--no-weights", help="Take new weights while it runs, for training.")
    ] = True,
    lora_rank: Annotated[int, typer.Option(help="Take adapters up to this rank instead (model.lora_rank).")] = 0,
    untie_into: Annotated[
        Path | None, typer.Option(help="Where a tied model's copy without the tie is kept; beside MODEL.")
    ] = None,
    python: Annotated[str | None, typer.Option(help="Interpreter of an environment that has the server.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the command and end.")] = False,
) -> None:
    """Start a model server as our engines need it, and stay until it ends. Ctrl-C ends it."""
    from midthought.engines.servers.command import serve
    from midthought.engines.servers.dialect import ServerOptions

    options = ServerOptions(
        served_model_name=served_model_name,
        host=host,
        port=port,
        dtype=dtype,
        max_seq_len=max_seq_len,
        max_num_seqs=max_num_seqs,
        num_gpus=tensor_parallel,
        takes_weights=weights and not lora_rank,
        max_lora_rank=lora_rank,
        flags=flags or [],
    )
    code = serve(model, backend, options, untie_into=untie_into, python=python, dry_run=dry_run, tell=typer.echo)
    raise typer.Exit(code)


if __name__ == "__main__":
    main()
