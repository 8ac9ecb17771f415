"""Weights on their way to servers: every server gets them, proves them, and no completion mixes two versions."""

import asyncio
import contextlib
import copy
import dataclasses
import threading
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_server import BLOCK, FakeServer, Fault
from precision import logit_tolerance
from representatives import representatives
from safetensors import SafetensorError
from server_engines import IMPATIENT, KINDS, engine_for, until
from small_decoders import off_by, small_model
from transformers import AutoModelForCausalLM

from midthought.engines import weight_publication
from midthought.engines.engine import Sampling
from midthought.engines.servers.connection import RetryPolicy
from midthought.engines.servers.engine import ServerEngine
from midthought.engines.shared_tensors import MEMORY_FOLDER, memory_folder
from midthought.engines.weight_publication import PublishedPolicy, write_model
from midthought.errors import EngineError, StorageError
from midthought.types import Completion

pytest.importorskip("httpx")

KIND = pytest.mark.parametrize("kind", representatives(["vllm", "sglang"], "vllm"))
"""What does not depend on the kind of server."""
VOCABULARY = 40
PROBE = [(7 * number * number + 3) % VOCABULARY for number in range(8 * BLOCK)]
PROMPT = PROBE[: 3 * BLOCK]


def make_model(*, tied: bool = False, seed: int = 1) -> Any:
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    others = {"intermediate_size": 24, "max_position_embeddings": 256, "initializer_range": 0.5}
    return small_model(seed, **sizes, **others, tie_word_embeddings=tied)


@pytest.fixture
def policy() -> Any:
    return make_model()


@torch.no_grad()
def learn(policy: Any) -> None:
    """A large step in some direction."""
    for weight in policy.parameters():
        if weight.requires_grad:
            weight.add_(0.3 * torch.randn_like(weight))


def logits_of(model: Any) -> Callable[[list[int]], list[float]]:
    return torch.no_grad()(lambda context: model(torch.tensor([context])).logits[0, -1].tolist())


ONE_AT_A_TIME = threading.Lock()
"""transformers changes global state while it loads a model."""


def load(path: str) -> Callable[[list[int]], list[float]]:
    """What a server does with a folder that it is told of."""
    with ONE_AT_A_TIME:
        return logits_of(AutoModelForCausalLM.from_pretrained(path).eval())


@contextlib.contextmanager
def serving(policy: Any, kind: Any = "vllm", num_servers: int = 1, **options: Any) -> Iterator[list[FakeServer]]:
    """Servers that were started with the policy as it is now."""
    with contextlib.ExitStack() as stack:
        options = {"load": load, "logits": logits_of(copy.deepcopy(policy)), **options}
        yield [stack.enter_context(FakeServer(kind, **options)) for _ in range(num_servers)]


@pytest.fixture
def follow() -> Iterator[Callable[..., tuple[list[FakeServer], ServerEngine]]]:
    """Servers, and an engine over them that follows the policy; both end with the test."""
    with contextlib.ExitStack() as stack:

        def start(policy: Any, kind: str = "vllm", *, engine: Any = None, **options: Any) -> Any:
            servers = stack.enter_context(serving(policy, kind, **options))
            following = synced(servers, policy, **(engine or {}))
            stack.callback(following.shutdown)
            return servers, following

        yield start


def synced(servers: list[FakeServer], policy: Any, **options: Any) -> ServerEngine:
    engine = engine_for(*servers, limits={"max_seq_len": 256}, max_attempts=50)
    return engine.follow(PublishedPolicy(policy, probe_ids=PROBE, **options))


def difference(engine: ServerEngine, policy: Any, num_episodes: int = 1, prompt: list[int] = PROMPT) -> float:
    """`off_by` of some episodes, which are all of the engine's version."""

    async def sample() -> list[Completion]:
        sampling = [Sampling(max_tokens=6, seed=number) for number in range(num_episodes)]
        return await asyncio.gather(*(engine.sample(n, prompt, sampling[n]) for n in range(num_episodes)))

    completions = asyncio.run(sample())
    assert {completion.policy_version for completion in completions} == {engine.policy_version}
    return max(off_by(policy, prompt, completion) for completion in completions)


# -- the folder ----------------------------------------------------------------------------------------------------


def test_tied_embeddings_are_written_as_two_tensors(tmp_path):
    write_model(tied := make_model(tied=True), tmp_path / "model")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "model").eval()
    assert loaded.lm_head.weight is not loaded.model.embed_tokens.weight
    assert torch.equal(loaded(torch.tensor([PROMPT])).logits, tied(torch.tensor([PROMPT])).logits)


@pytest.mark.parametrize("tied", [False, True])
def test_what_was_out_of_order_is_in_order_again_to_the_bit(tied):
    model = make_model(tied=tied)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    plain = model(torch.tensor([PROMPT])).logits
    with PublishedPolicy(model, probe_ids=PROBE).perturbed():
        assert (model(torch.tensor([PROMPT])).logits - plain).abs().mean() > 0.1
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


# -- every server follows ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "tied"), representatives(product(["vllm", "sglang"], [False, True]), ("vllm", True), ("sglang", False))
)
def test_after_every_update_all_servers_compute_with_the_new_weights(kind, tied, follow, tmp_path):
    policy = make_model(tied=tied)
    servers, engine = follow(policy, kind, num_servers=2, engine={"folder": tmp_path})
    assert engine.policy_version == 0
    assert difference(engine, policy, 4) < logit_tolerance(policy)
    for version in (1, 2):
        learn(policy)
        assert difference(engine, policy, 4) > 0.1
        servers[0].orders.clear()
        engine.update_weights()
        assert engine.policy_version == version
        assert difference(engine, policy, 4) < logit_tolerance(policy)
    if kind == "vllm":
        assert servers[0].orders == ["/pause?mode=wait", "/collective_rpc", "/reset_prefix_cache", "/resume"]
    assert all(server.prompts for server in servers) and policy.config.tie_word_embeddings is tied
    assert len(list(tmp_path.glob("*/*"))) == 1  # older ones are removed
    engine.shutdown()
    num_threads = threading.active_count()
    for use in (engine.update_weights, engine.check):
        with pytest.raises(EngineError, match="this ServerEngine was shut down; create a new one"):
            use()
    engine.sleep()
    assert threading.active_count() <= num_threads and list(tmp_path.iterdir()) == []


@KINDS
def test_a_server_that_keeps_its_weights_or_its_prefix_cache_is_found_before_training(policy, kind, follow):
    class Forgetful(dict[tuple[int, ...], Any]):
        def clear(self) -> None:
            pass

    with serving(policy, kind) as servers:
        servers[0].prefix_cache = Forgetful()
        with pytest.raises(EngineError, match=r"does not compute with the new weights.*prefix cache"):
            synced(servers, policy)
    old = logits_of(copy.deepcopy(policy))
    with pytest.raises(EngineError, match=r"http:\S+ does not compute with the new weights.* differ .* by \d"):
        follow(policy, kind, load=lambda path: old)
    assert torch.equal(torch.tensor(old(PROMPT)), torch.tensor(logits_of(policy)(PROMPT)))  # in order again


def test_a_server_of_a_tied_model_that_reloads_the_embedding_alone_is_found_and_the_tie_named(follow):
    policy = make_model(tied=True)
    head = policy.lm_head.weight.detach().clone()

    def load_embedding_alone(path: str) -> Callable[[list[int]], list[float]]:
        model = AutoModelForCausalLM.from_pretrained(path).eval()
        model.lm_head.weight = torch.nn.Parameter(head)
        return logits_of(model)

    with pytest.raises(EngineError, match=r"tied to its embedding.*midthought engine serve"):
        follow(policy, load=load_embedding_alone)


@KINDS
def test_a_server_that_does_not_take_weights_is_named_with_its_words_and_the_remedy(policy, kind):
    def elsewhere(path: str) -> Any:
        raise OSError(f"no such folder here: {path}")

    remedy = {"vllm": "VLLM_SERVER_DEV_MODE=1", "sglang": "/update_weights_from_disk"}[kind]
    for loading, words in ((None, remedy), (elsewhere, "no such folder here")):
        with (
            serving(policy, kind, load=loading) as servers,
            pytest.raises(EngineError, match=rf"{servers[0].url} does not take new weights: .*{words}"),
        ):
            synced(servers, policy)
        assert not servers[0].is_paused


# -- what is on its way meanwhile ----------------------------------------------------------------------------------


@KIND
async def test_no_completion_mixes_two_versions(policy, kind, follow):
    (server,), engine = follow(policy, kind, token_seconds=0.01)
    old = copy.deepcopy(policy)
    learn(policy)
    early = [asyncio.ensure_future(engine.sample(n, PROMPT, Sampling(max_tokens=30))) for n in range(3)]
    await until(lambda: server.num_running == 3)
    updating = asyncio.ensure_future(asyncio.to_thread(engine.update_weights))
    await until(lambda: engine.is_changing)  # it waits for the early samples
    late = [asyncio.ensure_future(engine.sample(9 + n, PROMPT, Sampling(max_tokens=5))) for n in range(3)]
    await updating
    completions = await asyncio.gather(*early, *late)
    assert [completion.policy_version for completion in completions] == [0, 0, 0, 1, 1, 1]
    for completion in completions:
        assert off_by(policy if completion.policy_version else old, PROMPT, completion) < logit_tolerance(policy)


def test_sglang_is_flushed_only_once_it_has_ended_every_request(policy, follow):
    has_ended = threading.Event()
    (server,), engine = follow(policy, "sglang")

    def end() -> None:
        has_ended.set()
        server.num_running -= 1

    server.num_running += 1
    threading.Timer(0.3, end).start()
    learn(policy)
    engine.update_weights()
    assert has_ended.is_set()
    assert difference(engine, policy) < logit_tolerance(policy)


async def test_a_sample_that_does_not_end_is_not_waited_for_without_end(policy, follow):
    (server,), engine = follow(policy, token_seconds=0.01)
    early = asyncio.ensure_future(engine.sample(0, PROMPT[1:], Sampling(max_tokens=60)))
    await until(lambda: PROMPT[1:] in server.prompts)
    engine.retry_policy = dataclasses.replace(engine.retry_policy, total_timeout_seconds=0.05)
    with pytest.raises(EngineError, match=r"still running after 0.05 s"):
        await asyncio.to_thread(engine.update_weights)
    engine.retry_policy = RetryPolicy(**IMPATIENT)
    late = await engine.sample(1, PROMPT, Sampling(max_tokens=1))  # open again
    assert late.policy_version == (await early).policy_version == 0


# -- servers that come and go --------------------------------------------------------------------------------------


@KIND
def test_a_server_that_is_away_gets_the_weights_before_anything_is_sampled_from_it(policy, kind):
    with serving(policy, kind) as servers:
        with serving(policy, kind) as others:
            engine = synced([*servers, *others], policy)
        port = others[0].port
        learn(policy)
        with pytest.warns(UserWarning, match=rf"not every server takes the new weights.*:{port}"):
            engine.update_weights()
        assert difference(engine, policy, 4) < logit_tolerance(policy)
        with serving(make_model(), kind, port=port) as others:  # begun anew, with the weights of its start
            servers[0].always = Fault(kind="status", status=503)
            assert difference(engine, policy, 4) < logit_tolerance(policy)
            assert others[0].requests
        engine.shutdown()


@KIND
def test_a_server_whose_connections_broke_proves_itself_anew(policy, kind, follow):
    (server,), engine = follow(policy, kind)
    num_orders = len(server.orders)
    server.logits = logits_of(make_model(tied=True))  # another process answers there now
    server.faults = [Fault(kind="cut", after=2)]
    server.prefix_cache.clear()
    with pytest.raises(AssertionError):  # the tokens before the cut were the other model's
        assert difference(engine, policy) < logit_tolerance(policy)
    assert len(server.orders) > num_orders
    assert difference(engine, policy) < logit_tolerance(policy)


def test_no_server_at_all_is_an_error(policy):
    with serving(policy) as servers:
        engine = synced(servers, policy)
    engine.retry_policy = RetryPolicy(**IMPATIENT, max_outage_seconds=0.1)
    with pytest.raises(EngineError, match="no server takes the new weights"):
        engine.update_weights()
    assert engine.policy_version == 0
    engine.shutdown()


# -- adapters ------------------------------------------------------------------------------------------------------


@KIND
def test_adapters_are_loaded_under_a_new_name_and_older_ones_dropped(kind, tmp_path):
    peft = pytest.importorskip("peft")
    base = make_model(tied=True)
    original = copy.deepcopy(base)
    config = peft.LoraConfig(r=4, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM")
    policy = peft.get_peft_model(base, config, adapter_name="default" if kind == "vllm" else "mine")

    def load_adapter(path: str) -> Callable[[list[int]], list[float]]:
        names = {file.name for file in Path(path).glob("adapter*")}
        assert names == {"adapter_config.json", "adapter_model.safetensors"}
        return logits_of(peft.PeftModel.from_pretrained(copy.deepcopy(original), path).eval())

    with serving(original, kind, num_servers=2, load=load_adapter) as servers:
        engine = synced(servers, policy, folder=tmp_path)
        assert difference(engine, policy, 4) < logit_tolerance(policy)
        learn(policy)
        engine.update_weights()
        assert difference(engine, policy, 4) < logit_tolerance(policy)
        assert [len(server.adapters) for server in servers] == [1, 1]
        assert servers[0].adapters.keys() == servers[1].adapters.keys()
        engine.shutdown()
    write_model(policy, tmp_path / "base", with_adapters=False)
    assert torch.equal(torch.tensor(load(str(tmp_path / "base"))(PROMPT)), torch.tensor(logits_of(original)(PROMPT)))
    with (
        serving(make_model(), kind, load=lambda path: logits_of(make_model())) as servers,
        pytest.raises(EngineError, match="must have the same base model as the training"),
    ):
        synced(servers, policy)


UNLOADABLE: dict[str, dict[str, Any]] = {
    "added by transformers": {},  # `model.add_adapter` changes the layers of a model and leaves its class
    "DoRA": {"use_dora": True},
    "modules_to_save": {"modules_to_save": ["lm_head"]},
    "another rank in one layer": {"rank_pattern": {"q_proj": 2}},
    "LoRA on the output layer": {"target_modules": ["q_proj", "lm_head"]},
}


@pytest.mark.parametrize("kind", representatives(UNLOADABLE, "added by transformers", "LoRA on the output layer"))
def test_adapters_that_servers_refuse_or_misread_are_sent_merged(kind, follow, tmp_path):
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=4, task_type="CAUSAL_LM", **{"target_modules": "all-linear", **UNLOADABLE[kind]})
    policy = make_model(tied=bool(UNLOADABLE[kind]))
    if UNLOADABLE[kind]:
        policy = peft.get_peft_model(policy, config).eval()
    else:
        policy.add_adapter(config)
    write_model(policy, tmp_path / "start")
    (server,), engine = follow(policy, logits=load(str(tmp_path / "start")), engine={"folder": tmp_path})
    for _ in range(2):
        learn(policy)
        engine.update_weights()
        assert difference(engine, policy, 4) < logit_tolerance(policy)
    assert not server.adapters


def test_the_probe_has_room_in_short_contexts_or_says_that_it_has_none(policy, follow):
    (server,), engine = follow(policy, max_model_len=10)
    assert max(map(len, server.prompts)) < 10
    assert difference(engine, policy, prompt=PROMPT[:5]) < 1e-4
    with pytest.raises(EngineError, match="is too short to check its weights"):
        follow(policy, max_model_len=4)


def test_a_full_disk_is_named_with_the_folder_of_the_weights(policy, tmp_path, monkeypatch):
    def write(*_: Any, **__: Any) -> None:
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(weight_publication, "save_merged", write)
    published = PublishedPolicy(policy, probe_ids=PROBE, folder=tmp_path / "weights")
    message = rf"{tmp_path}/weights: no space is left .*; free some space there; or set inference.weights_path"
    with pytest.raises(StorageError, match=message), published.publication(in_memory=False):
        pass


@pytest.mark.parametrize("is_started_here", [True, False])
def test_weights_for_a_server_that_was_started_here_stay_in_memory(policy, is_started_here, follow):
    """Another server may not see the memory folder, for example in a container."""
    if not MEMORY_FOLDER.is_dir():
        pytest.skip(f"this system has no {MEMORY_FOLDER}")
    paths: list[str] = []
    options = {"keeps_in_memory": is_started_here}
    _, engine = follow(policy, load=lambda path: paths.append(path) or load(path), engine=options)
    engine.shutdown()
    assert len(paths) == 2
    assert {Path(path).is_relative_to(MEMORY_FOLDER) for path in paths} == {is_started_here}
    assert not any(Path(path).exists() for path in paths)
    assert memory_folder(10**15) is None, "there is no room"
