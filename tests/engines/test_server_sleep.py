"""Servers on the policy's GPU release their memory while it learns, and take it again in the right order."""

from __future__ import annotations

import copy
import threading
from typing import Any

import pytest
from precision import logit_tolerance
from server_engines import KINDS, way
from test_weight_sync import difference, learn, logits_of, make_model
from test_weight_transports import serving, synced

from midthought.errors import EngineError

pytest.importorskip("httpx")


@pytest.mark.parametrize(
    ("kind", "order"),
    [
        (
            "vllm",
            ["/sleep?level=2", "/wake_up?tags=weights", "/start_weight_update", "/update_weights", "/finish_weight_update",
             "/wake_up?tags=kv_cache", "/reset_prefix_cache", "/resume"],
        ),
        (
            "sglang",
            ["/flush_cache", "/release_memory_occupation kv_cache weights", "/resume_memory_occupation weights",
             "/update_weights_from_tensor", "/resume_memory_occupation kv_cache", "/flush_cache"],
        ),
    ],
)  # fmt: skip
def test_asleep_a_server_takes_memory_for_weights_then_loads_then_takes_memory_for_the_cache(kind, order):
    policy = make_model()
    with serving(kind, "ipc") as servers:
        engine = synced(servers, policy, way("ipc"), can_sleep=True)
        servers[0].orders.clear()
        engine.sleep()
        engine.sleep()
        learn(policy)
        engine.update_weights()
        assert servers[0].orders == order
        assert difference(engine, policy) < logit_tolerance(policy)
        engine.sleep()
        assert difference(engine, policy, 3) < logit_tolerance(policy)  # samples wake it
        assert engine.policy_version == 1
        engine.shutdown()


@pytest.mark.parametrize(
    ("kind", "order"),
    [
        ("vllm", ["/sleep?level=1", "/wake_up?tags=weights", "/wake_up?tags=kv_cache"]),
        ("sglang", ["/flush_cache", "/release_memory_occupation kv_cache", "/resume_memory_occupation kv_cache"]),
    ],
)
def test_a_base_model_under_adapters_is_kept_while_the_server_sleeps(kind, order):
    peft = pytest.importorskip("peft")
    original = make_model()
    policy = peft.get_peft_model(copy.deepcopy(original), peft.LoraConfig(r=4, target_modules="all-linear"))

    def load_adapter(path: str) -> Any:
        return logits_of(peft.PeftModel.from_pretrained(copy.deepcopy(original), path).eval())

    with serving(kind, "ipc", load=load_adapter, logits=logits_of(original)) as servers:
        engine = synced(servers, policy, way("ipc"), can_sleep=True)
        servers[0].orders.clear()
        engine.sleep()
        learn(policy)
        engine.update_weights()
        assert servers[0].orders[: len(order)] == order
        assert difference(engine, policy) < logit_tolerance(policy)
        assert len(servers[0].adapters) == 1, "adapters go through files whatever the transport"
        engine.shutdown()


@KINDS
def test_a_wake_up_that_fails_the_check_is_repeated_before_anything_is_sampled(kind):
    policy = make_model()
    with serving(kind, "ipc") as servers:
        engine = synced(servers, policy, way("ipc"), can_sleep=True)
        engine.sleep()
        learn(policy)
        servers[0].receiver.lost = {"lm_head.weight"}
        for _ in range(2):
            with pytest.raises(EngineError, match="does not compute with the new weights"):
                difference(engine, policy)
        servers[0].receiver.lost = set()
        assert difference(engine, policy) < logit_tolerance(policy)
        engine.shutdown()


def test_sglang_is_released_and_flushed_only_once_it_has_ended_every_request():
    policy = make_model()
    with serving("sglang", "ipc") as servers:
        engine = synced(servers, policy, way("ipc"))
        servers[0].orders.clear()
        engine.sleep()
        assert servers[0].orders == [], "a server of its own does not sleep"
        engine.shutdown()
        engine = synced(servers, policy, way("ipc"), can_sleep=True)

        def request_that_ends_later() -> threading.Event:
            has_ended = threading.Event()

            def end() -> None:
                with servers[0].lock:
                    has_ended.set()
                    servers[0].num_running -= 1

            with servers[0].lock:
                servers[0].num_running += 1
            threading.Timer(0.3, end).start()
            return has_ended

        has_ended = request_that_ends_later()
        engine.sleep()
        assert has_ended.is_set() and servers[0].asleep
        learn(policy)
        has_ended = request_that_ends_later()
        engine.update_weights()
        assert has_ended.is_set()
        assert difference(engine, policy) < logit_tolerance(policy)
        engine.shutdown()
