"""`midthought engine`: starts a model server (vLLM, SGLang) with the options that our engines need."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from midthought.cli.output import tell

app = typer.Typer(help="Model servers for inference.backend=vllm and sglang.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Model servers for inference.backend=vllm and sglang."""


@app.command()
def serve(
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
    from midthought.engines.servers.launch import serve as serve_model
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
    code = serve_model(
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
