"""The engine over whole answers: stops where a call ends, cuts what is beyond, goes on where none ended."""

import asyncio
import math
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from worlds import Manager, parts, task

from midthought.cluster.verl import engine as engine_module
from midthought.cluster.verl.engine import VerlEngine, call_end_token_ids
from midthought.engines.engine import Sampling
from midthought.engines.scripted import ScriptedEngine
from midthought.errors import EngineError
from midthought.rollout.episode import run_episode
from midthought.tokenization import Renderer
from midthought.types import Finish, Trajectory

WRITTEN = (
    '<think>A set {1, {2}}. #call look {"word": "{tide}"}', " So } it was.</think>Ada",
)  # fmt: skip
LIMITS = {"max_tokens": 400, "max_segment_length": 256}
PARAMS = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "logprobs": True}


def directly(renderer: Renderer) -> Trajectory:
    return played(ScriptedEngine(["".join(WRITTEN)], renderer), renderer)


def verls(manager: Manager, renderer: Renderer, ends: str, **more: Any) -> VerlEngine:
    stops = call_end_token_ids(renderer.tokenizer.get_vocab(), ends)
    return VerlEngine(manager, PARAMS, eos_token_ids=renderer.eos_token_ids, stop_token_ids=stops, **more)


def played(engine: Any, renderer: Renderer, **limits: Any) -> Trajectory:
    trajectory = Trajectory(task(), renderer.prompt(task().messages()))
    asyncio.run(run_episode(parts(engine, renderer, **LIMITS | limits), trajectory, 0))
    return trajectory


def through_verl(renderer: Renderer, ends: str, *, ignores_stops: bool = False):
    manager = Manager(Rewriting(WRITTEN, renderer), ignores_stops=ignores_stops)
    engine = verls(manager, renderer, ends, request_id="r", priority=3)
    return played(engine, renderer), manager, engine


class Rewriting:
    """A server with a policy that always writes the same: after each result its next words, and nonsense after a call."""

    def __init__(self, written: tuple[str, ...], renderer: Renderer) -> None:
        self._written = [renderer.control(words) for words in written]
        self._renderer = renderer

    async def sample(self, episode: int, token_ids: list[int], sampling: Sampling, *, stopper: Any) -> Any:
        said = self._renderer.decode(token_ids).rpartition("assistant\n")[2]
        number = said.count("_result:")
        num_done = len(token_ids) - self._starts(token_ids, number)
        words = self._written[number]
        is_last = number == len(self._written) - 1
        rest = [*words, *([min(self._renderer.eos_token_ids)] if is_last else self._renderer.control(' and } "more'))]
        taken: list[int] = []
        for token_id in rest[num_done:][: sampling.max_tokens]:
            taken.append(token_id)
            if stopper.feed(token_id):
                break
        return SimpleNamespace(token_ids=taken, sampled_logprobs=[-0.5] * len(taken))

    def _starts(self, token_ids: list[int], number: int) -> int:
        """Where the present words begin: after the prompt or the last result."""
        ends = "assistant\n" if number == 0 else "\n\n"
        for index in range(len(token_ids), 0, -1):
            if self._renderer.decode(token_ids[:index]).endswith(ends):
                return index
        raise AssertionError


def test_the_servers_stop_where_a_call_ends_and_nothing_is_cut(renderer: Renderer) -> None:
    trajectory, manager, _ = through_verl(renderer, "}")
    expected = directly(renderer)
    assert trajectory.error is None
    assert trajectory.token_ids == expected.token_ids
    assert trajectory.loss_mask == expected.loss_mask
    assert trajectory.num_calls == 1 and trajectory.num_cut == 0
    # "}}" of the set may be one token or two; the braces of the call's word and its end stop the server as well
    assert len(manager.requests) >= 4
    assert {request["request_id"] for request in manager.requests} == {"r"}
    assert {request["priority"] for request in manager.requests} == {3}


@pytest.mark.parametrize("ends", ["}", ""])
def test_what_a_server_writes_beyond_the_call_is_cut_and_counted(renderer: Renderer, ends: str) -> None:
    trajectory, manager, _ = through_verl(renderer, ends, ignores_stops=True)
    assert trajectory.token_ids == directly(renderer).token_ids
    assert trajectory.num_cut == len(renderer.control(' and } "more'))
    assert len(manager.requests) == 2


def test_requests_ask_for_ids_log_probabilities_and_ours_before_verls(renderer: Renderer) -> None:
    _, manager, engine = through_verl(renderer, "")
    first = manager.requests[0]
    assert first["prompt_ids"] == renderer.prompt(task().messages())
    assert (first["top_k"], first["logprobs"], first["max_tokens"]) == (-1, True, 256)
    assert first["stop_token_ids"] == sorted(renderer.eos_token_ids)
    assert engine.num_preempted == len(manager.requests)
    assert engine.policy_version == engine.extra_fields["max_global_steps"] == 6 + len(manager.requests)
    assert engine.extra_fields["min_global_steps"] == 7


@given(budget=st.integers(1, 80), segment=st.integers(1, 40))
def test_budgets_and_segments_cut_an_episode_as_they_do_at_home(budget: int, segment: int, renderer: Renderer) -> None:
    found = []
    for engine in (
        ScriptedEngine(["".join(WRITTEN)], renderer),
        verls(Manager(Rewriting(WRITTEN, renderer)), renderer, "}"),
    ):
        trajectory = played(engine, renderer, max_tokens=budget, max_segment_length=segment)
        trajectory.check()
        found.append((trajectory.token_ids, trajectory.loss_mask, trajectory.stop_reason, trajectory.error))
    assert found[0] == found[1]


class Says:
    """A manager that gives the listed answers."""

    def __init__(self, *answers: dict[str, Any]) -> None:
        self._answers = list(answers)

    async def generate(self, request_id: str, **asked: Any) -> Any:
        base = {"log_probs": None, "stop_reason": "aborted", "num_preempted": None, "extra_fields": {}}
        return SimpleNamespace(**base | self._answers.pop(0))


def sample(manager: Any, max_tokens: int = 4) -> Any:
    engine = VerlEngine(manager, PARAMS, eos_token_ids=[9])
    return asyncio.run(engine.sample(0, [1], Sampling(max_tokens=max_tokens)))


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "PAUSE_SECONDS", 0.0)


def test_requests_that_are_sent_back_while_weights_change_are_sent_again() -> None:
    done = sample(
        Says({"token_ids": [5], "log_probs": [-1.0]}, {"token_ids": []}, {"token_ids": [9], "log_probs": [-2.0]})
    )
    assert (done.token_ids, done.sampled_logprobs, done.finish) == ((5, 9), (-1.0, -2.0), Finish.END)


def test_without_log_probabilities_nan_is_recorded() -> None:
    assert all(map(math.isnan, sample(Says({"token_ids": [5, 6, 7, 8]})).sampled_logprobs))


def test_servers_that_say_nothing_for_ever_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "MAX_EMPTY_ANSWERS", 3)
    with pytest.raises(EngineError, match=r"3 answers in a row held no token .*'aborted'.*max_model_len"):
        sample(Says(*[{"token_ids": []}] * 3))


def test_fewer_log_probabilities_than_tokens_are_an_error() -> None:
    with pytest.raises(EngineError, match="2 tokens and 1 log-probabilities"):
        sample(Says({"token_ids": [5, 6], "log_probs": [-1.0]}))


def test_call_ends_are_all_pieces_that_hold_the_character() -> None:
    vocabulary = {"a": 0, "}": 1, '"}': 2, "{": 3, "}}\u010a": 4, "\u2581}": 5}
    assert call_end_token_ids(vocabulary, "}") == [1, 2, 4, 5]
    assert call_end_token_ids(vocabulary, "") == []
