"""vLLM's own routes and receiving classes without a model, run by the interpreter of an environment that has vLLM.

`PYTHONPATH` names the folder of this file and that of midthought.

A stub of the engine calls vLLM's worker-side classes as `v1/worker/gpu_worker.py` does. NCCL is replaced by gloo.
`GET /received` returns what arrived.
"""

from __future__ import annotations

import argparse
from types import SimpleNamespace
from typing import Any

import fake_weights
import torch
import uvicorn
from fastapi import FastAPI
from vllm.config import VllmConfig, WeightTransferConfig
from vllm.distributed.weight_transfer import nccl_engine
from vllm.distributed.weight_transfer.base import WeightTransferEngine
from vllm.entrypoints.rl.online.api_router import router
from vllm.entrypoints.serve.dev.server_info import api_router as server_info


class Model:
    """Keeps what vLLM would load."""

    def __init__(self) -> None:
        self.received: dict[str, Any] = {}

    def load_weights(self, weights: list[tuple[str, torch.Tensor]]) -> None:
        self.received |= {name: tensor.double().sum().item() for name, tensor in weights}


class Group:
    """The worker's communicator over gloo, with the call of vLLM's `PyNcclCommunicator.broadcast`."""

    def __init__(self, info: Any) -> None:
        self._group = fake_weights.joined(info.nccl_unique_id_bytes, rank=info.rank_offset, world_size=info.world_size)

    def broadcast(self, tensor: torch.Tensor, src: int, stream: Any) -> None:
        self._group.broadcast(tensor, src).wait()


class EngineClient:
    """Calls the receiving class for the one worker."""

    def __init__(self, config: VllmConfig) -> None:
        self.vllm_config = config
        self.model = Model()
        stub = SimpleNamespace(parallel_config=config.parallel_config, model_config=None)
        device = torch.device("cpu", 0)
        self.engine: WeightTransferEngine = nccl_engine.NCCLWeightTransferEngine(
            config.weight_transfer_config, stub, device, self.model
        )
        self.calls: list[str] = []

    async def init_weight_transfer_engine(self, request: Any) -> None:
        self.calls.append("init")
        self.engine.init_transfer_engine(self.engine.parse_init_info(request.init_info))

    async def shutdown_weight_transfer_engine(self) -> None:
        self.calls.append("shutdown")

    async def start_weight_update(self) -> None:
        self.calls.append("start")

    async def update_weights(self, request: Any) -> None:
        self.calls.append("update")
        self.engine.receive_weights(self.engine.parse_update_info(request.update_info))

    async def finish_weight_update(self, weight_version: str | None) -> None:
        assert weight_version is None
        self.calls.append("finish")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    known = parser.parse_args()
    torch.cuda.current_stream = lambda *_: None
    nccl_engine.worker_init_process_group = lambda info, parallel_config: Group(info)
    config = VllmConfig(weight_transfer_config=WeightTransferConfig(backend="nccl"))
    client = EngineClient(config)
    app = FastAPI()
    app.state.engine_client, app.state.vllm_config = client, config
    app.include_router(router)
    server_info.attach_router(app)

    @app.get("/received")
    async def received() -> dict[str, Any]:
        return {"sums": client.model.received, "calls": client.calls}

    @app.get("/health")
    async def health() -> dict[str, Any]:
        return {}

    uvicorn.run(app, host="127.0.0.1", port=known.port, log_level="warning")


if __name__ == "__main__":
    main()
