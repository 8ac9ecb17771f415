"""Healthy runs give no finding, before and during them; how the checks are called, switched off, and extended."""

from __future__ import annotations

import json
import logging
import socket
from pathlib import Path

import pytest
from check_runs import ROWS, SMALL, lookup
from small_runs import SETTINGS
from typer.testing import CliRunner

from midthought import SettingsError, Trainer
from midthought.checks.examination import Report, Setup, SkippedError, examine
from midthought.checks.registry import CHECKS, Finding, check
from midthought.cli import app
from midthought.config import RecipeConfig
from midthought.feedback.settings import FeedbackSettings
from midthought.models.pretrained import save_model
from midthought.recipes import find_recipe
from midthought.recipes.checkup import examine_recipe
from midthought.recipes.feedback.demonstrations import make_small_policy
from midthought.recipes.feedback.settings import FeedbackRecipeConfig
from midthought.recipes.feedback.train import critics

TEMPLATE = Path(__file__).parents[1] / "chat_templates" / "qwen2_5.jinja"
OURS = [each for each in CHECKS if each.look.__module__.startswith("midthought.checks.")]
BEFORE = {each.name for each in OURS if each.when in ("fit", "check")}


def healthy(taught, **changes) -> Trainer:
    return Trainer(dataset=ROWS, rewards=["correct"], tools=[lookup], algorithm="grpo", **taught, **SMALL, **changes)


def test_there_are_twelve_checks_before_and_twelve_during_a_run():
    assert len(BEFORE) == len({each.name for each in OURS if each.when in ("scoring", "iteration")}) == 12


def test_a_healthy_run_has_no_finding_and_every_check_runs(taught, tmp_path, caplog):
    with healthy(taught, run_path=tmp_path / "run", learning_rate=1e-6, num_train_iters=6) as trainer:
        report = trainer.check()
        trainer.fit()
    assert report.is_healthy and not report.skipped, report.to_lines()
    assert set(report.passed) == BEFORE | {"critics"}  # the feedback recipe adds one
    assert not (tmp_path / "run/findings.jsonl").exists()
    assert not [record for record in caplog.records if record.name == "midthought.checks"]


def test_fit_refuses_only_what_cannot_work(taught, caplog):
    with healthy(taught, max_seq_len=16) as trainer, pytest.raises(SettingsError, match="12 of 12 prompts"):
        trainer.fit()
    assert trainer.iteration == 0
    with healthy(taught, kl_coef=20.0, num_train_iters=1) as trainer:
        trainer.fit()
    assert "movement: training.kl_coef=20" in caplog.text


def test_gold_answers_that_look_like_calls_or_hold_a_control_token_are_no_mistake(taught):
    for name, answer in (("json", '{{"tool": "f", "parameters": {{"x": {}}}}}'), ("in_thought", "red<|im_end|> {}")):
        rows = [{"question": f"Call {number}", "answer": answer.format(number)} for number in range(4)]
        with Trainer(dataset=rows, rewards=["correct"], call_format=name, **taught, **SMALL) as trainer:
            assert "tokens" in examine(trainer.setup, fast_only=True).passed


def test_a_check_can_be_switched_off_softened_or_made_to_stop(taught):
    policies = {"lengths": "off", "movement": "stop", "reward_variance": "off"}
    with healthy(taught, max_seq_len=16, kl_coef=20.0, checks={"policies": policies}) as trainer:
        report = examine(trainer.setup, fast_only=True)
    (finding,) = report.findings
    assert (finding.check, finding.policy) == ("movement", "stop") and "off" in report.skipped["lengths"]


def test_a_check_is_one_function_and_what_it_raises_does_not_end_a_run():
    @check("too_many_prompts", "fit")
    def too_many_prompts(setup):
        yield Finding("there are 3 prompts", "leave them out", policy="stop")

    @check("broken", "fit")
    def broken(setup):
        raise KeyError("word")

    @check("elsewhere", "check")
    def elsewhere(setup):
        raise SkippedError("no GPU")

    try:
        report, fast = examine(Setup(config=RecipeConfig())), examine(Setup(config=RecipeConfig()), fast_only=True)
    finally:
        del CHECKS[-3:]
    assert [finding.check for finding in report.findings] == ["too_many_prompts"]
    assert report.skipped["broken"] == "the check raised KeyError: 'word'" and report.skipped["elsewhere"] == "no GPU"
    assert "elsewhere" not in fast.skipped
    with pytest.raises(SettingsError, match=r"too_many_prompts: there are 3 prompts\. leave them out"):
        fast.require_possible()


def test_the_checks_own_texts_are_not_reported_as_demonstrations(taught, caplog):
    """Qwen2.5's template leaves out thoughts."""
    import copy

    tokenizer = copy.deepcopy(taught["tokenizer"])
    tokenizer.chat_template = TEMPLATE.read_text("utf-8")
    tokenizer.add_tokens(["<tool_call>", "</tool_call>"])
    with caplog.at_level(logging.WARNING), healthy({**taught, "tokenizer": tokenizer}) as trainer:
        examine(trainer.setup, fast_only=True)
    assert "demonstration" not in caplog.text


@pytest.mark.parametrize("name", ["podcast", "feedback"])
def test_recipes_are_healthy_and_their_policy_is_not_sampled_before_its_warm_up(name, tmp_path):
    report = examine_recipe(find_recipe(name), words=SETTINGS[name], run_path=tmp_path / "run")
    assert report.is_healthy, report.to_lines()
    assert {"episodes", "unread_calls", "reward_variance"} <= set(report.skipped) <= BEFORE
    assert not (tmp_path / "run").exists()


def test_of_another_machines_preset_only_what_is_missing_here_is_reported(tmp_path):
    report = examine_recipe(find_recipe("podcast"), config=Path("seed"), run_path=tmp_path / "run")
    assert {finding.check for finding in report.findings} <= {"machine", "servers"}
    assert "not on this machine" in next(each.observation for each in report.findings if each.check == "machine")
    assert {"calls", "reward"} <= report.skipped.keys()


def test_the_data_is_examined_also_if_the_model_is_not_on_this_machine(tmp_path):
    asked = ({"question": "Who?", "answer": "Ada", "labels": {"episode": f"e{number}"}} for number in range(20))
    (tmp_path / "own.jsonl").write_text("\n".join(map(json.dumps, asked)))
    words = [f"questions.path={tmp_path}/own.jsonl"]
    report = examine_recipe(find_recipe("podcast"), words=words, config=Path("seed"), run_path=tmp_path / "run")
    said = [finding.observation for finding in report.findings if finding.check == "tasks"]
    assert said == ["all 14 gold answers are 'Ada'", "14 tasks have 1 different prompt"]


def test_a_policy_of_a_run_needs_no_other_model_here_also_if_its_run_was_given_one(tmp_path):
    settings = find_recipe("feedback").begin(tmp_path, words=SETTINGS["feedback"])[0]
    save_model(*make_small_policy(settings.model, seed=0), tmp_path / "warmup")
    (tmp_path / "config.yaml").write_text("model: {local_path: some/model}")
    (tmp_path / "progress.json").write_text('{"is_given": true}')
    words = [
        *SETTINGS["feedback"],
        "problems.dataset=gsm8k",
        "feedback.critic=outcome",
    ]  # the demonstrations are missing
    report = examine_recipe(find_recipe("feedback"), words=words, from_path=tmp_path, run_path=tmp_path)
    assert [finding.check for finding in report.findings] == ["data"], report.to_lines()


def test_a_policy_that_the_run_starts_from_is_sampled(tmp_path):
    settings = find_recipe("feedback").begin(tmp_path, words=SETTINGS["feedback"])[0]
    save_model(*make_small_policy(settings.model, seed=0), tmp_path / "policy")
    words = [*SETTINGS["feedback"], "model.local_path=", "inference.max_tokens=24", "training.overlong_buffer_tokens=0"]
    report = examine_recipe(find_recipe("feedback"), words=words, from_path=tmp_path / "policy", run_path=tmp_path)
    assert {"episodes", "reward_variance"} <= {finding.check for finding in report.findings}
    assert not report.skipped


def test_a_critic_that_does_not_answer_is_found_before_a_run_with_feedback():
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    config = FeedbackRecipeConfig()
    assert not list(critics(Setup(config=config))) and not list(critics(Setup(config=RecipeConfig())))
    config.feedback = FeedbackSettings(servers=[address], model="critic")
    (found,) = critics(Setup(config=config))
    assert "reachable" in found.observation and "start the server" in found.action and found.policy == "stop"


def test_the_command_prints_the_report():
    done = CliRunner().invoke(app, ["doctor", "feedback", *SETTINGS["feedback"]])
    assert done.exit_code == int("No finding" not in done.stdout) and "data" in done.stdout.rpartition("passed: ")[2]
    assert "the warm-up comes first" in done.stdout


def test_a_report_as_text_names_remedies_and_groups_skipped_checks():
    finding = Finding("it is 3 hours late", "sleep", check="time")
    report = Report(findings=[finding], passed=["disk"], skipped={"a": "no GPU", "b": "no GPU"}, seconds=1.0)
    assert report.to_lines() == [
        "time  (warning)",
        "  it is 3 hours late",
        "  try: sleep",
        "skipped: a, b: no GPU",
        "1 finding; passed: disk (1.0 s)",
    ]
