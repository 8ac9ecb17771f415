"""Each guard finds its failure in a few rows of metrics, with the likely cause first, and nothing in healthy rows."""

from __future__ import annotations

import json
import math
import sys

import pytest

from midthought.cli import main
from midthought.errors import CheckpointError, SettingsError
from midthought.guards.command import judge
from midthought.guards.finding import Finding, to_lines
from midthought.guards.monitor import Monitor
from midthought.guards.registry import GUARDS, guard

HEALTHY = {
    "reward/mean": 0.5,
    "reward/std": 0.5,
    "reward/correct": 0.5,
    "episode/count": 8,
    "episode/calls": 1.0,
    "episode/policy_tokens": 60.0,
    "episode/response_tokens": 90.0,
    "episode/length": 0.1,
    "episode/failed": 0.0,
    "episode/repetition": 0.05,
    "episode/empty_thoughts": 0.0,
    "episode/invalid_calls": 0.0,
    "episode/no_calls_left": 0.0,
    "episode/repeated_calls": 0.0,
    "tool/look/calls": 1.0,
    "tool/look/failures": 0.0,
    "tool/look/bad_arguments": 0.0,
    "tool/look/raised": 0.0,
    "tool/look/timed_out": 0.0,
    "tool/look/unavailable": 0.0,
    "time/tool/look_seconds": 0.1,
    "time/episode/tool_seconds": 0.1,
    "time/episode/engine_seconds": 2.0,
    "time/rollout_seconds": 3.0,
    "batch/num_episodes": 8,
    "num_optimizer_steps": 2,
    "num_skipped_steps": 0,
    "grad_norm": 0.5,
    "weight_change": 1e-4,
    "step_size": 0.3,
    "episode/right": 0.6,
    "episode/reward_if_right": 1.0,
    "episode/reward_if_wrong": 0.0,
    "episode/top_reward": 0.6,
    "value_loss": 0.1,
    "approx_kl": 0.001,
    "entropy": 0.5,
    "logprob_difference_mean": 1e-6,
    "logprob_difference_max": 1e-5,
}
CONTENT = {"reward/mean": 0.98, "reward/std": 0.1, "episode/top_reward": 0.95, "reward/correct": math.nan}
EARNED = ("episode/reward_if_right", "episode/reward_if_wrong")
CRASHED = {"reward/mean": 0.0, "reward/std": 0.0, "reward/correct": 0.0}


def findings_of(*rows, settings=None, healthy=6):
    """What is found in healthy iterations with these after them; `healthy`: how many."""
    monitor = Monitor(settings or {})
    for number, changed in enumerate([{}] * healthy + list(rows), start=1):
        mean = 0.5 + 0.01 * (number % 3)
        monitor.add({"stage": "ppo", "step": number, **HEALTHY, "reward/mean": mean, **changed})
    return monitor.findings


FAILURES = {
    "truncated: the budget": (0, [{"episode/length": 1.0}] * 5, "truncated", "max_tokens=256 is too small"),
    "truncated: tool results": (
        0,
        [{"episode/length": 1.0, "episode/response_tokens": 256.0}] * 5,
        "truncated",
        "tool results fill",
    ),
    "truncated: later": (6, [{"episode/length": 1.0}] * 5, "truncated", "became longer during training"),
    "longer": (
        6,
        [{"episode/policy_tokens": 130.0 + 9 * n, "reward/words": 1.3 + 0.1 * n} for n in range(5)],
        "length_drift",
        "reward/words changed with the length",
    ),
    "shorter, because the policy broke": (
        6,
        [{"episode/policy_tokens": 5.0, **CRASHED}] * 3,
        "length_drift",
        "steps that are too large",
    ),
    "empty thoughts": (6, [{"episode/empty_thoughts": 1.0}] * 3, "empty_thoughts", "without a thought"),
    "repetition": (6, [{"episode/repetition": 0.9, **CRASHED}] * 3, "repetitive_text", "steps that are too large"),
    "no calls": (
        6,
        [{"episode/calls": 0.0, "reward/cost": 0.0}] * 3,
        "tool_unused",
        "a call costs more than it earns: reward/cost",
    ),
    "the limit of calls": (
        6,
        [{"episode/no_calls_left": 1.0, "episode/calls": 6.0}] * 3,
        "tool_limit",
        "the reward pays for calls",
    ),
    "the same call": (
        6,
        [{"episode/repeated_calls": 0.8, "episode/calls": 5.0, "tool/look/raised": 0.9}] * 3,
        "repeated_calls",
        "the tool fails (90%",
    ),
    "a tool that raises": (6, [{"tool/look/raised": 1.0}] * 3, "tool_fails", "look raises"),
    "a tool that is late": (6, [{"tool/look/timed_out": 0.8}] * 3, "tool_fails", "tool_timeout_seconds=10"),
    "wrong arguments": (6, [{"tool/look/bad_arguments": 0.8}] * 3, "tool_fails", "wrong arguments"),
    "a tool that answers all alike": (
        0,
        [{"tool/look/other_results": 0.0, "tool/look/without_result": 1.0}] * 10,
        "tool_fails",
        "an error message as a result",
    ),
    "no call at all": (
        0,
        [{"episode/tools": 1, "episode/calls": 0.0}] * 10,
        "tool_unused",
        "it was taught another one",
    ),
    "unknown tools": (6, [{"episode/invalid_calls": 0.9}] * 3, "tool_fails", "does not know the tool's name"),
    "a slow tool": (
        6,
        [{"time/tool/look_seconds": 4.0, "time/episode/tool_seconds": 4.0}] * 3,
        "tool_slow",
        "look is slow",
    ),
    "a slow reward": (6, [{"time/rollout_seconds": 30.0}] * 3, "starved_engine", "the reward function is slow"),
    "random samples of a policy that wrote text": (
        6,
        [{"entropy": 4.7}] * 3,
        "random_samples",
        "steps that are too large",
    ),
    "all rewards are larger": (
        6,
        [{"value_loss": 80.0, "reward/mean": 500.0, "reward/std": 0.0}],
        "spike",
        "rewards of another size",
    ),
    "updates that change nothing": (
        0,
        [{"weight_change": 1e-11, "step_size": 0.3, "learning_rate": 1e-12}] * 5,
        "policy_unchanged",
        "training.learning_rate=1e-12",
    ),
    "a part that the model does not use": (
        0,
        [{"weight_change": 0.0, "step_size": 0.0, "learning_rate": 1e-3}] * 5,
        "policy_unchanged",
        "frozen parameters",
    ),
    "wrong answers earn more": (
        0,
        [{"episode/right": 0.5, "episode/reward_if_right": 0.1, "episode/reward_if_wrong": 0.9}] * 5,
        "reward_misjudges",
        "the sign of the reward",
    ),
    "a reward of the length": (
        0,
        [
            {
                "reward/std": 0.1,
                "episode/reward_by_length": 0.98,
                "episode/reward_if_right": 0.3,
                "episode/reward_if_wrong": 0.4,
            }
        ]
        * 5,
        "reward_misjudges",
        "the reward grows with the length",
    ),
    "a reward of the prompt": (
        0,
        [{"episode/same_prompt": 4, "episode/same_prompt_std": 0.0, **dict.fromkeys(EARNED, 0.5)}] * 5,
        "reward_misjudges",
        "the reward depends on the prompt and not on the answer",
    ),
    "a random reward": (
        0,
        [{"episode/same_text": 4, "episode/same_text_std": 0.5}] * 5,
        "reward_misjudges",
        "the reward is random",
    ),
    "a constant reward": (
        0,
        [{**CONTENT, "reward/mean": 1.0, "reward/std": 0.0, **dict.fromkeys(EARNED, 1.0)}] * 5,
        "reward_misjudges",
        "or measures what all of these texts share",
    ),
    "gold answers with a unit": (
        0,
        [{"episode/right": 0.0, "episode/nearly_right": 0.7}] * 10,
        "never_right",
        "answers hold the gold answer",
    ),
    "gold answers of other rows": (
        0,
        [{"episode/right": 0.1, "episode/right_by_chance": 0.4}] * 10,
        "never_right",
        "gold answers belong to other rows",
    ),
    "no right answer": (0, [{"episode/right": 0.0}] * 10, "never_right", "too hard for the policy"),
    "a step of a third of the weights": (6, [{"weight_change": 0.3}], "steps_too_large", "too large"),
    "a judge that is content with wrong answers": (
        0,
        [{**CONTENT, "episode/right": 0.2, "episode/reward_if_right": 1.0, "episode/reward_if_wrong": 0.98}] * 5,
        "reward_misjudges",
        "content with nearly every answer",
    ),
    "a judge that is always content": (
        0,
        [{**CONTENT, "episode/right": math.nan}] * 5,
        "reward_misjudges",
        "content with nearly every answer",
    ),
    "right answers that are paid like wrong ones": (
        0,
        [{"reward/mean": -1.0, "reward/std": 0.0, "episode/reward_if_right": -1.0, "episode/reward_if_wrong": -1.0}]
        * 10,
        "no_reward_variance",
        "does not tell right answers from wrong ones",
    ),
    "right answers that are gone": (
        6,
        [{"episode/right": 0.0, **CRASHED}] * 5,
        "right_answers_lost",
        "steps that are too large",
    ),
    "the limit of turns": (0, [{"episode/max_turns": 1.0}] * 5, "turn_limit", "does not end its episodes"),
    "the limit of steps": (0, [{"episode/max_steps": 1.0}] * 5, "turn_limit", "does not end its episodes"),
    "truncated: replies": (
        0,
        [{"episode/length": 1.0, "episode/response_tokens": 256.0, "episode/calls": 0.0}] * 5,
        "truncated",
        "replies of the environment fill",
    ),
    "truncated: a result that does not fit": (
        0,
        [{"episode/length": 1.0, "episode/response_tokens": 60.0, **CRASHED}] * 5,
        "truncated",
        "a tool result does not fit into the rest of inference.max_tokens=256",
    ),
    "entropy": (6, [{"entropy": 0.001, "reward/std": 0.01}] * 5, "entropy_collapse", "one answer gets"),
    "entropy and KL": (6, [{"entropy": 0.001, "approx_kl": 0.2}] * 5, "entropy_collapse", "training.learning_rate"),
    "gradient": (6, [{"grad_norm": 800.0, "reward/std": 90.0}], "spike", "rewards of another size"),
    "gradient, and lower rewards after it": (
        6,
        [{"grad_norm": 80.0}, *[{"reward/mean": 0.1}] * 3],
        "spike",
        "steps that are too large",
    ),
    "gradients that stay large": (6, [{"grad_norm": 80.0}] * 4, "spike", "steps that are too large"),
    "value": (6, [{"value_loss": 80.0}], "spike", "steps that are too large"),
    "KL of an update": (0, [{"approx_kl": 0.9}], "spike", "steps that are too large"),
    "stale tokens": (6, [{"partial/stale_token_share": 0.8}] * 3, "stale_share", "long compared with an iteration"),
    "some gradients": (6, [{"num_skipped_steps": 1}], "not_finite", "weights that are too large"),
    "huge rewards": (6, [{"num_skipped_steps": 2, "reward/mean": 1e31}], "not_finite", "rewards of this size"),
    "log-probabilities": (6, [{"logprob_difference_mean": 0.2}], "logprob_difference", "is random"),
    "equal rewards of the episodes that do not fail": (
        0,
        [{"reward/mean": 1.0, "reward/std": 0.0, "episode/failed": 0.3}] * 10,
        "no_reward_variance",
        "episodes fail, and have no reward that could differ",
    ),
    "equal rewards": (0, [{"reward/mean": 1.0, "reward/std": 0.0}] * 10, "no_reward_variance", "does not tell"),
    "collapse": (6, [{**CRASHED, "entropy": 0.01}] * 10, "policy_collapsed", "steps that are too large"),
    "a judge that returns 0 for every error": (6, [CRASHED] * 10, "policy_collapsed", "the reward function has failed"),
    "rewards that differ by rounding": (
        0,
        [{"reward/mean": 1.0 + n * 1e-8, "reward/std": 1e-7} for n in range(10)],
        "no_reward_variance",
        "does not tell",
    ),
    "a part of the episodes": (6, [{"episode/failed": 0.6}] * 5, "some_episodes_fail", "trajectories.jsonl"),
    "truncated: the policy broke": (
        6,
        [{"episode/length": 1.0, **CRASHED}] * 5,
        "truncated",
        "steps that are too large",
    ),
}


def test_healthy_rows_have_no_finding():
    assert findings_of(healthy=60) == []


def test_a_clipped_gradient_that_does_no_harm_is_not_reported():
    assert findings_of({"grad_norm": 80.0}, *[{}] * 6) == findings_of(*[{"grad_norm": 80.0}] * 2, *[{}] * 6) == []


@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_is_found_with_its_cause_first(name):
    healthy, rows, expected, cause = FAILURES[name]
    settings = {"inference": {"max_tokens": 256}}
    costs = [{"reward/cost": -0.1}] * healthy if name == "no calls" else [{}] * healthy
    found = findings_of(*costs, *rows, settings=settings, healthy=0)
    (finding,) = [each for each in found if each.guard == expected]
    assert cause in finding.causes[0]
    assert finding.start_step == healthy + 1
    assert finding.action and finding.observation
    assert expected in to_lines(found)[0] or len(found) > 1


@pytest.mark.parametrize("logged", [{"entropy": 5.9}, {"entropy": math.nan, "episode/sampled_nats": 5.8}])
def test_a_high_temperature_is_the_first_cause_of_what_random_samples_do(logged):
    settings = {"inference": {"temperature": 5.0, "max_tokens": 60}}
    rows = [{**logged, **CRASHED, "episode/length": 1.0}] * 10
    found = {finding.guard: finding for finding in findings_of(*rows, settings=settings, healthy=0)}
    assert found["random_samples"].start_step == 1 and found["random_samples"].step == 3
    for name in ("random_samples", "truncated", "no_reward_variance"):
        assert "inference.temperature=5" in found[name].causes[0], found[name]


def test_one_turn_is_too_few_if_half_of_the_episodes_end_there():
    rows = [{"episode/max_turns": 0.6}] * 5
    (finding,) = findings_of(*rows, settings={"inference": {"max_turns": 1}}, healthy=0)
    assert finding.guard == "turn_limit" and "inference.max_turns=1 is too small" in finding.causes[0]
    assert not findings_of(*rows, settings={"inference": {"max_turns": 2}}, healthy=0)


@pytest.mark.parametrize("name", ["episode/max_turns", "episode/max_steps"])
def test_episodes_that_are_cut_and_masked_are_reported_as_left_out(name):
    settings = {"training": {"mask_truncated_episodes": True}}
    (finding,) = findings_of(*[{name: 1.0}] * 5, settings=settings, healthy=0)
    assert "mask_truncated_episodes=true leaves them out of the loss" in finding.observation
    (finding,) = findings_of(*[{name: 1.0}] * 5, healthy=0)
    assert "mask_truncated" not in finding.observation


def test_a_policy_that_learns_to_reach_the_limit_of_steps_is_not_reported():
    assert not findings_of(*[{"episode/max_steps": 1.0}] * 5, healthy=6)


@pytest.mark.parametrize(
    ("temperature", "nats", "is_found"), [(0.02, 1e-4, True), (0.02, 0.2, False), (1.0, 1e-4, False)]
)
def test_a_low_temperature_without_exploration_is_reported_after_five_iterations(temperature, nats, is_found):
    rows = [{"episode/sampled_nats": nats}] * 4 + [{"episode/sampled_nats": 0.5}, {"episode/sampled_nats": nats}]
    found = findings_of(*rows, settings={"inference": {"temperature": temperature}}, healthy=0)
    assert [(each.guard, each.start_step, each.step) for each in found] == [("no_exploration", 1, 5)] * is_found


@pytest.mark.parametrize(
    "row",
    [
        {"episode/reward_by_length": 0.95, "episode/reward_if_wrong": 0.2},
        {"episode/same_text": 4, "episode/same_text_std": 0.05},
        {"episode/same_prompt": 4, "episode/same_prompt_std": 0.0},
        {"episode/right": 0.35, "episode/right_by_chance": 0.4},
        {"episode/right": 0.0, "episode/nearly_right": 0.7, "reward/correct": math.nan},  # a summary, judged otherwise
        {"tool/look/other_results": 0.0, "tool/look/without_result": 0.0},  # a tool that only confirms
    ],
)
def test_a_reward_that_follows_right_answers_may_follow_other_things_too(row):
    assert findings_of(*[row] * 20, healthy=0) == []


def test_no_right_answer_is_reported_without_a_part_that_judges_it_if_the_rewards_are_equal():
    row = {"episode/right": 0.0, "reward/correct": math.nan, "reward/std": 0.0}
    assert "never_right" in [each.guard for each in findings_of(*[row] * 10, healthy=0)]


def test_the_steps_of_adapters_are_not_compared_with_their_small_factors():
    rows = [{"weight_change": 0.3}] * 5
    assert findings_of(*rows, settings={"model": {"lora_rank": 16}}) == []
    assert [each.guard for each in findings_of(*rows, settings={"model": {"lora_rank": 0}})] == ["steps_too_large"]


@pytest.mark.parametrize("settings", [{}, {"inference": {"temperature": 1.2}}])
def test_a_model_that_was_never_taught_is_random_without_a_finding(settings):
    found = findings_of(*[{"entropy": 5.9}] * 10, settings=settings, healthy=0)
    assert "random_samples" not in [finding.guard for finding in found]


@pytest.mark.parametrize(
    ("training", "row", "guard", "cause"),
    [
        (
            {"entropy_coef": 10.0},
            {"episode/policy_tokens": 130.0, "entropy": 3.0, **CRASHED},
            "length_drift",
            "entropy_coef=10",
        ),
        ({"kl_coef": 100.0}, {"kl_reference": 0.1}, "kl_outweighs_reward", "training.kl_coef is too large"),
        ({"kl_loss_coef": 1e3}, {"kl_reference": 0.1}, "kl_outweighs_reward", "training.kl_loss_coef is too large"),
    ],
)
def test_a_coefficient_that_is_too_large_is_the_cause(training, row, guard, cause):
    found = findings_of(*[row] * 3, settings={"training": training})
    assert cause in next(each for each in found if each.guard == guard).causes[0]
    assert guard not in [
        each.guard for each in findings_of(*[{"kl_reference": 0.1}] * 3, settings={"training": {"kl_coef": 0.05}})
    ]


def validation(step, exact_match):
    return {"stage": "validation", "step": step, "exact_match": exact_match}


@pytest.mark.parametrize(
    ("matches", "rise", "is_found"), [((0.8, 0.4), 0.3, True), ((0.8, 0.75), 0.3, False), ((0.8, 0.4), -0.3, False)]
)
def test_a_reward_that_rises_while_answers_get_worse_is_reported_with_the_part_that_rose(matches, rise, is_found):
    monitor = Monitor({})
    for number, match in enumerate(matches):
        for step in range(5 * number + 1, 5 * number + 6):
            more = {"reward/mean": 0.5 + rise * number, "reward/polite": rise * number}
            monitor.add({"stage": "ppo", "step": step, **HEALTHY, **more})
        monitor.add(validation(5 * number + 5, match))
    assert [finding.guard for finding in monitor.findings] == ["reward_hacking"] * is_found
    if is_found:
        assert "reward/polite rose most" in monitor.findings[0].causes[0]


def test_a_validation_before_the_first_iteration_is_compared_with_the_rewards_of_the_first():
    monitor = Monitor({})
    rows = [{"stage": "ppo", "step": step, **HEALTHY, "reward/mean": 0.2 * step} for step in range(1, 6)]
    for row in (validation(0, 0.8), *rows, validation(5, 0.2)):
        monitor.add(row)
    (finding,) = monitor.findings
    assert (finding.guard, finding.start_step) == ("reward_hacking", 0)


# -- the monitor -----------------------------------------------------------------------------------------------------


def test_a_problem_is_reported_once_and_the_finding_says_how_long_it_lasted():
    row = {"stage": "ppo", **HEALTHY, "tool/look/raised": 1.0}
    monitor = Monitor({})
    reported = [len(monitor.add(row | {"step": step, "reward/mean": step / 10})) for step in range(1, 9)]
    assert reported == [0, 0, 1, 0, 0, 0, 0, 0]
    (finding,) = monitor.findings
    assert (finding.start_step, finding.step, finding.last_step) == (1, 3, 8)


def test_a_problem_that_must_stop_the_run_is_returned_as_long_as_it_lasts():
    monitor = Monitor({"guards": {"policies": {"tool_fails": "stop"}}})
    row = {"stage": "ppo", **HEALTHY, "tool/look/raised": 1.0}
    assert [len(monitor.add(row | {"step": step, "reward/mean": step / 10})) for step in range(1, 6)] == [0, 0, 1, 1, 1]
    assert len(monitor.findings) == 1


def test_null_in_the_file_is_no_number_and_other_stages_are_ignored():
    monitor = Monitor({})
    assert monitor.add({"stage": "sft", "step": 1, "loss": None}) == []
    monitor.add({"stage": "ppo", "step": 1, **HEALTHY, "grad_norm": None, "num_skipped_steps": 2})
    assert math.isnan(monitor.history.iterations[0]["grad_norm"])
    assert [finding.guard for finding in monitor.findings] == ["not_finite"]


def test_a_guard_of_the_users_own_runs_beside_the_others():
    @guard("too_good")
    def too_good(history):
        if history.iterations[-1]["reward/mean"] > 0.9:
            yield Finding(observation="suspiciously good", start_step=history.step, causes=("a leak",))

    try:
        (finding,) = findings_of({"reward/mean": 1.0})
        assert str(finding) == "suspiciously good. Likely cause: a leak"
        assert (finding.guard, finding.policy, finding.start_step) == ("too_good", "warn", 7)
    finally:
        del GUARDS["too_good"]


def test_a_rollback_that_cannot_help_is_refused():
    with pytest.raises(SettingsError, match=r"tool_fails=rollback.*rollback is possible for empty_thoughts"):
        Monitor({"guards": {"policies": {"tool_fails": "rollback"}}})


# -- run folders -----------------------------------------------------------------------------------------------------


def write_run(path, rows, config=""):
    path.mkdir(exist_ok=True)
    (path / "config.yaml").write_text(config)
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_the_command_reads_a_run_folder_its_settings_and_its_errors(tmp_path):
    failed = {"stage": "ppo", "step": 1, **HEALTHY, "reward/mean": None, "reward/std": None, "episode/failed": 1.0}
    run = write_run(tmp_path / "run", [failed], "guards: {policies: {episodes_fail: warn, mine: stop}}\n")
    rows = [{"step": 1, "arm": "train", "error": error} for error in ("rare", "often", "often")]
    (run / "trajectories.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (finding,) = judge(run)
    assert (finding.guard, finding.policy, finding.causes[0]) == (
        "episodes_fail",
        "warn",
        "the most frequent error: often",
    )
    assert finding.observation.startswith("all 8 episodes of iteration 1 failed")


def test_a_run_that_ended_early_is_judged_by_what_there_is(tmp_path):
    rows = [{"stage": "ppo", "step": step, **HEALTHY, "reward/std": 0.0} for step in (1, 2, 3)]
    run = write_run(tmp_path / "run", rows)
    assert judge(run) == []
    (run / "summary.json").write_text("{}")
    assert [finding.guard for finding in judge(run)] == ["no_reward_variance"]


def test_the_command_prints_text_or_json_and_exits_with_1_if_there_is_a_finding(tmp_path, monkeypatch, capsys):
    rows = [{"stage": "ppo", "step": step, **HEALTHY, "tool/look/raised": 1.0} for step in (1, 2, 3)]
    run = write_run(tmp_path / "run", rows)
    healthy = write_run(tmp_path / "healthy", [rows[0] | {"tool/look/raised": 0.0}])

    def output(*words):
        monkeypatch.setattr(sys, "argv", ["midthought", "guard", *words])
        with pytest.raises(SystemExit) as end:
            main()
        return end.value.code, capsys.readouterr().out

    code, text = output(str(run))
    assert code == 1
    assert text.startswith("tool_fails  (iteration 1 to 3, policy warn)\n  100% of the calls of look failed")
    code, text = output(str(run), "--json")
    (finding,) = json.loads(text)
    assert (code, finding["guard"], finding["subject"], finding["start_step"]) == (1, "tool_fails", "look", 1)
    assert output(str(healthy)) == (0, "No guard has a finding.\n")


def test_a_folder_without_metrics_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"has no metrics\.jsonl"):
        judge(tmp_path)
