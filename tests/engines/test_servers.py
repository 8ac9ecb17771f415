"""The engine over model servers, against a server that fails on command: nothing lost, nothing twice, nothing hangs."""

import asyncio
import contextlib
import json
import math
import sys
import time
from typing import Any

import pytest
from fake_server import FakeServer, Fault
from hypothesis import given
from hypothesis import strategies as st
from playing import Host, Look, parts_of, play
from server_engines import KINDS, PROMPT, engine_for, sample, sample_together, until, written
from small_decoders import small_model

from midthought.engines.engine import Engine, Sampling
from midthought.engines.local.engine import LocalEngine
from midthought.engines.scripted import ScriptedEngine
from midthought.engines.servers.connection import RetryPolicy, clean_addresses
from midthought.engines.servers.engine import ServerEngine, ServerPool
from midthought.engines.servers.launch import SERVERS
from midthought.engines.servers.server import Requirements
from midthought.engines.servers.streams import Chunk, EventSplitter, PartialCompletion, RetryableError, add_events
from midthought.engines.servers.vllm import VLLMServer
from midthought.errors import EngineError, MissingExtraError, SettingsError
from midthought.tokenization import Renderer
from midthought.types import Completion, Finish, Trajectory

pytest.importorskip("httpx")


class Watch:
    """A stopper that remembers what it was shown, and stops at one token."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.stop_at = stop_at
        self.seen: list[int] = []

    def feed(self, token_id: int) -> bool:
        self.seen.append(token_id)
        return token_id == self.stop_at


# -- one request ---------------------------------------------------------------------------------------------------


@KINDS
@pytest.mark.parametrize("chunk_size", [1, 3, 50])
def test_it_ends_at_max_tokens_at_the_stopper_and_at_the_end_of_sequence(kind, chunk_size):
    tokens = written(12)
    assert tokens.index(tokens[4]) == 4
    with FakeServer(kind, chunk_size=chunk_size) as server:
        watch = Watch()
        assert sample(engine_for(server), stopper=watch) == Completion(
            token_ids=tuple(tokens), sampled_logprobs=(-0.5,) * 12, finish=Finish.LENGTH
        )
        assert watch.seen == tokens
        watch = Watch(tokens[4])
        called = sample(engine_for(server), stopper=watch)
        assert (called.token_ids, called.finish) == (tuple(tokens[:5]), Finish.CALL)
        assert watch.seen == tokens[:5]
        assert called.num_cut == {1: 0, 3: 1, 50: 7}[chunk_size]
        watch = Watch()
        ended = sample(engine_for(server, eos=[tokens[4]]), stopper=watch)
        assert ended == Completion(token_ids=tuple(tokens[:5]), sampled_logprobs=(-0.5,) * 5, finish=Finish.END)
        assert watch.seen == tokens[:4]


@KINDS
def test_the_context_ends_a_completion_and_a_prompt_that_fills_it_gives_none(kind):
    room = {"vllm": 10, "sglang": 9}[kind]
    with FakeServer(kind, max_model_len=10) as server:
        engine = engine_for(server)
        assert sample(engine).token_ids == tuple(written(room - len(PROMPT)))
        full = asyncio.run(engine.sample(0, [1] * 10, Sampling(max_tokens=5)))
        assert (full.token_ids, full.finish) == ((), Finish.LENGTH)
        assert sample(engine, max_tokens=0).finish is Finish.LENGTH
        shorter = engine_for(server, limits={"max_seq_len": 5})
        assert len(sample(shorter).token_ids) == 2
        assert len(server.requests) == 2


@given(
    payloads=st.lists(
        st.binary(max_size=20).filter(lambda text: b"\n" not in text and text == text.strip()), max_size=6
    ),
    data=st.data(),
)
def test_events_are_the_same_however_the_bytes_arrive(payloads, data):
    stream = b"".join(
        b": comment\ndata: " + payload + data.draw(st.sampled_from([b"\n\n", b"\r\n\r\n"])) for payload in payloads
    )
    cuts = sorted(data.draw(st.sets(st.integers(0, len(stream)), max_size=8)))
    splitter = EventSplitter()
    pieces = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert [payload for piece in pieces for payload in splitter.feed(piece)] == payloads


def test_what_arrives_together_with_the_end_is_counted_as_cut_up_to_where_it_cannot_be_read():
    def payload(*token_ids: int) -> bytes:
        return json.dumps({"ids": token_ids}).encode()

    def read(event: dict[str, Any]) -> Chunk:
        return Chunk(token_ids=event["ids"], logprobs=[-1.0] * len(event["ids"]))

    draft = PartialCompletion(PROMPT, Sampling(max_tokens=99), frozenset(), Watch(2))
    assert not add_events([payload(1)], read, draft)
    assert add_events([payload(2, 3), payload(4), payload(), payload(5, 6), b"{", payload(7)], read, draft)
    assert (draft.token_ids, draft.finish, draft.num_cut) == ([1, 2], Finish.CALL, 4)


def test_a_line_without_an_end_is_broken(monkeypatch):
    monkeypatch.setattr("midthought.engines.servers.streams.MAX_LINE_BYTES", 1000)
    splitter = EventSplitter()
    assert splitter.feed(b"data: " + b"x" * 990) == []
    with pytest.raises(RetryableError, match="more than 1000 bytes"):
        splitter.feed(b"x" * 10)


def test_every_request_has_a_seed_of_its_own_that_follows_from_the_episode_and_the_position():
    with FakeServer() as server:
        engine = engine_for(server)
        for seed, prompt in [(5, [1]), (5, [1, 2]), (6, [1]), (5, [3]), (2**200, [1])]:
            asyncio.run(engine.sample(0, prompt, Sampling(max_tokens=1, seed=seed)))
        seeds = [body["seed"] for body in server.requests]
    assert len(set(seeds)) == 4
    assert seeds[3] == seeds[0]
    assert all(0 <= seed < 2**63 for seed in seeds)


@pytest.mark.parametrize("is_local", [False, True])
async def test_nothing_to_continue_and_an_episode_that_is_busy_are_errors(is_local):
    with FakeServer() as server:
        engine = LocalEngine(small_model(), eos_token_ids=[]) if is_local else engine_for(server)
        with pytest.raises(EngineError, match="nothing to continue"):
            await engine.sample(0, [], Sampling(max_tokens=5))
        first = asyncio.ensure_future(engine.sample(3, PROMPT, Sampling(max_tokens=5)))
        await asyncio.sleep(0)
        with pytest.raises(EngineError, match="sampled already"):
            await engine.sample(3, PROMPT, Sampling(max_tokens=5))
        await first


# -- what breaks ---------------------------------------------------------------------------------------------------

BREAKS = [
    Fault(kind="status", status=500),
    Fault(kind="status", status=503),
    Fault(kind="status", status=408),
    Fault(kind="status", status=429),
    Fault(kind="status", status=429, headers={"Retry-After": "0.02"}),
    *(
        Fault(kind=kind, after=after)
        for kind in ("cut", "half_line", "clean_end", "garbage", "abort", "error_event", "no_tokens")  # type: ignore[arg-type]
        for after in (0, 5)
    ),
]


@KINDS
@pytest.mark.parametrize("fault", BREAKS, ids=lambda fault: f"{fault.kind}-{fault.status}-{fault.after}")
def test_a_request_that_breaks_is_continued_from_the_tokens_that_came_and_nothing_counts_twice(kind, fault):
    with FakeServer(kind, faults=[fault, fault]) as server:
        watch = Watch()
        completion = sample(engine_for(server), stopper=watch)
        tokens = written(12)
        assert completion == Completion(token_ids=tuple(tokens), sampled_logprobs=(-0.5,) * 12, finish=Finish.LENGTH)
        assert watch.seen == tokens
        assert server.prompts == [PROMPT + tokens[: n * fault.after] for n in range(3)]


@pytest.mark.parametrize(("kind", "after"), [("vllm", 0), ("sglang", 4)])
def test_a_stalled_stream_is_given_up_and_continued(kind, after):
    with FakeServer(kind, faults=[Fault(kind="stall", after=after)]) as server:
        engine = engine_for(server, first_token_timeout_seconds=1.0, next_token_timeout_seconds=1.0)
        assert sample(engine).token_ids == tuple(written(12))
        assert server.prompts == [PROMPT, PROMPT + written(after)]


def test_a_slow_first_token_is_waited_for_and_later_ones_have_a_deadline_of_their_own():
    with FakeServer(faults=[Fault(kind="slow_start", seconds=1.0)]) as server:
        engine = engine_for(server, first_token_timeout_seconds=60.0, next_token_timeout_seconds=0.6)
        assert len(sample(engine).token_ids) == 12
        server.token_seconds = 0.08
        engine = engine_for(server, first_token_timeout_seconds=0.6, next_token_timeout_seconds=60.0)
        assert len(sample(engine).token_ids) == 12
        assert len(server.requests) == 2


def test_it_gives_up_after_so_many_attempts_and_says_why():
    with FakeServer(always=Fault(kind="status", status=500, message="CUDA error:\nout of memory")) as server:
        message = rf"4 requests failed.*{server.url}: status 500: CUDA error: out of memory"
        with pytest.raises(EngineError, match=message):
            sample(engine_for(server, max_attempts=4))
        assert len(server.requests) == 4
        server.always = Fault(kind="cut", after=1)
        assert len(sample(engine_for(server, max_attempts=2)).token_ids) == 12  # each attempt gets on


def test_a_server_that_is_busy_is_asked_until_the_deadline_of_the_whole():
    with FakeServer(always=Fault(kind="status", status=429, message="queue full")) as server:
        began = time.monotonic()
        with pytest.raises(EngineError, match=r"not complete after 0.7 s; 0 tokens received .*status 429: queue full"):
            sample(engine_for(server, max_attempts=1, total_timeout_seconds=0.7))
        assert 0.6 < time.monotonic() - began < 20
        assert len(server.requests) > 2


def test_a_refused_request_is_an_error_at_once_with_the_servers_words():
    faults = [
        Fault(kind="status", status=400, message="logprobs are off"),
        Fault(kind="error_event", status=400, message="bad token", after=2),
    ]
    with FakeServer(faults=faults) as server:
        for message in (r"status 400\): logprobs are off", r"\(400\): bad token"):
            with pytest.raises(EngineError, match=message):
                sample(engine_for(server))
        assert len(server.requests) == 2


def test_what_a_stopper_raises_is_no_fault_of_the_server():
    class Broken(Watch):
        def feed(self, token_id: int) -> bool:
            raise TimeoutError("the call format is broken")

    with FakeServer() as server:
        with pytest.raises(TimeoutError, match="the call format is broken"):
            sample(engine_for(server), stopper=Broken())
        assert len(server.requests) == 1


def test_hostile_answers_are_errors_and_nothing_else():
    wrong: list[Any] = [([1, 2], [-1.0]), ([-1], [-1.0]), (["1"], [-1.0]), ([True], [-1.0]), ([1], ["x"])]
    choices: list[Any] = [None, [{}], [[]], [{"token_ids": [1], "logprobs": None}]]
    choices += [[{"token_ids": ids, "logprobs": {"token_logprobs": values}}] for ids, values in wrong]
    choices += [[{"token_ids": [], "logprobs": None, "finish_reason": "stop", "stop_reason": "🦉" * 9999}]]
    answers: list[dict[str, Any]] = [{}, *({"choices": each} for each in choices)]
    for answer in answers:
        with FakeServer(alter=lambda event, answer=answer: answer) as server, pytest.raises(EngineError) as caught:
            sample(engine_for(server, max_attempts=2))
        assert len(str(caught.value)) < 1500


# -- several servers -----------------------------------------------------------------------------------------------


def test_a_dead_server_is_tried_again_after_a_rest_that_grows():
    retry_policy = RetryPolicy(pause_seconds=1.0, max_pause_seconds=3.0)
    server = VLLMServer("http://host", Requirements(model="tiny"), retry_policy)
    pool = ServerPool([server], retry_policy)
    for num_failures, longest in [(1, 1.0), (2, 2.0), (3, 3.0), (4, 3.0)]:
        started_at = time.monotonic()
        pool.failed(server, RetryableError("refused"), started_at=started_at)
        pool.failed(server, RetryableError("refused"), started_at=started_at)  # another request of the same outage
        assert server.num_failures == num_failures
        assert longest / 2 - 0.1 < server.free_at - time.monotonic() <= longest
    server.on_token()
    assert server.num_failures == 0
    for asked, heeded in [(2.0, 2.0), (1e9, 3.0)]:
        busy = RetryableError("busy", is_busy=True, wait_seconds=asked)
        pool.failed(server, busy, started_at=time.monotonic())
        server.on_token()
        assert heeded - 0.1 < server.free_at - time.monotonic() <= heeded


async def test_an_outage_of_all_servers_is_waited_for():
    with FakeServer() as server:
        engine = engine_for(server, max_attempts=1000)
        engine.check()
    sampling = asyncio.ensure_future(engine.sample(0, PROMPT, Sampling(max_tokens=12)))
    await asyncio.sleep(0.3)
    assert not sampling.done()
    with server:
        assert (await sampling).token_ids == tuple(written(12))


def test_episodes_are_spread_and_each_stays_where_its_prefix_is_cached_until_it_is_closed():
    with FakeServer(token_seconds=0.02) as one, FakeServer(token_seconds=0.02) as other:
        engine = engine_for(one, other)
        for episodes in (range(6), range(5, -1, -1)):
            for turn in range(3):
                order = episodes if turn != 1 else episodes[::-1]
                sample_together(engine, {episode: [episode + 1] * (turn + 1) for episode in order})
            homes = [{prompt[0] - 1 for prompt in server.prompts[-9:]} for server in (one, other)]
            assert homes == [set(episodes[::2]), set(episodes[1::2])]
            for episode in episodes:
                engine.close(episode)
        assert len(one.requests) == len(other.requests) == 18


def test_no_more_requests_are_on_their_way_than_the_limit():
    with FakeServer(token_seconds=0.01) as server:
        engine = engine_for(server, limits={"max_num_seqs": 3})
        completions = sample_together(engine, dict.fromkeys(range(9), PROMPT))
        assert {completion.token_ids for completion in completions} == {tuple(written(4))}
        assert server.max_running <= 3


def test_who_waited_for_a_server_that_failed_meanwhile_goes_elsewhere():
    with FakeServer() as survivor, FakeServer(token_seconds=0.05, always=Fault(kind="cut", after=2)) as victim:
        engine = engine_for(victim, survivor, limits={"max_num_seqs": 1}, pause_seconds=60, max_pause_seconds=60)
        completions = sample_together(engine, dict.fromkeys(range(6), PROMPT))
        assert {completion.token_ids for completion in completions} == {tuple(written(4))}
        assert (len(victim.requests), len(survivor.requests)) == (1, 6)


# -- cancelling ----------------------------------------------------------------------------------------------------


@KINDS
@pytest.mark.parametrize("how", ["task", "close", "shutdown", "stopper"])
async def test_what_nobody_waits_for_ends_on_the_server_too(kind, how):
    with FakeServer(kind, token_seconds=0.01) as server:
        engine, watch = engine_for(server), Watch(written(6)[-1] if how == "stopper" else None)
        sampling = asyncio.ensure_future(engine.sample(0, PROMPT, Sampling(max_tokens=4000), stopper=watch))
        await until(lambda: len(watch.seen) >= 3)
        if how == "stopper":
            assert (await sampling).finish is Finish.CALL
        else:
            {"task": sampling.cancel, "close": lambda: engine.close(0), "shutdown": engine.shutdown}[how]()
            with pytest.raises(EngineError if how == "shutdown" else asyncio.CancelledError):
                await sampling
        num_seen = len(watch.seen)
        await until(lambda: server.num_running == 0)
        assert server.num_broken_off == 1
        assert len(watch.seen) == num_seen < 3000
        with pytest.raises(EngineError, match="was shut down") if how == "shutdown" else contextlib.nullcontext():
            assert len((await engine.sample(0, PROMPT, Sampling(max_tokens=2))).token_ids) == 2


# -- whole trajectories --------------------------------------------------------------------------------------------


SCRIPTS = [
    '<think>Hm. #call look {"word": "tide"}So #call look {"word": "é🦉 {}"} it was Ada.</think>Ada<|im_end|>Yes.',
    "No thought, no call.<|im_end|>Still none.",
    '<think>#call look {"word": {"no": "text"}} #call unknown {} ' + "and so on " * 12 + "</think>Bob",
]


def trajectories(engine: Engine, renderer: Renderer) -> list[Trajectory]:
    parts = parts_of(
        engine,
        renderer,
        tools=[Look()],
        messages=lambda task: [{"role": "user", "content": f"Who found {task.task_id}?"}],
        environment=lambda task: Host(["Are you sure?"]),
        max_tokens=2000,
        max_segment_length=40,
    )
    return play(parts, len(SCRIPTS))


def record(trajectory: Trajectory) -> list[Any]:
    """All of it but times and NaN."""
    calls = [(event.call, event.outcome, event.metadata) for event in trajectory.tool_events]
    logprobs = [None if math.isnan(value) else value for value in trajectory.sampled_logprobs]
    names = ("token_ids", "loss_mask", "spans", "turns", "turn_ends", "stop_reason", "error", "reward")
    return [logprobs, calls, *(getattr(trajectory, name) for name in names)]


@pytest.mark.parametrize(
    ("chunk_size", "kind", "faulty"), [(1, "vllm", True), (7, "vllm", False), (1, "sglang", False), (7, "sglang", True)]
)
def test_trajectories_are_those_of_a_scripted_engine(renderer, kind, chunk_size, faulty):
    expected = trajectories(ScriptedEngine(SCRIPTS, renderer), renderer)
    assert sum(trajectory.num_calls for trajectory in expected) == 4
    next_token = {
        tuple(trajectory.token_ids[:n]): token_id
        for trajectory in expected
        for n, token_id in enumerate(trajectory.token_ids)
        if trajectory.loss_mask[n]
    }

    def policy(context: list[int]) -> int:
        return next_token.get(tuple(context), 0)  # beyond a call a server samples whatever it likes

    faults = [fault for fault in [*BREAKS, Fault(kind="stall", after=2)] for _ in range(2)] if faulty else []
    with FakeServer(kind, policy, chunk_size=chunk_size, faults=faults) as server:
        waits = {"first_token_timeout_seconds": 1.0, "next_token_timeout_seconds": 1.0} if faulty else {}
        engine = engine_for(server, eos=sorted(renderer.eos_token_ids), **waits)
        found = trajectories(engine, renderer)
    for trajectory in found:
        trajectory.check()
    assert list(map(record, found)) == list(map(record, expected))
    assert (sum(trajectory.num_cut for trajectory in found) > 0) == (chunk_size > 1)


# -- settings ------------------------------------------------------------------------------------------------------


def test_addresses_are_taken_as_people_write_them_and_others_are_refused():
    for url, cleaned in (
        ("http://host:8000/", "http://host:8000"),
        ("https://host/v1/", "https://host"),
        ("http://[::1]:8000/proxy/v1", "http://[::1]:8000/proxy"),
    ):
        assert clean_addresses([url, url]) == [cleaned]
    wrong = ["h:8000", "", "ftp://h", "http://", "http://h:0", "http://h:x", "http://h/?a=b", "http://h h", None]
    for urls in ([], *([url] for url in wrong)):
        with pytest.raises(SettingsError, match="base_url"):
            clean_addresses(urls)
    with pytest.raises(SettingsError, match="api_key_env") as caught:
        clean_addresses(["http://me:secret@host"])
    assert "secret" not in str(caught.value)


def test_patience_and_limits_must_be_above_0():
    for wrong in (0, -1.0, math.inf, math.nan, "5", None):
        with pytest.raises(SettingsError, match="next_token_timeout_seconds"):
            RetryPolicy(next_token_timeout_seconds=wrong)  # type: ignore[arg-type]
    for limits in ({"max_num_seqs": 0}, {"max_seq_len": 1}):
        with pytest.raises(SettingsError, match="room for at least one"):
            ServerEngine(VLLMServer, "http://host", "tiny", eos_token_ids=[], **limits)


def test_the_key_comes_from_the_environment_and_stays_out_of_errors(monkeypatch):
    monkeypatch.setenv("OUR_KEY", "sesame")
    with FakeServer(key="sesame") as server:
        assert len(sample(engine_for(server, limits={"api_key_env": "OUR_KEY"})).token_ids) == 12
        with pytest.raises(EngineError, match=r"requires an API key.*api_key_env"):
            sample(engine_for(server))
    for value in ("", "two words", "line\nend"):
        monkeypatch.setenv("OUR_KEY", value)
        with pytest.raises(SettingsError, match="OUR_KEY"):
            ServerEngine(VLLMServer, "http://host", "tiny", eos_token_ids=[], api_key_env="OUR_KEY")


@KINDS
def test_httpx_is_named_where_it_is_missing(kind, monkeypatch):
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(MissingExtraError, match=rf"httpx.*midthought\[{kind}\]"):
        ServerEngine(SERVERS[kind], "http://host", "tiny", eos_token_ids=[])
