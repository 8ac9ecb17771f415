"""Checks of the engine and the model servers: installed, responding, with the right model and usable log-probabilities."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from importlib.util import find_spec

from midthought.background_loop import BackgroundLoop
from midthought.doctor.registry import check
from midthought.doctor.setup import Setup, SkippedError
from midthought.engines.create import check_backend
from midthought.engines.servers.connection import RetryPolicy, require_httpx
from midthought.engines.servers.generation import probe_text
from midthought.engines.servers.training import SERVER_ENGINES
from midthought.engines.weight_sync.synced_engine import SyncedEngine
from midthought.guards.finding import Finding
from midthought.plan.engine_choice import before_choice

_SECONDS = 5.0


@check("engine")
def engine(setup: Setup) -> Iterator[Finding]:
    """The engine of the settings is supported in training, and its package is installed."""
    inference = before_choice(setup.config.inference)
    check_backend(inference)
    if inference.backend not in SERVER_ENGINES or inference.in_process or inference.base_url:
        return
    require_httpx(inference.backend)
    if not inference.server_python and find_spec(inference.backend) is None:
        yield Finding(
            observation=f"inference.backend={inference.backend!r} starts a server, and {inference.backend} is not installed here",
            action=f"pip install {inference.backend}, name an interpreter that has it (inference.server_python), name running "
            "servers (inference.base_url), or set inference.backend=local",
            policy="stop",
        )


@check("servers")
def servers(setup: Setup) -> Iterator[Finding]:
    """Every server of `inference.base_url` passes the checks that it passes at the start of a run.

    Log-probabilities must refer to the sampled distribution; without a tokenizer this part is left out.
    """
    inference = before_choice(setup.config.inference)
    if inference.backend not in SERVER_ENGINES or inference.in_process or not inference.base_url:
        return
    if setup.source is not None and isinstance(setup.source.parts.engine, SyncedEngine):
        return  # the run's own engine has passed the same checks
    name = inference.served_model_name or setup.config.model.local_path
    if not name:
        raise SkippedError("inference.served_model_name does not name the model of the servers")
    renderer = None if setup.policy is None else setup.policy.renderer
    engine = SERVER_ENGINES[inference.backend](
        inference.base_url,
        name,
        eos_token_ids=frozenset() if renderer is None else renderer.eos_token_ids,
        probe=None if renderer is None else probe_text(renderer),
        max_seq_len=2,
        api_key_env=inference.api_key_env,
        retry_policy=RetryPolicy(connect_timeout_seconds=_SECONDS, next_token_timeout_seconds=_SECONDS),
        training_temperature=inference.temperature,
    )
    loop = BackgroundLoop("midthought-doctor")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loop.run(engine.check())
    finally:
        loop.close()
    yield from ()
