"""NCCL on real GPUs. Needs a GPU; skipped elsewhere, so these tests have not run yet."""

from __future__ import annotations

import base64
import subprocess
import sys

import pytest
import torch

from midthought.engines.weight_sync.broadcast_groups import NcclGroup, broadcast_all

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
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


def test_a_group_of_one_rank_broadcasts():
    device = torch.device("cuda:0")
    group, weight = NcclGroup(1, device), torch.arange(6.0, device=device).view(2, 3)
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
