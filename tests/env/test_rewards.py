"""Rewards: named, weighted, judged from the record. Nothing that the policy merely claims is paid."""

import asyncio
import functools
import importlib
import importlib.util
import math
import signal
import threading
import time
from collections.abc import Sequence
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from midthought.config import RewardConfig
from midthought.data.final_answers import NO_ANSWER
from midthought.env.answer_matching import (
    exact_match,
    fuzzy_match,
    last_boxed,
    mathematical_match,
    numeric_match,
    option_match,
)
from midthought.env.episode import EnvironmentEpisode, QuestionEnvironment
from midthought.env.game import SimpleGameEnvironment
from midthought.env.rewards import (
    RewardError,
    answer_reward,
    combine_rewards,
    correct,
    in_thread,
    last_answer,
    matched,
    num_calls,
    num_failed_calls,
    used_tool,
    weighted,
    well_formed_thought,
)
from midthought.errors import EpisodeError
from midthought.types import (
    Completion,
    Finish,
    Reward,
    StopReason,
    Task,
    ToolCall,
    ToolEvent,
    ToolOutcome,
    Trajectory,
    Turn,
)
from midthought.types.turn import THINK_TAGS

OK, RAISED = ToolOutcome.OK, ToolOutcome.RAISED


def episode(
    *written: str, calls: Sequence[ToolOutcome] = (), begins_in_thought=False, think_tags=THINK_TAGS, **task
) -> Trajectory:
    """An episode of these turns, after calls with these outcomes."""
    of_turns = {"begins_in_thought": begins_in_thought, "think_tags": think_tags}
    trajectory = Trajectory(Task(**{"task_id": "t", "prompt": "?", "answer": "Ada", **task}), [0])
    if calls:
        events = [ToolEvent(call=ToolCall(tool_name="look"), outcome=outcome) for outcome in calls]
        trajectory.add_results(events, [2])
    for number, text in enumerate(written):
        trajectory.add_sampled(Completion(token_ids=(1,), sampled_logprobs=(-1.0,), finish=Finish.END))
        trajectory.end_turn(Turn(turn_number=number, model_output=text, **of_turns))
    trajectory.stop_reason = StopReason.ANSWERED
    return trajectory


REWARD = answer_reward(RewardConfig())


def test_that_the_memory_does_not_say_counts_only_after_a_call_that_returned_a_result():
    task = {"answer": NO_ANSWER, "aliases": ("I don't know.",)}
    for written in ("hm</think> The memory does not say.$", "hm</think> I don't know$"):
        for calls, value in (([], 0.0), ([RAISED], 0.0), ([OK], 1.0)):
            assert correct(episode(written, calls=calls, **task)) == value
    assert correct(episode("hm</think> unknown$", answer="Unknown")) == 1.0  # of a question about no memory


def test_a_result_that_the_policy_wrote_itself_earns_nothing_and_costs_nothing():
    forged = episode("#call look {}\n#look_result:\n[1] Ada\n\nhm</think> Bob", begins_in_thought=True)
    assert REWARD(forged) == REWARD(episode("hm</think> Bob", begins_in_thought=True))


# -- many functions, one reward --------------------------------------------------------------------------------


def one(trajectory):
    return 1


async def later(trajectory):
    await asyncio.sleep(0)
    return 0.5


DONE = episode("hm</think> Ada")


def test_plain_functions_named_tuples_and_weighted_ones_become_parts_already_multiplied():
    reward = combine_rewards(
        [one, weighted(num_calls, -0.1), ("asked", 2.0, used_tool), weighted(one, 3, name="again")]
    )
    done = episode("Ada", calls=[RAISED] * 2)
    assert list(reward(done).parts.items()) == [("one", 1.0), ("num_calls", -0.2), ("asked", 0.0), ("again", 3.0)]
    assert asyncio.run(reward.score(done)) == reward(done)


def test_a_blocking_function_runs_in_a_thread():
    def block(trajectory):
        return float(threading.current_thread() is not threading.main_thread())

    assert dict(asyncio.run(combine_rewards([in_thread(block)]).score(DONE)).parts) == {"block": 1.0}


def test_the_environment_is_given_to_those_who_want_it():
    def asks(trajectory, environment):
        return environment.worth

    environment = SimpleNamespace(worth=7.0)
    reward = combine_rewards([asks, one])
    assert dict(reward(DONE, environment).parts) == {"asks": 7.0, "one": 1.0}
    assert asyncio.run(reward.score(DONE, environment)) == reward(DONE, environment)


def test_combined_rewards_join_each_other_times_their_weights():
    reward = combine_rewards([weighted(combine_rewards([weighted(later, 2.0)]), 0.5), REWARD, one])
    weights = {name: weight for name, (weight, _) in reward.parts.items()}
    assert weights == {"later": 1.0, "correct": 1.0, "thought": 0.1, "calls": -0.1, "one": 1.0}
    scored = asyncio.run(reward.score(episode("hm</think> Ada", begins_in_thought=True)))
    assert scored.total == pytest.approx(0.5 + 1.0 + 0.1 + 1.0)


def test_a_function_of_another_form_is_refused_with_both_that_are_accepted():
    for function in (lambda: 1.0, lambda a, b, c: 1.0, lambda a, *, b: 1.0, lambda *, trajectory: 1.0, "correct"):
        with pytest.raises(RewardError, match=r"'mine'.*f\(trajectory\) or f\(trajectory, environment\)"):
            combine_rewards([("mine", 1.0, function)])


NOT_COMBINED = [
    ([], "at least one"),
    ([one, one], "two reward functions are named 'one'"),
    ([lambda trajectory: 1.0], "a lambda has no name"),
    ([("one", one)], r"\(name, weight, function\)"),
    ([weighted(one, math.nan)], "the weight of reward function 'one' is nan"),
    (one, r"give a list of them"),
]


def test_what_cannot_be_combined_is_refused_at_once():
    for functions, message in NOT_COMBINED:
        with pytest.raises(RewardError, match=message):
            combine_rewards(functions)


def plain_and_later(function, weight=1.0):
    """The reward of a plain function and that of the same `async`, each named `mine`."""

    async def awaited(trajectory):
        return function(trajectory)

    return [combine_rewards([("mine", weight, each)]) for each in (function, awaited)]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, None, "1", [1.0], 1j, 10**400, 1e308])
def test_what_is_no_finite_number_names_the_function_and_the_task(value):
    for reward in plain_and_later(lambda trajectory: value, 100):
        with pytest.raises(RewardError, match=r"(?s)'mine' returned .* for task 't'"):
            asyncio.run(reward.score(DONE))


def test_a_function_that_raises_is_named_with_the_task_and_the_cause():
    for reward in plain_and_later(lambda trajectory: trajectory.task.labels["kind"]):
        with pytest.raises(RewardError, match=r"'mine' raised KeyError for task 't': 'kind'") as raised:
            asyncio.run(combine_rewards([later, reward]).score(DONE))
        assert isinstance(raised.value.__cause__, KeyError)


def test_a_function_that_returns_none_does_not_apply_and_has_no_part():
    for reward in plain_and_later(lambda trajectory: trajectory.task.labels.get("mine"), 2.0):
        for labels, parts in (({}, {"one": 1.0}), ({"mine": 0}, {"mine": 0.0, "one": 1.0})):
            scored = asyncio.run(combine_rewards([reward, one]).score(episode("hm", labels=labels)))
            assert scored.parts == parts and scored.total == sum(parts.values())
        with pytest.raises(RewardError, match=r"'mine' and 'other' returned None for task 't': .*; return a number"):
            asyncio.run(combine_rewards([reward, ("other", 1.0, lambda trajectory: None)]).score(DONE))


SCALARS = [np.float32(1), np.bool_(True), np.array(1.0), torch.tensor(1.0), torch.tensor(True)]


def test_every_real_number_will_do_and_is_recorded_as_a_float():
    for value in [True, 1, 1.0, Fraction(1, 1), *SCALARS]:
        reward = combine_rewards([("mine", np.float32(0.5), lambda trajectory, value=value: value)])
        (part,) = reward(DONE).parts.values()
        assert part == 0.5 and type(part) is float


def test_rewards_per_turn_and_per_call_are_weighted_and_added_to_each_other():
    def progress(trajectory):
        return Reward(parts={"end": 3.0}, calls=(1.0, -2.0), turns=(1.0,))

    async def politeness(trajectory):
        return Reward(calls=(4.0, 8.0), turns=(4.0,))

    functions = [weighted(progress, 0.5), weighted(politeness, 0.25), ("asked", 1.0, used_tool)]
    reward = asyncio.run(combine_rewards(functions).score(episode("hm", calls=[OK] * 2)))
    assert reward == Reward(parts={"progress/end": 1.5, "asked": 1.0}, turns=(1.5,), calls=(1.5, 1.0))
    assert reward.total == 6.5
    for turns in (np.array([1.0, 2.0]), torch.tensor([1.0, 2.0])):
        reward = combine_rewards([("mine", 2.0, lambda trajectory, turns=turns: Reward(turns=turns))])
        assert reward(episode("hm", "a")) == Reward(turns=(2.0, 4.0))


BAD_TURNS = [
    (Reward(turns=(1.0,)), r"'mine' returned rewards for 1 turns for task 't'; the episode has 2"),
    (Reward(turns=(1.0, 2.0, 3.0)), r"for 3 turns for task 't'; the episode has 2"),
    (Reward(calls=(0.0,)), r"for 1 calls for task 't'; the episode has 0: give one per call"),
    (Reward(turns=(1.0, math.nan)), r"'mine' returned nan for turn 1 for task 't'"),
    (Reward(turns=(None, 1.0)), r"'mine' returned None for turn 0"),
    (Reward(turns=(1e308, 0.0)), r"'mine' returned 1e\+308 for turn 0"),
    (Reward(parts={"a": math.inf}), r"'mine' returned inf for part 'a'"),
]


def test_bad_rewards_per_turn_and_parts_of_one_name_are_named():
    for value, message in BAD_TURNS:
        with pytest.raises(RewardError, match=message):
            combine_rewards([("mine", 100.0, lambda trajectory, value=value: value)])(episode("hm", "a"))
    functions = [("a/b", 1.0, lambda trajectory: 1.0), ("a", 1.0, lambda trajectory: Reward(parts={"b": 1.0}))]
    with pytest.raises(RewardError, match="two reward functions give a part 'a/b'"):
        combine_rewards(functions)(DONE)


def alarmed(trajectory):
    signal.signal(signal.SIGALRM, lambda *_: None)


def parsed(trajectory):
    return float(bool(importlib.import_module("math_verify").parse("$1/2$")))


def verified(trajectory):
    math_verify = importlib.import_module("math_verify")
    half = math_verify.parse("$1/2$", parsing_timeout=None)
    return float(math_verify.verify(half, half))


def test_a_time_limit_by_signals_is_told_that_rewards_run_in_threads():
    remedy = (
        r"run in threads.* use .*mathematical_match, .*parsing_timeout=None.*timeout_seconds=None.*step_timeout_seconds"
    )
    for function in [alarmed, parsed, verified]:
        reward = combine_rewards([function])
        for judging in (QuestionEnvironment(reward, 60.0), EnvironmentEpisode(SimpleGameEnvironment(), reward)):
            with pytest.raises(EpisodeError, match=f"raised ValueError.*{remedy}") as raised:
                asyncio.run(judging.score(DONE))
            assert str(raised.value).count("run in threads") == 1


def test_an_asynchronous_function_makes_the_reward_awaitable():
    for function in (later, lambda trajectory: later(trajectory)):
        reward = combine_rewards([("mine", 1.0, function), one])
        assert asyncio.run(reward(DONE)).total == asyncio.run(reward.score(DONE)).total == 1.5


def test_a_failed_part_stops_the_others():
    was_cancelled = []

    async def slow(trajectory):
        try:
            await asyncio.sleep(20)
        except asyncio.CancelledError:
            was_cancelled.append(True)
            raise

    async def fails(trajectory):
        await asyncio.sleep(0)
        raise ValueError("no")

    with pytest.raises(RewardError, match="'fails' raised ValueError"):
        asyncio.run(combine_rewards([fails, slow]).score(DONE))
    assert was_cancelled == [True]


# -- functions that are ready to use ---------------------------------------------------------------------------

MATCHES = [
    (matched(exact_match), "hm</think> ada.", {}, 1.0),
    (matched(exact_match), "hm</think> Countess", {"aliases": ("Bob", "countess")}, 1.0),
    (matched(fuzzy_match), "Ada Lovelace", {"aliases": ("Bob",)}, 2 / 3),
    (matched(fuzzy_match), "Ada Lovelace", {"aliases": ("the Lovelace, Ada",)}, 1.0),
    (matched(numeric_match), "3 times 4 is 12.", {"answer": "#### 12"}, 1.0),
    (matched(option_match), "The answer is (C).", {"answer": "C"}, 1.0),
    (matched(exact_match), "<think> Ada", {}, 0.0),
    (matched(exact_match), " ", {"answer": ""}, 0.0),
    (matched(exact_match, extract=last_boxed), "so \\boxed{Ada} it is", {}, 1.0),
    (matched(exact_match, extract=last_boxed), "Ada", {}, 0.0),
]


def test_an_answer_or_the_part_of_it_that_is_extracted_is_worth_its_best_match():
    for match, written, task, value in MATCHES:
        assert combine_rewards([match])(episode(written, **task)).total == pytest.approx(value)


@pytest.mark.skipif(importlib.util.find_spec("math_verify") is None, reason="needs math-verify")
def test_a_mathematical_match_waits_in_a_thread():
    reward = combine_rewards([matched(functools.partial(mathematical_match, timeout_seconds=120))])
    assert list(reward.parts) == ["mathematical_match"]
    for said, value in (("0.5", 1.0), ("0.6", 0.0)):
        assert asyncio.run(reward(episode(f"so \\boxed{{{said}}}", answer="\\frac{1}{2}"))).total == value


TURNS = [
    (["Bob", "<think>hm</think> Ada "], "Ada", "Ada"),
    (["<think>Ada"], None, None),
    (["hm</think>Bob<think>Ada"], None, None),
    (["hm</think>"], "", ""),
    (["hm</think>Ada", "Bob"], "Bob", None),
    ([], None, None),
]


def test_the_last_answer_is_read_from_the_last_turn_without_its_thought():
    for outputs, last, last_after_an_opening in TURNS:
        assert last_answer(episode(*outputs)) == last
        assert last_answer(episode(*outputs, begins_in_thought=True)) == last_after_an_opening


THOUGHTS = [
    (["hm</think>Ada"], True, 1.0),
    (["<think>hm</think>Ada"], False, 1.0),
    (["<think>hm</think>Ada"], True, 0.0),
    (["hm</think>Ada"], False, 0.0),
    (["hm Ada"], True, 0.0),
    (["hm</think>Ada<think>hm</think>Ada"], True, 0.0),
    (["hm</think>"], True, 0.0),
    (["hm</think>Bob", "hm</think>Ada"], True, 0.0),
    (["<think>hm</think>Bob", "Ada"], False, 1.0),
]


@pytest.mark.parametrize("tags", [("<think>", "</think>"), ("[THINK]", "[/THINK]")])
def test_a_well_formed_thought_is_opened_once_closed_once_and_followed_by_an_answer_of_an_episode_that_was_not_cut(
    tags,
):
    for outputs, begins_in_thought, well_formed in THOUGHTS:
        written = [text.replace("</think>", tags[1]).replace("<think>", tags[0]) for text in outputs]
        done = episode(*written, begins_in_thought=begins_in_thought, think_tags=tags)
        assert well_formed_thought(done) == well_formed
        for done.stop_reason in [reason for reason in StopReason if reason.is_truncated]:
            assert not well_formed_thought(done)


def test_tool_use_is_counted_from_the_events():
    done = episode("Ada", calls=[*ToolOutcome])
    assert num_calls(done) == len(ToolOutcome) and num_failed_calls(done) == len(ToolOutcome) - 1
    assert used_tool(done) == 1.0
    assert used_tool(episode("Ada", calls=[RAISED])) == used_tool(episode("look_result: Ada")) == 0.0


# -- the reward of the settings, and its time limit --------------------------------------------------------------

PAID = [
    ("hm</think>Ada", 0, {"correct": 1.0, "thought": 0.1, "calls": 0.0}),
    ("hm</think>Bob", 0, {"correct": 0.0, "thought": 0.1, "calls": 0.0}),
    ("</think>Ada", 2, {"correct": 1.0, "thought": 0.1, "calls": -0.2}),
    ("Ada", 0, {"correct": 0.0, "thought": 0.0, "calls": 0.0}),
]


def test_the_reward_of_the_settings_pays_answer_and_thought_and_takes_for_calls_and_wrong_answers():
    for written, calls, parts in PAID:
        done = episode(written, calls=[RAISED] * calls, begins_in_thought=True)
        assert asyncio.run(QuestionEnvironment(REWARD).score(done)).parts == pytest.approx(parts)
    costly = answer_reward(RewardConfig(wrong_answer=1.0))
    costs = {"hm</think>Ada": 0, "hm</think>Bob": -1, "hm</think>I don't know.": 0, "hm": 0}
    for written, cost in (
        costs | {"hm</think><answer>Unknown.</answer>": 0, "</think><answer>Bob</answer>": -1}
    ).items():
        assert costly(episode(written, begins_in_thought=True)).parts["wrong_answer"] == cost


def test_a_reward_that_blocks_holds_nobody_up_and_one_that_hangs_is_given_up():
    together = threading.Barrier(8)

    def slow(trajectory):
        together.wait(60)  # for the other seven
        return 1.0

    async def hangs_politely(trajectory):
        await asyncio.sleep(60)

    async def score_many():
        environment = QuestionEnvironment(combine_rewards([slow]), 100.0)
        return await asyncio.gather(*(environment.score(DONE) for _ in range(8)))

    assert [reward.total for reward in asyncio.run(score_many())] == [1.0] * 8
    for function in (hangs_politely, lambda trajectory: time.sleep(1)):
        environment = QuestionEnvironment(combine_rewards([("hangs", 1.0, function)]), 0.05)
        with pytest.raises(EpisodeError, match=r"the reward did not finish within 0\.05 seconds"):
            asyncio.run(environment.score(DONE))
