"""The way of whole models to servers follows from the situation, and servers are started for it."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from server_engines import interpreter, way
from test_weight_sync import make_model

from midthought.config import InferenceConfig
from midthought.engines.servers.training import server_options, start_for_policy
from midthought.engines.weight_sync.transport import WeightTransport, choose_transport, server_gpus, shares_gpu
from midthought.errors import EngineError, SettingsError


@pytest.mark.parametrize(
    ("setting", "situation", "name"),
    [
        ("auto", {"device": "cpu", "is_started_here": True}, "shared_memory"),
        ("auto", {"device": "cpu"}, "disk"),
        ("auto", {"device": "cuda:0", "is_started_here": True}, "ipc"),
        ("auto", {"device": "cuda", "is_started_here": True, "server_flags": ["--seed", "2"]}, "ipc"),
        ("auto", {"device": "cuda:1", "is_started_here": True}, "nccl"),
        ("auto", {"device": "cuda:0", "is_started_here": True, "server_flags": ["-tp=2"]}, "shared_memory"),
        ("auto", {"device": "cuda:2", "is_started_here": True, "server_flags": ["-tp=2"]}, "nccl"),
        ("auto", {"device": "cuda:0", "is_started_here": True, "server_flags": ["--base-gpu-id", "1"]}, "nccl"),
        ("auto", {"device": "cuda:0"}, "nccl"),
        ("auto", {"device": "cuda:0", "announces_transport": False}, "disk"),
        ("nccl", {"device": "cuda:0", "announces_transport": False}, "nccl"),
        ("auto", {"device": "cuda:0", "weights_path": "/shared"}, "disk"),
        ("auto", {"device": "cuda:0", "is_started_here": True, "sends_adapters": True}, "shared_memory"),
        ("ipc", {"device": "cuda:0", "sends_adapters": True}, "disk"),
        ("disk", {"device": "cuda:0", "is_started_here": True}, "disk"),
        ("nccl", {"device": "cuda:0", "is_started_here": True}, "nccl"),
    ],
)
def test_the_way_follows_from_the_situation(setting, situation, name):
    chosen = choose_transport(setting, **{"sends_adapters": False, "is_started_here": False, **situation})
    assert chosen.name == name
    assert chosen.is_required == (setting != "auto" and not situation.get("sends_adapters"))


def test_a_way_that_cannot_be_is_refused_with_the_remedy():
    situation: dict[str, Any] = {"device": "cpu", "sends_adapters": False, "is_started_here": True}
    for name in ("ipc", "nccl"):
        with pytest.raises(SettingsError, match=rf"weight_transport='{name}' needs a policy on a GPU.*'shared_memory'"):
            choose_transport(name, **situation)
    with pytest.raises(SettingsError, match=r"weights_path='/shared': one excludes the other"):
        choose_transport("shared_memory", weights_path="/shared", **situation)


def test_only_a_server_on_the_policys_gpu_sleeps():
    assert shares_gpu("cuda:0", is_started_here=True, server_flags=["--gpu-memory-utilization", "0.4"])
    assert shares_gpu("cuda:1", is_started_here=True, server_flags=["--tp", "2"])
    assert not shares_gpu("cuda:1", is_started_here=True, server_flags=[])
    assert not shares_gpu("cuda:0", is_started_here=False, server_flags=[])
    assert not shares_gpu("cpu", is_started_here=True, server_flags=[])
    for flags, gpus in (
        ([], [0]),
        (["--tensor-parallel-size", "2", "-dp=2"], [0, 1, 2, 3]),
        (["--base-gpu-id=1", "--tp", "2"], [1, 2]),
        (["--tp"], [0]),
    ):
        assert list(server_gpus(flags)) == gpus


def test_a_run_starts_its_server_for_the_transport_of_its_policy():
    inference = InferenceConfig(
        backend="vllm", max_num_seqs=4, gpu_memory_utilization=0.4, server_flags=["--seed", "1"]
    )
    options = server_options(make_model(), inference, way("ipc"), "tiny", 200, can_sleep=True)
    assert (options.weight_transport, options.accepts_weights, options.can_sleep) == ("ipc", True, True)
    assert (options.max_seq_len, options.max_num_seqs, options.dtype) == (200, 4, "float32")
    assert options.gpu_memory_share is None  # the policy is on the CPU
    assert server_options(make_model(), inference, way("disk"), "tiny", 200).weight_transport == ""


OLD_SERVER = """case "$*" in *--weight-transfer-config*)
    echo 'api_server.py: error: unrecognized arguments: --weight-transfer-config'
    exit 2
esac
exec "{python}" "{server}" "$@"
"""


def test_a_vllm_that_is_too_old_is_started_for_files(renderer, tmp_path, caplog):
    policy = make_model()
    inference = InferenceConfig(backend="vllm", server_python=interpreter(tmp_path, OLD_SERVER), max_num_seqs=4)

    def start(transport: WeightTransport) -> Any:
        options = server_options(policy, inference, transport, "tiny", 200)
        return start_for_policy(policy, renderer, inference, options, transport)

    with caplog.at_level(logging.WARNING, logger="midthought"):
        process, transport = start(way("ipc"))
    assert process.is_running and not transport.sends_tensors
    assert [record.getMessage() for record in caplog.records if "too old for weights by ipc" in record.getMessage()]
    process.stop()
    with pytest.raises(EngineError, match="unrecognized arguments"):
        start(way("ipc", is_required=True))
