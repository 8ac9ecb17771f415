"""CUDA IPC and NCCL on real GPUs. Needs a GPU; skipped elsewhere, so these tests have not run yet."""

from __future__ import annotations

import base64
import logging
import os
import pickle
import subprocess
import sys
from typing import Any

import pytest
import torch

from midthought import RayPPOTrainer, create_default_config
from midthought.engines.weight_sync.broadcast_groups import NcclGroup, TorchGroup, broadcast_all
from midthought.engines.weight_sync.cuda_ipc import CudaHandles

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
PYTHON = os.environ.get("MIDTHOUGHT_VLLM_PYTHON", "")

OPEN_AND_PRINT = """
import base64, pickle, sys, torch
from torch.multiprocessing.reductions import rebuild_cuda_tensor
(uuid, arguments), = pickle.loads(base64.b64decode(sys.argv[1])).items()
assert uuid == str(torch.cuda.get_device_properties(0).uuid)
tensor = rebuild_cuda_tensor(*arguments[:6], 0, *arguments[7:])
print(tensor.float().sum().item())
"""
"""What vLLM's worker does with a handle."""

JOIN_AND_RECEIVE = """
import base64, sys, torch
from torch.cuda import nccl
with torch.cuda.device(1):
    group = nccl.init_rank(2, base64.b64decode(sys.argv[1]), 1)
    number = torch.zeros(1, device="cuda:1")
    nccl.all_reduce([number], comms=[group])
    tensor = torch.empty(3, device="cuda:1")
    nccl.broadcast([tensor], comms=[group])
    torch.cuda.synchronize()
print(tensor.tolist())
"""


def test_another_process_reads_a_gpus_memory_by_its_handle():
    handles, weight = CudaHandles(), torch.full((1000, 3), 0.5, device="cuda", dtype=torch.bfloat16)
    sent = pickle.dumps({handles.device_id(weight): handles.handle(weight)[1]})
    weight += 0.5
    handles.before_sending(weight)
    command = [sys.executable, "-c", OPEN_AND_PRINT, base64.b64encode(sent).decode()]
    assert subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout == "3000.0\n"
    handles.after_reading()


def test_groups_of_one_rank_broadcast():
    device = torch.device("cuda:0")
    groups = [NcclGroup(1, device), TorchGroup(1, device, name="midthought")]
    for group in groups:
        weight = torch.arange(6.0, device=device).view(2, 3)
        group.join()
        broadcast_all(group, [("weight", weight), ("transposed", weight.T)])
        assert torch.equal(weight.cpu(), torch.arange(6.0).view(2, 3))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a_process_on_another_gpu_receives_by_the_unique_id():
    group = NcclGroup(2, torch.device("cuda:0"))
    command = [sys.executable, "-c", JOIN_AND_RECEIVE, base64.b64encode(group.unique_id).decode()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        group.join()
        broadcast_all(group, [("weight", torch.tensor([1.0, 2.0, 3.0], device="cuda:0"))])
        assert process.communicate(timeout=120)[0] == "[1.0, 2.0, 3.0]\n"


@pytest.mark.slow
@pytest.mark.skipif(not PYTHON, reason="MIDTHOUGHT_VLLM_PYTHON does not name an interpreter with vLLM")
@pytest.mark.parametrize("lora_rank", [0, 8])
def test_a_run_sends_its_weights_to_a_vllm_server_on_its_gpu(lora_rank, caplog):
    config = create_default_config(
        model={"hidden_size": 64, "num_layers": 2, "vocab_size": 400, "dtype": "bfloat16", "lora_rank": lora_rank},
        inference={
            "backend": "vllm",
            "in_process": False,
            "server_python": PYTHON,
            "gpu_memory_utilization": 0.3,
            "max_tokens": 60,
            "max_num_seqs": 16,
        },
        training={
            "adv_estimator": "grpo",
            "group_size": 4,
            "batch_size": 16,
            "mini_batch_size": 8,
            "learning_rate": 3e-3,
            "num_train_iters_per_epoch": 1,
            "num_epochs": 3,
            "validate_every": 0,
        },
    )
    rows = [{"question": f"Who found tide clock {number}?", "answer": "Ada"} for number in range(4)]

    def reward(trajectory: Any) -> float:
        return float(sum(trajectory.token_ids) % 7)

    with (
        caplog.at_level(logging.INFO, logger="midthought"),
        RayPPOTrainer(config, dataset=rows, reward_fn=reward) as it,
    ):
        history = it.fit()
    said = " ".join(record.getMessage() for record in caplog.records)
    assert f"weights go to the servers by {'shared_memory' if lora_rank else 'ipc'}" in said
    assert [figures["logprob_difference_max"] < 0.5 for figures in history] == [True] * 3, history
