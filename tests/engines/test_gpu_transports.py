"""CUDA IPC and NCCL on real GPUs. Needs a GPU; skipped elsewhere, so these tests have not run yet."""

from __future__ import annotations

import base64
import pickle
import subprocess
import sys

import pytest
import torch

from midthought.engines.weight_sync.broadcast_groups import NcclGroup, TorchGroup, broadcast_all
from midthought.engines.weight_sync.shared_tensors import CudaHandles

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
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
