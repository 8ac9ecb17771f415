"""`midthought serve`, `chat` and `export`: use and publish the policy of a run; `midthought engine`: starts a model server (vLLM,
SGLang) with the options that our engines need."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from midthought.errors import SettingsError
from midthought.files.regular import value_errors
from midthought.report.console import tell

Run = Annotated[Path, typer.Argument(help="Run folder, checkpoint, or Hugging Face model folder.")]
Recipe = Annotated[str | None, typer.Option(help="Recipe that makes the tools, if the run does not record one.")]
Tools = Annotated[list[str] | None, typer.Option(help="MODULE:NAME of a tool instead of the run's; may be repeated.")]
NoTools = Annotated[bool, typer.Option("--no-tools", help="Without the run's tools.")]
System = Annotated[str | None, typer.Option(help="System prompt instead of the run's.")]
CallFormat = Annotated[
    str | None, typer.Option(help="Name of the call format, if the run does not record one; MODULE:NAME for your own.")
]
Device = Annotated[str | None, typer.Option(help="Device: cpu, cuda, …; default: that of the run's settings.")]


def serve(
    run: Run,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 chooses a free one.")] = 8200,
    api_key_env: Annotated[
        str | None,
        typer.Option(help="Environment variable with the API key that requests must have. Needed beyond loopback."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the model in requests; default: the run's name.")] = None,
    recipe: Recipe = None,
    tools: Tools = None,
    no_tools: NoTools = False,
    system: System = None,
    call_format: CallFormat = None,
    device: Device = None,
    max_num_seqs: Annotated[int | None, typer.Option(min=1, help="Most answers sampled at the same time.")] = None,
) -> None:
    """Serve the policy of a run as an endpoint of OpenAI's and Anthropic's clients. Its tools run here. Ctrl-C stops it."""
    from midthought.config.references import require_installed
    from midthought.memory.service.auth import AccessPolicy

    access = AccessPolicy.of(host, api_key_env, option="--api-key-env")
    require_installed("serve", "fastapi", "uvicorn")
    from midthought.memory.service.server import address, listen, make_server
    from midthought.memory.service.server import run as run_server
    from midthought.serve.app import make_shared_app

    how = {"system_prompt": system, "call_format": call_format, "device": device, "max_num_seqs": max_num_seqs}
    opened = _open(run, tools, no_tools, recipe=recipe, **how)
    with opened.engine:
        listening, name = listen(access.host, port), name or opened.name
        tools_of_run = ", ".join(opened.policy.executor.registry.names()) or "none"
        tell(f"{name} (tools: {tools_of_run}) at {address(listening)}/v1")
        app = make_shared_app(opened.policy, opened.engine.start, name, access)
        run_server(make_server(app), listening)


def _open(run: Path, tools: list[str] | None, no_tools: bool, **how: Any) -> Any:
    from midthought.recipes.served_run import open_run

    if tools and no_tools:
        raise SettingsError(f"--tools {tools[0]} with --no-tools: leave one of them out")
    return open_run(run, tools=[] if no_tools else tools or None, **how)


def chat(
    run: Run,
    temperature: Annotated[
        float | None, typer.Option(min=0, help="0 takes the most probable token; default: that of the run's settings.")
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Most tokens of an answer, results included.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the first answer; default: random.")] = None,
    recipe: Recipe = None,
    tools: Tools = None,
    no_tools: NoTools = False,
    system: System = None,
    call_format: CallFormat = None,
    device: Device = None,
) -> None:
    """Talk to the policy of a run; its tools run here. Thoughts, calls and results are shown as they arrive.

    Without a terminal, every line of the standard input is a question of its own, and every line of the output its answer.
    """
    import sys

    from midthought.serve.chat_terminal import ChatSession, ChatTerminal, answer_lines

    how = {"system_prompt": system, "call_format": call_format, "device": device, "max_num_seqs": 1}
    opened = _open(run, tools, no_tools, recipe=recipe, **how)
    with opened.engine:
        session = ChatSession(opened.engine, opened.policy, temperature=temperature, max_tokens=max_tokens, seed=seed)
        if sys.stdin.isatty():
            ChatTerminal(session).run()
        else:
            answer_lines(session, sys.stdin)


def export(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    folder: Annotated[Path, typer.Argument(help="Folder to write.")],
    name: Annotated[str, typer.Option(help="Repository on the Hugging Face hub: OWNER/NAME; default: FOLDER's.")] = "",
) -> None:
    """Write the policy of a run with a model card into a folder; `hf upload OWNER/NAME FOLDER` publishes it."""
    from midthought.trainer.hub import save_for_hub

    with value_errors(run):
        written = save_for_hub(run, folder, name=name)
    command = shlex.join(["hf", "upload", name or "OWNER/NAME", str(written)])
    tell(f"{written}: fill in data and license in README.md, then: {command}")


app = typer.Typer(help="Model servers for inference.backend=vllm and sglang.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Model servers for inference.backend=vllm and sglang."""


@app.command("serve")
def serve_model(
    model: Annotated[str, typer.Argument(help="Model folder or Hugging Face name.")],
    flags: Annotated[
        list[str] | None,
        typer.Argument(help="Further arguments for the server, after --; they override ours; not address and keys."),
    ] = None,
    backend: Annotated[str, typer.Option(help="Kind of server: vllm or sglang.")] = "vllm",
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 chooses a free one.")] = 8000,
    uds: Annotated[
        Path | None,
        typer.Option(help="Unix socket to listen on instead, for this user only; vllm. base_url: unix:/PATH"),
    ] = None,
    api_key_env: Annotated[
        str | None, typer.Option(help="Environment variable with the key that requests must have; sglang.")
    ] = None,
    served_model_name: Annotated[str | None, typer.Option(help="Model name in requests; default: MODEL.")] = None,
    dtype: Annotated[str, typer.Option(help="Data type of the weights; use that of training (model.dtype).")] = "auto",
    max_seq_len: Annotated[
        int | None, typer.Option(help="Most tokens per sequence; default: the model's limit.")
    ] = None,
    max_num_seqs: Annotated[int, typer.Option(help="Most sequences at the same time.")] = 128,
    tensor_parallel: Annotated[int, typer.Option(help="Number of GPUs that share each layer.")] = 1,
    weights: Annotated[
        bool, typer.Option("--weights/--no-weights", help="Accept new weights while running, for training.")
    ] = True,
    lora_rank: Annotated[
        int, typer.Option(help="Accept adapters up to this rank instead of weights (model.lora_rank).")
    ] = 0,
    untie_into: Annotated[
        Path | None, typer.Option(help="Folder for the untied copy of a tied model; default: beside MODEL.")
    ] = None,
    python: Annotated[str | None, typer.Option(help="Python interpreter of the environment with the server.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the command and exit.")] = False,
) -> None:
    """Start a model server with the options that our engines need, and wait until it ends. Ctrl-C stops it."""
    from midthought.engines.servers.launch import serve as start_server
    from midthought.engines.servers.server import ServerOptions

    options = ServerOptions(
        served_model_name=served_model_name,
        host=host,
        port=port,
        uds=str(uds or ""),
        dtype=dtype,
        max_seq_len=max_seq_len,
        max_num_seqs=max_num_seqs,
        num_gpus=tensor_parallel,
        accepts_weights=weights and not lora_rank,
        max_lora_rank=lora_rank,
        flags=flags or [],
    )
    code = start_server(
        model,
        backend,
        options,
        api_key_env=api_key_env,
        untie_into=untie_into,
        python=python,
        dry_run=dry_run,
        tell=tell,
    )
    raise typer.Exit(code)
