"""Each check of a run finds its failure in a few rows of metrics, and nothing in healthy rows; each problem is reported once."""

from __future__ import annotations

import math

import pytest

from midthought.checks.examination import Monitor
from midthought.checks.registry import CHECKS, Finding, check
from midthought.errors import SettingsError
from midthought.tools.call_formats.unread import UnreadCalls

HEALTHY = {
    "reward/mean": 0.5,
    "reward/std": 0.5,
    "episode/count": 8,
    "episode/calls": 1.0,
    "episode/tools": 1,
    "episode/length": 0.1,
    "episode/failed": 0.0,
    "episode/invalid_calls": 0.0,
    "tool/look/calls": 1.0,
    "tool/look/failures": 0.0,
    "tool/look/bad_arguments": 0.0,
    "tool/look/raised": 0.0,
    "tool/look/timed_out": 0.0,
    "batch/num_episodes": 8,
    "num_optimizer_steps": 2,
    "num_skipped_steps": 0,
    "grad_norm": 0.5,
    "weight_change": 1e-4,
    "step_size": 0.3,
    "value_loss": 0.1,
    "approx_kl": 0.001,
    "kl_reference": 0.01,
    "entropy": 0.5,
    "logprob_difference_mean": 1e-6,
}
EQUAL = {"reward/mean": 0.0, "reward/std": 0.0}
UNREAD = UnreadCalls(num_episodes=8, count=6, tool="look", text="#call look {}", remedy="set call_format='in_thought'")


def findings_of(*rows, settings=None, healthy=6, unread=None):
    """What is found in healthy iterations, `healthy` of them, with these after them."""
    monitor, found = Monitor(settings or {}), []
    for number, changed in enumerate([{}] * healthy + list(rows), start=1):
        mean = 0.5 + 0.01 * (number % 3)
        row = {"stage": "ppo", "step": number, **HEALTHY, "reward/mean": mean, **changed}
        found += monitor.add(row, unread=unread)
    return found


STEPS = 10 * [EQUAL]
FAILURES = {
    "all episodes fail": (0, [{"episode/failed": 1.0, "reward/mean": None}], "episodes_fail", "all 8 episodes"),
    "all of them, later": (6, [{"episode/failed": 1.0, "reward/mean": None}] * 3, "episodes_fail", "all 8 episodes"),
    "a part of the episodes": (6, [{"episode/failed": 0.6}] * 5, "episodes_fail", "60% of the episodes"),
    "the budget": (6, [{"episode/length": 1.0}] * 5, "truncated", "inference.max_tokens=256"),
    "the limit of turns": (6, [{"episode/max_turns": 1.0}] * 5, "truncated", "inference.max_turns=5"),
    "the limit of steps": (0, [{"episode/max_steps": 1.0}] * 5, "truncated", "environment.max_steps"),
    "log-probabilities": (6, [{"logprob_difference_mean": 0.2}], "logprob_difference", "by 0.2 nats"),
    "some gradients": (6, [{"num_skipped_steps": 1}], "not_finite", "1 of 2 gradients"),
    "all gradients": (6, [{"num_skipped_steps": 2, "reward/mean": 1e31}], "not_finite", "2 of 2 gradients"),
    "value loss": (6, [{"value_loss": 80.0}], "spike", "value_loss is 80"),
    "KL of an update": (0, [{"approx_kl": 0.9}], "spike", "approx_kl is 0.9"),
    "KL to the reference": (6, [{"kl_reference": 9.0}], "spike", "kl_reference is 9"),
    "entropy": (6, [{"entropy": 0.001}] * 5, "entropy", "from 0.5 to 0.001"),
    "equal rewards": (0, STEPS, "equal_rewards", "none of the 10 iterations"),
    "rounding": (0, [{"reward/mean": 1 + n * 1e-8, "reward/std": 1e-7} for n in range(10)], "equal_rewards", "none of"),
    "collapse": (11, STEPS, "equal_rewards", "all rewards of 10 iterations are 0; before, up to 0.52"),
    "a tool that raises": (6, [{"tool/look/raised": 1.0}] * 3, "tool_fails", "100% raised"),
    "a tool that is late": (6, [{"tool/look/timed_out": 0.8}] * 3, "tool_fails", "80% timed_out"),
    "a tool with too many late calls": (6, [{"tool/look/unavailable": 1.0}] * 3, "tool_fails", "100% unavailable"),
    "wrong arguments": (6, [{"tool/look/bad_arguments": 0.8}] * 3, "tool_fails", "80% bad_arguments"),
    "unknown tools": (6, [{"episode/invalid_calls": 0.9}] * 3, "tool_fails", "0.9 of 1 calls"),
    "no call any more": (6, [{"episode/calls": 0.0}] * 3, "tool_unused", "0 tools are called per episode, and 1"),
    "no call at all": (0, [{"episode/calls": 0.0}] * 10, "tool_unused", "in the first 10 iterations"),
    "updates that change nothing": (0, [{"weight_change": 1e-11}] * 5, "policy_unchanged", "none of the 5 updates"),
    "a step of a third of the weights": (6, [{"weight_change": 0.3}], "policy_unchanged", "0.3 of their size"),
}


def test_healthy_rows_have_no_finding():
    assert findings_of(healthy=60) == []


def test_a_failure_is_found_with_its_number_its_start_and_a_remedy():
    settings = {"inference": {"max_tokens": 256, "max_turns": 5}}
    for name, (healthy, rows, expected, part) in FAILURES.items():
        found = findings_of(*rows, settings=settings, healthy=healthy)
        (finding,) = [each for each in found if each.check == expected]
        assert part in finding.observation and finding.action, name
        assert finding.start_step == healthy + 1, name
        assert {each.check for each in found} == {expected}, name


ERROR, SERVERS = "correct what the error names", "servers answer"


@pytest.mark.parametrize(
    ("engine", "remedy"),
    [
        ({"backend": "local", "base_url": ["http://a:1"]}, ERROR),
        ({"backend": "vllm", "in_process": True, "base_url": []}, ERROR),
        ({"backend": "vllm", "base_url": ["http://a:1"]}, SERVERS),
        ({"backend": "auto", "base_url": ["http://a:1"]}, SERVERS),
    ],
)
def test_a_failed_engine_stops_the_run_at_once_and_only_given_servers_are_to_be_looked_at(engine, remedy):
    monitor = Monitor({"inference": engine})
    row = {"stage": "ppo", "step": 1, **HEALTHY, "reward/mean": None, "episode/failed": 1.0}
    (finding,) = monitor.add(row, error="EngineError: episode 0: the model failed")
    assert finding.policy == "stop" and remedy in finding.action and "the model failed" in finding.observation


def test_what_looks_like_a_failure_is_none():
    for rows, settings in (
        ([{"episode/max_steps": 1.0}] * 5, {}),  # learned: it was not so from the start
        ([{"weight_change": 0.3}] * 5, {"model": {"lora_rank": 16}}),  # small factors of adapters
        ([{"logprob_difference_mean": math.nan}] * 5, {}),
        ([{**EQUAL, "reward/mean": 1.0}] * 12, {}),  # solved
        ([{**EQUAL, "kl_teacher": 0.1}] * 12, {}),  # a teacher gives another signal
        ([{"grad_norm": 80.0}], {}),  # clipped
        ([{"tool/look/bad_arguments": 1.0, "tool/look/calls": 1 / 256}] * 3, {}),  # one call
        (STEPS, {"checks": {"policies": {"equal_rewards": "off"}}}),
    ):
        assert findings_of(*rows, settings=settings) == [], rows[0]


def test_a_remedy_names_the_setting_that_keeps_the_policy():
    rows = [{"weight_change": 1e-11, "learning_rate": 1e-12}] * 5
    (finding,) = findings_of(*rows, settings={"training": {"learning_rate": 1e-12}}, healthy=0)
    assert "training.learning_rate=1e-12" in finding.observation and "training.learning_rate" in finding.action


def test_one_turn_is_too_few_if_half_of_the_episodes_end_there():
    rows = [{"episode/max_turns": 0.6}] * 5
    (finding,) = findings_of(*rows, settings={"inference": {"max_turns": 1}}, healthy=0)
    assert "raise inference.max_turns" in finding.action
    assert not findings_of(*rows, settings={"inference": {"max_turns": 2}}, healthy=0)


@pytest.mark.parametrize(("share", "policy"), [(0.2, "warn"), (0.7, "stop")])
def test_log_probabilities_stop_a_run_before_its_update(share, policy):
    monitor = Monitor({})
    (finding,) = monitor.before_update({"logprob_difference_mean": share})
    assert (finding.policy, finding.start_step) == (policy, 1)
    assert monitor.history.iterations == []  # the row is not kept


def test_a_reward_that_rises_while_answers_get_worse():
    for matches, rise, count, is_found in (
        ((0.8, 0.4), 0.3, 100, True),
        ((0.8, 0.75), 0.3, 100, False),
        ((0.8, 0.4), -0.3, 100, False),
        ((0.8, 0.4), 0.3, 10, False),  # four questions: chance
    ):
        monitor, found = Monitor({"training": {"num_validation_questions": 100}}), []
        for number, match in enumerate(matches):
            for step in range(5 * number + 1, 5 * number + 6):
                found += monitor.add({"stage": "ppo", "step": step, **HEALTHY, "reward/mean": 0.5 + rise * number})
            validation = {"exact_match": match, "episode/count": count}
            found += monitor.add({"stage": "validation", "step": 5 * number + 5, **validation})
        assert [finding.check for finding in found] == ["reward_hacking"] * is_found
        assert all("from 0.8 to 0.4" in finding.observation and "iteration 5" in finding.action for finding in found)


def test_calls_that_are_not_run_are_found_after_three_iterations():
    (finding,) = findings_of(*[{}] * 3, healthy=0, unread=UNREAD)
    assert finding.observation == "6 of 8 sampled episodes write a call of 'look' that is not run: '#call look {}'"
    assert (finding.check, finding.action, finding.start_step) == ("unread_calls", UNREAD.remedy, 1)
    assert not findings_of(*[{}] * 2, healthy=0, unread=UNREAD)
    assert not findings_of(*[{}] * 9, unread=UnreadCalls(num_episodes=64, count=6))


# -- the monitor -----------------------------------------------------------------------------------------------------


def failing(step):
    return {"stage": "ppo", **HEALTHY, "tool/look/raised": 1.0, "step": step, "reward/mean": step / 10}


def test_a_problem_is_reported_once_or_as_long_as_it_must_stop_the_run():
    monitor = Monitor({})
    reported = [len(monitor.add(failing(step))) for step in range(1, 9)]
    assert reported == [0, 0, 1, 0, 0, 0, 0, 0]
    monitor = Monitor({"checks": {"policies": {"tool_fails": "stop"}}})
    assert [[each.policy for each in monitor.add(failing(step))] for step in (1, 2, 3, 4)] == [
        [],
        [],
        ["stop"],
        ["stop"],
    ]
    monitor = Monitor({"checks": {"policies": {"tool_fails": "off"}}})
    assert not any(monitor.add(failing(step)) for step in range(1, 9))


def test_an_unknown_check_in_the_settings_is_refused():
    with pytest.raises(SettingsError, match=r"no check 'tool_fail'\. Did you mean 'tool_fails'"):
        Monitor({"checks": {"policies": {"tool_fail": "stop"}}})


def test_null_in_the_file_is_no_number_and_other_stages_are_ignored():
    monitor = Monitor({})
    assert monitor.add({"stage": "sft", "step": 1, "loss": None}) == []
    (finding,) = monitor.add({"stage": "ppo", "step": 1, **HEALTHY, "grad_norm": None, "num_skipped_steps": 2})
    assert math.isnan(monitor.history.iterations[0]["grad_norm"]) and finding.check == "not_finite"


def test_a_check_of_the_users_own_runs_beside_the_others():
    @check("too_good", "iteration")
    def too_good(history):
        if history.iterations[-1]["reward/mean"] > 0.9:
            yield Finding("a mean reward of 1", "look for a leak", start_step=history.step)

    try:
        (finding,) = findings_of({"reward/mean": 1.0})
        assert str(finding) == "a mean reward of 1. look for a leak"
        assert (finding.check, finding.policy, finding.start_step, finding.step) == ("too_good", "warn", 7, 7)
    finally:
        del CHECKS[-1]
