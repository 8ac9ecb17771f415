"""In-process vLLM that follows a policy: order of sleep, update, wake-up with a fake vLLM; tensors shared with a real process."""

import asyncio
import errno
import io
import multiprocessing
import os
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import fake_vllm
import pytest
import torch
from fake_vllm import AsyncLLM
from server_engines import until
from small_decoders import off_by
from test_weight_sync import PROBE, PROMPT, learn, make_model

from midthought.config import InferenceConfig
from midthought.engines import shared_tensors
from midthought.engines.create import create_inference_engine
from midthought.engines.engine import Sampling
from midthought.engines.external_backends import vllm_arguments
from midthought.engines.policy_engine import check_backend, policy_engine
from midthought.engines.shared_tensors import SharedTensors, read_shared_tensors
from midthought.engines.vllm_in_process import VLLMInProcessEngine
from midthought.engines.weight_publication import PublishedPolicy
from midthought.errors import EngineError, MissingExtraError, StorageError
from midthought.models.peft_folders import save_config
from midthought.models.peft_weights import base_of

UPDATE = ["pause", "load", "reset cache", "resume"]


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> list[AsyncLLM]:
    return fake_vllm.install(monkeypatch)


def with_lora(policy: Any, **options: Any) -> Any:
    peft = pytest.importorskip("peft")
    return peft.get_peft_model(policy, peft.LoraConfig(target_modules=["q_proj", "v_proj"], r=4, **options))


def synced(policy: Any, folder: Path, **engine_args: Any) -> VLLMInProcessEngine:
    save_config(base_of(policy), folder, policy.dtype, is_tied=False)
    engine = VLLMInProcessEngine(
        folder, eos_token_ids=[], max_seq_len=256, max_num_seqs=4, follows_policy=True, engine_args=engine_args
    )
    engine.start()
    return engine.follow(PublishedPolicy(policy, probe_ids=PROBE))


def difference(engine: VLLMInProcessEngine, policy: Any) -> float:
    sampled = asyncio.run(engine.sample(0, PROMPT, Sampling(max_tokens=6, temperature=0.7)))
    return off_by(policy, PROMPT, sampled, temperature=0.7)


def test_it_samples_from_the_policy_before_and_after_every_update(engines, tmp_path):
    policy = make_model(tied=True)
    engine = synced(policy, tmp_path)
    assert engines[0].log == UPDATE * 2  # the perturbed weights, then the real ones
    assert difference(engine, policy) < 1e-5
    for version in (1, 2):
        learn(policy)
        engine.update_weights()
        assert engine.policy_version == version
        assert difference(engine, policy) < 1e-5
    engine.sleep()  # without sleep mode
    assert engines[0].log == UPDATE * 4
    engine.shutdown()
    with pytest.raises(EngineError, match="this VLLMInProcessEngine was shut down"):
        engine.update_weights()
    assert engines[0].log[-1] == "shutdown"


def test_lora_adapters_are_sent_alone_and_the_base_model_once(engines, tmp_path):
    policy = with_lora(make_model())
    engine = synced(policy, tmp_path, enable_lora=True)
    first = ["pause", "load", "add adapter", "reset cache", "resume"]
    later = ["pause", "add adapter", "remove adapter", "reset cache", "resume"]
    assert engines[0].log == first + later
    learn(policy)
    engine.update_weights()
    assert engines[0].log == first + later * 2
    assert difference(engine, policy) < 1e-5
    assert len(engines[0].adapters) == 1


def test_asleep_it_takes_memory_for_the_weights_then_loads_then_takes_memory_for_the_cache(engines, tmp_path):
    policy = make_model()
    engine = synced(policy, tmp_path, enable_sleep_mode=True)
    engines[0].log.clear()
    engine.sleep()
    engine.sleep()
    assert engines[0].log == ["sleep 2"]
    learn(policy)
    engine.update_weights()
    assert engines[0].log == ["sleep 2", "wake weights", "load", "wake kv_cache", "reset cache", "resume"]
    assert engine.policy_version == 1
    assert difference(engine, policy) < 1e-5
    engine.sleep()
    engines[0].worker.lost = {"lm_head.weight"}
    for _ in range(2):
        with pytest.raises(EngineError, match="vLLM failed"):  # the lost weights are NaN
            asyncio.run(engine.sample(0, PROMPT, Sampling(max_tokens=2)))
    engines[0].worker.lost = set()
    assert difference(engine, policy) < 1e-5, "a wake-up that failed the check is repeated"


async def test_a_sample_that_begins_while_the_engine_falls_asleep_wakes_it_up(engines, tmp_path, monkeypatch):
    policy = make_model()
    engine = synced(policy, tmp_path, enable_sleep_mode=True)
    falls, may_fall, fall = threading.Event(), threading.Event(), engines[0].sleep

    async def sleep(*, level: int) -> None:
        falls.set()
        await until(may_fall.is_set)
        await fall(level=level)

    monkeypatch.setattr(engines[0], "sleep", sleep)
    falling = asyncio.create_task(asyncio.to_thread(engine.sleep))
    await until(falls.is_set)
    sampling = asyncio.create_task(engine.sample(0, PROMPT, Sampling(max_tokens=5)))
    await asyncio.sleep(0)  # the sample has begun
    may_fall.set()
    await falling
    assert off_by(policy, PROMPT, await sampling) < 1e-5
    engine.shutdown()
    engine.sleep()
    assert engines[0].log.count("sleep 2") == 1 and not engine.is_asleep


def test_a_base_model_under_adapters_stays_in_memory_while_it_sleeps(engines, tmp_path):
    policy = with_lora(make_model())
    engine = synced(policy, tmp_path, enable_sleep_mode=True, enable_lora=True)
    engines[0].log.clear()
    engine.sleep()
    engine.update_weights()
    wanted = ["sleep 1", "wake weights", "wake kv_cache", "add adapter", "remove adapter", "reset cache", "resume"]
    assert engines[0].log == wanted
    assert difference(engine, policy) < 1e-5


def test_an_update_that_vllm_refuses_or_only_claims_stops_the_run(engines, tmp_path):
    policy = make_model()
    engine = synced(policy, tmp_path)
    engines[0].refuses_updates = True
    with pytest.raises(EngineError, match=r"vLLM does not take new weights .*no room"):
        engine.update_weights()
    assert not engines[0].is_paused
    engines[0].refuses_updates = False
    engines[0].worker.lost = {"lm_head.weight"}
    learn(policy)
    with pytest.raises(EngineError, match="vLLM does not compute with the new weights"):
        engine.update_weights()
    assert engine.policy_version == 0


def test_vllm_gets_the_memory_share_and_the_rank(engines, renderer, tmp_path):
    inference = InferenceConfig(backend="vllm", in_process=True, gpu_memory_utilization=0.35)
    policy = make_model()
    assert vllm_arguments(policy, inference, "cpu") == {}
    assert vllm_arguments(policy, inference, "cuda") == {"enable_sleep_mode": True, "gpu_memory_utilization": 0.35}
    policy.save_pretrained(tmp_path)
    create_inference_engine(tmp_path, "vllm", inference, tokenizer=renderer.tokenizer).shutdown()
    assert engines[0].arguments.gpu_memory_utilization == 0.35
    adapted = with_lora(policy)
    assert vllm_arguments(adapted, inference, "cpu") == {"enable_lora": True, "max_loras": 1, "max_lora_rank": 8}


def test_a_run_gets_its_engine_from_the_settings(engines, renderer):
    policy = make_model(tied=True)
    policy.resize_token_embeddings(len(renderer.tokenizer))
    inference = InferenceConfig(backend="vllm", in_process=True, max_num_seqs=4)
    check_backend(inference)
    engine = policy_engine(policy, policy, renderer, inference, model_path="", max_seq_len=200)
    assert (engines[0].arguments.max_model_len, engines[0].arguments.load_format) == (200, "dummy")
    assert difference(engine, policy) < 1e-5
    engine.shutdown()


def test_a_missing_package_is_named_first(monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(MissingExtraError, match="pip install vllm"):
        check_backend(InferenceConfig(backend="vllm", in_process=True))


# -- shared tensors ------------------------------------------------------------------------------------------------

TENSORS = {
    "matrix": torch.arange(12.0).view(3, 4),
    "transposed": torch.arange(12.0).view(3, 4).T,
    "half": torch.tensor([1.5, -2.0, 3.25], dtype=torch.bfloat16),
    "bytes": torch.tensor([1, 2, 3], dtype=torch.uint8),
    "numbers": torch.tensor([2**40, -1]),
    "scalar": torch.tensor(7.0),
    "empty": torch.empty(0, 4),
}


def values_of(tensors: Iterable[tuple[str, torch.Tensor]]) -> dict[str, Any]:
    return {key: (str(t.dtype), list(t.shape), t.double().flatten().tolist()) for key, t in tensors}


def test_another_process_reads_the_same_values():
    shared = SharedTensors(TENSORS.items())
    context = multiprocessing.get_context("fork")  # a new interpreter takes 7 s to import torch
    ours, theirs = context.Pipe()
    process = context.Process(target=lambda: theirs.send(values_of(read_shared_tensors(shared.manifest))))
    process.start()
    assert ours.poll(120) and ours.recv() == values_of(TENSORS.items())
    process.join()
    path = Path(shared.manifest["path"])
    assert path.is_file() and not path.resolve().exists(), "killed, this process leaves no file"
    shared.close()
    shared.close()
    assert not path.exists()
    shared = SharedTensors([])
    assert list(read_shared_tensors(shared.manifest)) == []
    shared.close()


@pytest.mark.parametrize("changes_user", [True, False])
def test_a_file_to_which_proc_does_not_lead_others_keeps_its_name(changes_user, monkeypatch):
    """A /proc of other processes (a namespace), or a process whose files are hidden because it has changed its user."""
    if changes_user and os.geteuid():
        pytest.skip("only root can change its user")

    def write(theirs: Connection, folder: str) -> None:
        if changes_user:
            os.setuid(65534)
        else:
            monkeypatch.setattr(os, "getpid", lambda: 1)
        shared = SharedTensors(TENSORS.items(), folder)
        has_name = Path(shared.manifest["path"]).parent == Path(folder)
        read = values_of(read_shared_tensors(shared.manifest))
        shared.close()
        theirs.send((has_name, read))

    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    with tempfile.TemporaryDirectory() as folder:
        if changes_user:
            os.chown(folder, 65534, -1)
        process = context.Process(target=write, args=(theirs, folder))
        process.start()
        process.join()
        assert ours.poll() and ours.recv() == (True, values_of(TENSORS.items()))
        assert os.listdir(folder) == []


def test_tensors_that_cannot_be_computed_leave_no_file(tmp_path, monkeypatch):
    def tensors() -> Iterator[tuple[str, torch.Tensor]]:
        yield "first", torch.ones(3)
        raise RuntimeError("no memory")

    monkeypatch.setattr(shared_tensors, "_is_readable_by_others", lambda *_: False)  # else it has no name
    with pytest.raises(RuntimeError, match="no memory"):
        SharedTensors(tensors(), str(tmp_path))
    assert not list(tmp_path.iterdir())


def test_a_file_whose_process_has_ended_is_an_error_of_the_system():
    shared = SharedTensors(TENSORS.items())
    shared.close()
    with pytest.raises(OSError, match=r"No such file"):
        list(read_shared_tensors(shared.manifest))


def test_a_full_memory_folder_is_an_error_with_the_remedy(tmp_path, monkeypatch):
    class Full(io.FileIO):
        def write(self, data: Any) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shared_tensors, "MEMORY_FOLDER", tmp_path)
    monkeypatch.setattr(shared_tensors, "open", lambda descriptor, *_, **__: Full(descriptor, "wb"), raising=False)
    with pytest.raises(StorageError, match=r"is full after 0 bytes of the weights; .*--shm-size"):
        SharedTensors(TENSORS.items())
    assert list(tmp_path.iterdir()) == []
