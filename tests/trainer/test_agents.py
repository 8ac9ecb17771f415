"""Training an agent that calls the policy over HTTP (`Trainer(agent=f)`): real requests, small models on the local engine."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib.util
import itertools
import json
import logging
import random
import threading
import time
from collections import Counter
from typing import Any

import httpx
import pytest
import torch
from playing import parts_of, play
from small_environments import COLOURS, PAID, QUESTIONS, numbered, twice, weights

from benchmarks.exactness import branches
from benchmarks.real.model import PACKAGE, packaged_model
from midthought import Reward, Trainer, TrainerCallback, create_default_config, load_tasks
from midthought.checks.examination import Monitor
from midthought.engines.scripted import ScriptedEngine
from midthought.env.episode import QuestionEnvironment
from midthought.env.reward_functions import WeightedReward
from midthought.errors import MidthoughtError, SettingsError
from midthought.learning.batch import TokenBatch
from midthought.report.recorded_episodes import read_recording
from midthought.rollout.trajectory_json import trajectory_from_json, trajectory_to_json
from midthought.serve.dialects import CHAT
from midthought.tools.parsers import find_call_format
from midthought.trainer.agents import AgentTasks, agent_tasks
from midthought.types import SpanKind, StopReason, Trajectory

TOOL = {"type": "function", "function": twice.definition.json_schema()["function"]}
SETTINGS = {"batch_size": 4, "mini_batch_size": 4, "group_size": 4, "num_train_iters": 2, "validate_every": 0}
SETTINGS |= {"algorithm": "grpo", "learning_rate": 1e-3, "max_tokens": 40, "progress": False}


def post(client: Any, path: str, key: str, **body: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"}
    return httpx.post(f"{client.base_url}/{path}", json=body, headers=headers, timeout=60)


def ask(client: Any, messages: list[dict[str, Any]], **options: Any) -> dict[str, Any]:
    """Sends a conversation, and returns the message of the answer, with the answer's `id`."""
    answer = post(client, "chat/completions", client.api_key, model=client.model, messages=messages, **options)
    body = answer.raise_for_status().json()
    return {**body["choices"][0]["message"], "id": body["id"]}


def say(client: Any, task: Any, num_turns: int = 2, **options: Any) -> list[str]:
    """A conversation of some turns; returns the answers."""
    messages, said = [{"role": "user", "content": task.prompt}], []
    for _ in range(num_turns):
        said.append(ask(client, messages, **options)["content"])
        messages += [{"role": "assistant", "content": said[-1]}, {"role": "user", "content": "Again."}]
    return said


def colours(task: Any, client: Any) -> float:
    """The agent of most tests: two turns, paid for what was said."""
    return sum(PAID.get(each, 0.0) for each in say(client, task))


def twofold(task: Any, client: Any) -> float:
    """Two conversations: two segments."""
    return sum(PAID.get(each, 0.0) for number in (1, 2) for each in say(client, task, number))


def pay(client: Any, amount: float, **of_answer: str) -> None:
    """Posts a reward for the session, or for one answer."""
    assert post(client, "session/reward", client.control_key, reward=amount, **of_answer).status_code == 200


def make(agent: Any, policy: dict[str, Any], **options: Any) -> Trainer:
    return Trainer(agent=agent, dataset=options.pop("dataset", QUESTIONS), **policy, **{**SETTINGS, **options})


def sampled(agent: Any, policy: dict[str, Any], **options: Any) -> list[Trajectory]:
    """The episodes of one rollout."""
    with make(agent, policy, **options) as trainer:
        return trainer.rollout().trajectories


# -- what is trained -------------------------------------------------------------------------------------------------


def test_an_agent_with_a_tool_is_trained_on_exactly_what_it_was_answered(callers, tokenizer):
    openai, amounts = pytest.importorskip("openai"), itertools.count()

    def agent(task: Any, client: Any) -> float:
        model = openai.OpenAI(base_url=client.base_url, api_key=client.api_key)
        messages: list[Any] = [{"role": "user", "content": task.prompt}]
        while True:
            answer = model.chat.completions.create(model=client.model, messages=messages, tools=[TOOL])
            message = answer.choices[0].message
            messages.append(message)
            if not message.tool_calls:
                return float(next(amounts))
            for call in message.tool_calls:
                result = twice.execute(**json.loads(call.function.arguments))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})

    policy = {"model": callers["hermes"], "tokenizer": tokenizer, "call_format": "hermes", "tools": [twice]}
    with make(agent, policy, temperature=0.7) as trainer:
        before, episodes = weights(trainer), trainer.rollout().trajectories
        native = trainer.renderer.prompt(trainer.source.parts.messages(episodes[0].task))
        metrics = trainer.train_step()
        assert not torch.equal(before, weights(trainer))
    with_tool = [each for each in episodes if len(each.turns) > 1]
    assert with_tool and all(len(each.segments) == 1 for each in with_tool)
    for each in episodes:
        each.check()
        assert each.token_ids[: each.spans[0].end] == native, "as in the supervised steps"
        assert {span.temperature for span in each.spans if span.kind is SpanKind.SAMPLED} == {0.7}
    assert metrics["agent/continued"] == 1.0 and metrics["agent/requests"] > 1
    assert metrics["logprob_difference_mean"] <= 1e-4


def test_the_same_tokens_through_the_gateway_and_in_a_native_rollout_are_the_same_batch(renderer):
    call_format = find_call_format("hermes")
    call = call_format.render_call("twice", {"word": "red"})
    written = [f"</think>{call}<|im_end|>", "</think>red<|im_end|>"]

    def script(episode: int, token_ids: Any) -> str:
        return written["red red" in renderer.decode(token_ids)]

    def agent(task: Any, client: Any) -> float:
        messages = [{"role": "user", "content": task.prompt}]
        message = ask(client, messages, tools=[TOOL])
        (called,) = message["tool_calls"]
        result = twice.execute(**json.loads(called["function"]["arguments"]))
        results = [message, {"role": "tool", "tool_call_id": called["id"], "content": result}]
        assert ask(client, [*messages, *results], tools=[TOOL])["content"] == "red"
        return 1.0

    def messages(task: Any) -> Any:
        return task.messages("", call_format.instructions([twice.definition]))

    def batch(environment: Any) -> tuple[TokenBatch, list[Trajectory]]:
        engine = ScriptedEngine(script, renderer)
        options = {"tools": [twice], "messages": messages, "call_format": call_format, "max_seq_len": 500}
        done = play(parts_of(engine, renderer, environment=environment, **options), 2)
        assert [each.error for each in done] == [None, None]
        return TokenBatch.from_trajectories(done, policy_version=0), done

    reward = WeightedReward({"agent": (1.0, lambda trajectory: 1.0)})
    tasks = AgentTasks(agent, QUESTIONS, None, create_default_config(), system_prompt="", describes_tools=True)
    try:
        through_gateway, filled = batch(tasks.episode)
    finally:
        tasks.close()
    native, played = batch(lambda task: QuestionEnvironment(reward))
    for field in dataclasses.fields(TokenBatch):
        one, other = getattr(through_gateway, field.name), getattr(native, field.name)
        assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other, field.name
    for one, other in zip(filled, played, strict=True):
        assert [turn.model_output for turn in one.turns] == [turn.model_output for turn in other.turns]
        assert one.reward == other.reward and one.stop_reason == other.stop_reason


@pytest.mark.parametrize("model", ["small", pytest.param("SmolLM2", marks=pytest.mark.slow)])
def test_every_token_of_branches_and_a_compaction_has_the_log_probability_that_the_learner_computes(model, talker):
    if model == "SmolLM2":
        if importlib.util.find_spec(PACKAGE) is None:
            pytest.skip(f"needs the package {PACKAGE}")
        talker = {"model": packaged_model(), "dtype": "float32"}
    with make(branches, talker, rewards=["correct"], temperature=0.9) as trainer:
        episodes = trainer.rollout().trajectories
        for each in numbered(episodes):
            each.check()
        batch, metrics = TokenBatch.from_trajectories(episodes), trainer.train_step()
    assert [(each.error, len(each.turns), len(each.segments)) for each in episodes] == [(None, 7, 5)] * 4
    assert int(batch.loss_mask.sum()) == sum(each.num_sampled for each in episodes) >= 4 * 7
    assert metrics["batch/num_episodes"] == 4 and metrics["batch/num_unscored_tokens"] == 0
    assert metrics["agent/continued"] == 5 / 6 and metrics["logprob_difference_max"] <= 1e-4


def test_answers_that_an_agent_drops_are_trained_unless_the_setting_says_no(talker):
    def agent(task: Any, client: Any) -> float:
        say(client, task, 1)
        return colours(task, client)

    for given, number in (({}, 3), ({"train_dropped_answers": False}, 2)):
        assert [len(each.turns) for each in sampled(agent, talker, **given)] == [number] * 4


def test_an_episode_whose_last_answer_was_cut_has_ended_at_the_limit_and_a_row_may_be_longer_than_the_context(talker):
    def agent(task: Any, client: Any) -> float:
        ask(client, [{"role": "user", "content": task.prompt[:20]}], max_tokens=1)  # the agent writes the prompts
        return 1.0

    long = [{**row, "question": row["question"] * 1000} for row in QUESTIONS]
    for each in sampled(agent, talker, dataset=long):
        assert (each.stop_reason, each.num_sampled, each.error) == (StopReason.LENGTH, 1, None)


def test_two_conversations_of_an_episode_are_two_segments_of_a_record_like_others_and_both_are_trained(talker):
    with make(twofold, talker) as trainer:
        episodes = numbered(trainer.rollout())
        again = [trajectory_from_json(json.loads(json.dumps(trajectory_to_json(each)))) for each in episodes]
        before = weights(trainer)
        metrics = trainer.train_step(again)
        assert not torch.equal(before, weights(trainer))
    assert [(len(each.segments), len(each.turns)) for each in again] == [(2, 3)] * 4
    assert len(TokenBatch.from_trajectories(again)) == 8
    assert (metrics["batch/num_flat_groups"], metrics["batch/num_episodes"], metrics["agent/requests"]) == (0, 4, 3.0)


# -- rewards ---------------------------------------------------------------------------------------------------------


def test_the_reward_is_what_the_agent_returns_else_what_was_posted_else_the_trainers(talker):
    def paid(amount: float | None) -> Any:
        def agent(task: Any, client: Any) -> float | None:
            say(client, task, 1)
            pay(client, 0.25)
            return amount

        return agent

    rewards: dict[str, Any] = {"rewards": [("correct", 2.0)]}
    for agent, options, parts in (
        (lambda task, client: len(say(client, task)), {}, {"agent": 2.0}),
        (lambda task, client: say(client, task) and Reward(parts={"a": 1.5}), {}, {"agent/a": 1.5}),
        (paid(3.0), rewards, {"agent": 3.0}),
        (paid(None), rewards, {"agent": 0.25}),
        (paid(None), {}, {"agent": 0.25}),
    ):
        assert [each.reward.parts for each in sampled(agent, talker, **options)] == [parts] * 4
    for each in sampled(lambda task, client: say(client, task) and None, talker, **rewards):
        assert each.reward.parts == {"correct": 2.0 * (each.turns[-1].answer == "red")}


def test_rewards_of_single_answers_are_rewards_of_turns(talker):
    def agent(task: Any, client: Any) -> float | None:
        messages = [{"role": "user", "content": task.prompt}]
        for amount in (0.5, None, 2.0):
            answer = ask(client, messages)
            messages += [answer, {"role": "user", "content": "Again."}]
            if amount is not None:
                pay(client, amount, response_id=answer["id"])

    for options, parts in (({}, {}), ({"reward_fn": lambda trajectory: 1.0}, {"reward_fn": 1.0})):
        for each in sampled(agent, talker, **options):
            assert each.reward == Reward(parts=parts, turns=(0.5, 0.0, 2.0))
            assert each.rewards == [0.5, 0.0, 2.0 + sum(parts.values())]


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (None, "EpisodeError: the agent returns None, and there is no other reward: return a number"),
        (float("nan"), "RewardError: reward function 'agent' returned nan"),
        ("good", "RewardError: reward function 'agent' returned 'good'"),
        (Reward(turns=(1.0, 2.0)), "RewardError: reward function 'agent' returned rewards for 2 turns"),
    ],
)
def test_an_episode_without_a_usable_reward_fails_with_the_reason(talker, value, error):
    for each in sampled(lambda task, client: say(client, task, 1) and value, talker):
        assert each.reward is None and each.stop_reason is StopReason.FAILED and error in each.error


# -- agents that fail ------------------------------------------------------------------------------------------------


class Sometimes:
    """An agent of which every second episode does something else."""

    def __init__(self, otherwise: Any) -> None:
        self._otherwise, self._lock, self._count = otherwise, threading.Lock(), 0

    def __call__(self, task: Any, client: Any) -> Any:
        with self._lock:
            self._count += 1
            is_odd = self._count % 2
        return self._otherwise(task, client) if is_odd else len(say(client, task)[0])


def raising(task: Any, client: Any) -> float:
    raise KeyError(say(client, task)[0])


def test_an_exception_of_the_agent_earns_a_reward_of_its_own_and_is_counted_by_type(talker):
    with make(Sometimes(raising), talker, agent_error_reward=-1.0) as trainer:
        episodes = trainer.rollout().trajectories
        metrics = trainer.train_step()
    failed = [each for each in episodes if each.error]
    assert len(failed) == 2 and metrics["batch/num_episodes"] == 4 and metrics["episode/failed"] == 0
    for each in failed:
        assert each.reward == Reward(parts={"agent": -1.0}) and each.error.startswith("the agent raised KeyError: ")
        assert len(each.turns) == 2 and each.stop_reason is StopReason.ANSWERED
    assert metrics["agent/errors"] == metrics["agent/errors/KeyError"] == 0.5


def test_an_agent_that_ends_its_thread_or_its_task_raises_too(talker):
    async def cancels(task: Any, client: Any) -> float:
        await asked_async(task, client)
        raise asyncio.CancelledError

    def exits(task: Any, client: Any) -> float:
        raise SystemExit(len(say(client, task)))

    for agent, name in ((cancels, "CancelledError"), (exits, "RuntimeError")):
        for each in sampled(agent, talker):
            assert each.reward == Reward(parts={"agent": 0.0}) and name in each.error


def hanging(task: Any, client: Any) -> float:
    say(client, task)
    threading.Event().wait(30)
    return 1.0


UNANSWERED = "EpisodeError: the agent made no request that was answered; its model needs client.base_url, "
UNANSWERED += "client.api_key and client.model"
IDLE = "EpisodeError: the agent made no request and did not return for 3 seconds; raise environment.agent_idle_s"


@pytest.mark.parametrize(
    ("otherwise", "error"),
    [
        (lambda task, client: 1.0, UNANSWERED),
        (hanging, IDLE),
        (lambda task, client: ask(client, [], temperature="hot"), f"{UNANSWERED} (the agent raised HTTPStatusError"),
    ],
)
def test_a_group_trains_on_when_a_member_has_failed(talker, otherwise, error):
    with make(Sometimes(otherwise), talker, agent_idle_seconds=3.0) as trainer:
        episodes = trainer.rollout().trajectories
        numbered(each for each in episodes if each.reward)
        metrics = trainer.train_step()
    failed = [each for each in episodes if each.stop_reason is StopReason.FAILED]
    assert len(failed) == 2 and all(each.error.startswith(error) and each.reward is None for each in failed)
    assert metrics["batch/num_episodes"] == 2 and metrics["episode/failed"] == 0.5


@pytest.mark.parametrize(
    ("broken", "error"), [("gateway", "EngineError: KeyError: 'ours'"), ("engine", "out of memory")]
)
def test_a_failure_of_the_gateway_or_the_engine_is_no_reward_of_the_agent(broken, error, talker, monkeypatch):
    def agent(task: Any, client: Any) -> float:
        say(client, task, 1)
        with pytest.raises(httpx.HTTPStatusError):
            ask(client, [{"role": "user", "content": "What?"}])
        return 1.0

    with make(agent, talker) as trainer:
        engine, read, num_asked = trainer.source.parts.engine, type(CHAT).read, Counter()
        sample = engine.sample

        def misread(dialect: Any, body: bytes, **options: Any) -> Any:
            if b"What?" in body:
                raise KeyError("ours")
            return read(dialect, body, **options)

        async def out_of_memory(episode: int, *given: Any, **options: Any) -> Any:
            num_asked[episode] += 1
            if num_asked[episode] == 1 and len(num_asked) > 4:  # of the second question
                raise RuntimeError("out of memory")
            return await sample(episode, *given, **options)

        if broken == "gateway":
            monkeypatch.setattr(type(CHAT), "read", misread)
        else:
            monkeypatch.setattr(engine, "sample", out_of_memory)
        episodes = trainer.rollout().trajectories
    assert all(each.reward is None and each.stop_reason is StopReason.FAILED for each in episodes)
    assert all(each.error.endswith(error) for each in episodes)


# -- arms, asynchronous training, resuming -----------------------------------------------------------------------------


async def asked_async(task: Any, client: Any) -> float:
    headers = {"authorization": f"Bearer {client.api_key}"}
    body = {"model": client.model, "messages": [{"role": "user", "content": task.prompt}]}
    async with httpx.AsyncClient(base_url=client.base_url, headers=headers, timeout=60) as http:
        answer = (await http.post("chat/completions", json=body)).raise_for_status().json()
    return PAID.get(answer["choices"][0]["message"]["content"], 0.0)


def test_an_async_agent_and_both_arms_of_an_evaluation(talker):
    with make(asked_async, talker, validation=QUESTIONS) as trainer:
        greedy = [trainer.held_out.evaluate(load_tasks(QUESTIONS)) for _ in range(2)]
        metrics = trainer.evaluate()
        trainer.evaluate(sampled=True)
        for tools in ("off", "shuffled"):
            with pytest.raises(SettingsError, match=f"tools='{tools}' with agent=: .* leave tools out"):
                trainer.evaluate(tools=tools)
        trainer.fit()
    assert [each.token_ids for each in greedy[0]] == [each.token_ids for each in greedy[1]]
    assert 0 <= metrics["reward/mean"] <= 1 and metrics["agent/requests"] == 1.0 and "exact_match" in metrics


def test_rejection_sampling_trains_the_best_episodes_of_agents(talker):
    with make(colours, talker, algorithm="rft", num_train_iters=1) as trainer:
        (metrics,) = trainer.fit()
    assert 0 < metrics["batch/kept_fraction"] <= 1


def test_sampling_options_of_the_client_have_no_effect_and_one_warning(talker, caplog):
    def agent(task: Any, client: Any) -> float:
        return float(len(set(say(client, task, temperature=0.01, top_p=0.5, seed=1))))

    with make(agent, talker, num_train_iters=2) as trainer, caplog.at_level(logging.WARNING):
        metrics = trainer.fit()[-1]
    assert metrics["agent/overridden"] == 1.0
    (told,) = [record.message for record in caplog.records if record.name == "midthought.trainer.agents"]
    assert told.startswith("the agent sets seed, temperature, top_p without effect")


class Steps(TrainerCallback):
    """Sets an event after an iteration, and ends the run like a power cut after the checkpoint of another."""

    def __init__(self, cut_at: int = 0) -> None:
        self.first, self.num_open, self._cut_at = threading.Event(), 0, cut_at

    def on_step(self, trainer: Trainer, metrics: Any) -> None:
        self.first.set()

    def on_save(self, trainer: Trainer, path: Any) -> None:
        if trainer.iteration == self._cut_at:
            self.num_open = trainer.source.stream.num_unfinished
            raise RuntimeError("power cut")


def test_sessions_outlive_new_weights_in_asynchronous_training(talker):
    steps, started = Steps(), []

    def agent(task: Any, client: Any) -> float:
        started.append(task)
        first = len(started) == 1
        said = say(client, task, 1)
        if first:
            assert steps.first.wait(60)
        return len("".join(said + say(client, task, 3))) % 3

    with make(agent, talker, max_staleness=1, num_train_iters=4, overlap=False, callbacks=steps) as trainer:
        episodes: list[Trajectory] = []
        train_step = trainer.train_step
        trainer.train_step = lambda data: train_step(episodes.extend(data) or data)
        history = trainer.fit()
    assert len(history) == 4 and max(row["staleness/max"] for row in history) == 1
    assert sum(row["episode/failed"] for row in history) == 0
    versions = [[each.segments[s].policy_versions[index] for s, index in each.turn_ends] for each in episodes]
    assert [0, 1, 1, 1] in versions, "each token has the version that sampled it"


@pytest.mark.parametrize(
    ("max_staleness", "overlap"), [(2, False), pytest.param(4, True, marks=pytest.mark.slow)], ids=["2", "4"]
)
def test_each_token_sampled_for_agents_that_wait_unevenly_is_trained_once(max_staleness, overlap, talker):
    draw, amounts = random.Random(0), itertools.count()

    def agent(task: Any, client: Any) -> float:
        say(client, task, 1)
        time.sleep(min(0.5, 0.02 * draw.paretovariate(1.1)))
        say(client, task, 3)
        return float(next(amounts))

    options = {"max_staleness": max_staleness, "overlap": overlap, "group_size": 2, "num_train_iters": 6}
    with make(agent, talker, **options) as trainer:
        engine, learner, sampled, trained = trainer.source.parts.engine, trainer.learner, Counter(), Counter()
        sample, score = engine.sample, learner.score

        async def sampling(*given: Any, **options: Any) -> Any:
            found = await sample(*given, **options)
            logprobs = torch.tensor(found.sampled_logprobs)
            sampled.update(zip(found.token_ids, logprobs.tolist(), strict=True))
            return found

        def scoring(batch: TokenBatch) -> Any:
            token_ids, logprobs = batch.token_ids[batch.loss_mask], batch.sampled_logprobs[batch.loss_mask]
            trained.update(zip(token_ids.tolist(), logprobs.tolist(), strict=True))
            return score(batch)

        engine.sample, learner.score = sampling, scoring
        history = trainer.fit()
        assert trainer.source.stream.num_open == 0
    assert trained == sampled and trained.total() >= 6 * 4 * 4
    assert [row["batch/num_episodes"] for row in history] == [4] * 6
    assert 0 < max(row["staleness/max"] for row in history) <= max_staleness


def test_agent_episodes_that_had_not_ended_start_anew_when_a_run_is_resumed(talker, tmp_path):
    release, started, steps = threading.Event(), [], Steps(cut_at=2)

    def agent(task: Any, client: Any) -> float:
        is_late = steps.first.is_set() and not release.is_set()
        started.append(task.prompt)
        said = "".join(say(client, task))
        if is_late:
            release.wait(60)
        return len(said) % 3

    options = {"max_staleness": 1, "overlap": False, "run_path": tmp_path / "run", "save_interval": 1}
    options |= {"num_train_iters": 4}
    with make(agent, talker, callbacks=steps, **options) as trainer, pytest.raises(RuntimeError, match="power cut"):
        trainer.fit()
    release.set()
    num_before = len(started)
    with make(agent, talker, resume=True, **options) as trainer:
        history = trainer.fit()
    assert [row["iteration"] for row in history] == [1, 2, 3, 4] and steps.num_open
    assert len(started) - num_before >= steps.num_open
    assert sum(row["episode/failed"] for row in history) == 0


# -- checks and refusals -----------------------------------------------------------------------------------------------


def test_the_checks_before_a_run_play_the_agent_and_leave_out_what_only_it_knows(talker):
    with make(colours, talker) as trainer:
        report = trainer.check()
    assert report.skipped["reward"] == "the agent gives the reward of an episode"
    assert "episodes" in report.passed and not [each for each in report.findings if each.policy == "stop"]
    with make(lambda task, client: 1.0, talker, rewards=["correct"]) as trainer:
        (found,) = [each for each in trainer.check().findings if each.policy == "stop"]
    assert found.check == "episodes" and "the agent made no request that was answered" in found.observation


def test_answers_that_lack_the_required_call_are_a_finding(talker):
    def agent(task: Any, client: Any) -> float:
        return PAID.get(say(client, task, 1, tools=[TOOL], tool_choice="required")[0], 0.0)

    with make(agent, talker, num_train_iters=1) as trainer:
        (metrics,) = trainer.fit()
    assert metrics["agent/required_missed"] == 1.0
    monitor = Monitor({})
    found = [monitor.add({"stage": "ppo", **metrics, "step": step, "reward/std": 1.0}) for step in (1, 2, 3)]
    assert [each.subject for each in found[2] if each.check == "tool_unused"] == ["required"]
    assert "100% of the answers that must be a call" in str(found[2])


def nothing(task: Any, client: Any) -> None:
    say(client, task)


def test_a_run_stops_after_the_first_episodes_of_an_agent_that_returns_nothing(talker):
    told = pytest.raises(MidthoughtError, match="the agent returns None, and there is no other reward: return a number")
    with make(lambda task, client: nothing(task, client), talker) as trainer, told:
        trainer.fit()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dataset": None}, "agent= plays the tasks of a data set: give dataset="),
        ({"environment": lambda: None}, "agent= plays the tasks of a data set: .*and no environment"),
        ({"agent": 3}, r"agent=3: give a function f\(task, client\)"),
        ({"agent": lambda task: 1.0}, "takes exactly these two arguments"),
        ({"agent": Sometimes}, "give a function|is a class"),
        ({"agent": nothing}, r"agent=nothing returns None, and there is no other reward: return a number"),
        ({"ray": {"use_ray": True}}, "ray.use_ray=true with agent=: .*set it to false"),
        ({"deterministic": True}, "inference.deterministic=true with agent=: .*set it to false"),
        ({"overlong_buffer_tokens": 8}, "training.overlong_buffer_tokens=8 with agent=: .*set it to 0"),
        ({"rewards": ["correct"], "reward_fn": lambda trajectory: 1.0}, "say the same thing twice"),
    ],
)
def test_what_excludes_an_agent_is_refused_before_the_start(talker, options, message):
    with pytest.raises(SettingsError, match=message):
        make(options.pop("agent", colours), talker, **{"dataset": QUESTIONS, **options})


def test_an_agent_that_may_have_a_reward_is_not_refused():
    def annotated(task: Any, client: Any) -> float | None:
        pay(client, 1.0)

    given = (create_default_config(), None, QUESTIONS, None, None, [])
    for agent in (annotated, colours, asked_async, Sometimes(colours), lambda task, client: None):
        assert agent_tasks(agent, *given, system_prompt="", describes_tools=True).num_tasks == 3


def test_another_agent_is_a_change_of_a_resumed_run(talker, tmp_path):
    with make(twofold, talker, num_train_iters=1, run_path=tmp_path / "run", record_episodes=4) as trainer:
        trainer.fit()
    (recorded, *_) = read_recording(tmp_path / "run")
    assert len(recorded.segments) == 2
    page = (tmp_path / "run" / "report.html").read_text("utf-8")
    assert "agent/requests" in page and COLOURS[0] in page
    with pytest.raises(SettingsError, match="environment"):
        make(asked_async, talker, run_path=tmp_path / "run", resume=True)
