"""What the doctor says about healthy runs: nothing, and what it could not check; how it is called."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from doctor_runs import ROWS, SMALL, lookup
from small_runs import SETTINGS
from typer.testing import CliRunner

from midthought import SettingsError, Trainer
from midthought.cli import app
from midthought.doctor.examination import Report, examine
from midthought.doctor.registry import CHECKS, check
from midthought.doctor.setup import Setup, SkippedError
from midthought.guards.finding import Finding
from midthought.pretrained import save_model
from midthought.recipes import find_recipe
from midthought.recipes.checkup import examine_recipe
from midthought.recipes.feedback.policy import make_small_policy
from midthought.trainer.checked_script import examine_script

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPT = """
from midthought import Trainer
rows = [{{"question": f"What is {{n}} plus 0?", "answer": n}} for n in range(4)]
trainer = Trainer(dataset=rows, rewards=["correct"], num_layers=1, hidden_size=64, progress=False, **{settings})
trainer.sft(lambda task: [{{"role": "assistant", "content": task.answer}}])
trainer.fit()
raise AssertionError("fit() returned")
"""


def healthy(taught, **changes) -> Trainer:
    return Trainer(dataset=ROWS, rewards=["correct"], tools=[lookup], algorithm="grpo", **taught, **SMALL, **changes)


def test_a_healthy_run_has_no_finding_and_every_check_runs(taught):
    with healthy(taught) as trainer:
        report = trainer.check()
    assert report.is_healthy, report.to_lines()
    assert set(report.skipped) == {"disk"}
    assert {*report.passed, *report.skipped} == set(CHECKS)


def test_fit_refuses_only_what_cannot_work(taught, caplog):
    with healthy(taught, max_seq_len=16) as trainer, pytest.raises(SettingsError, match="12 of 12 prompts"):
        trainer.fit()
    assert trainer.iteration == 0
    rows = [{**row, "question": f"{row['question']} Answer: {row['answer']}"} for row in ROWS]
    settings = {**SMALL, "max_tokens": 2, "num_train_iters": 1}
    with Trainer(dataset=rows, rewards=["correct"], algorithm="grpo", **taught, **settings) as trainer:
        trainer.fit()
    assert "answer_in_prompt: the prompts of 12 of 12 tasks state the gold answer" in caplog.text


def test_a_check_is_one_function_and_what_it_raises_does_not_end_a_run():
    @check("too_many_prompts", is_fast=True)
    def too_many_prompts(setup):
        yield Finding(observation="there are prompts", action="leave them out", policy="stop")

    @check("broken", is_fast=True)
    def broken(setup):
        raise KeyError("word")

    @check("elsewhere")
    def elsewhere(setup):
        raise SkippedError("no GPU")

    try:
        report = examine(Setup(config=find_recipe("podcast").config_class()()))
        fast = examine(Setup(config=find_recipe("podcast").config_class()()), fast_only=True)
    finally:
        for name in ("too_many_prompts", "broken", "elsewhere"):
            del CHECKS[name]
    assert [finding.guard for finding in report.findings] == ["too_many_prompts"]
    assert report.skipped["broken"] == "the check raised KeyError: 'word'" and report.skipped["elsewhere"] == "no GPU"
    assert "elsewhere" not in fast.skipped
    with pytest.raises(SettingsError, match=r"too_many_prompts: there are prompts\. leave them out"):
        fast.require_possible()


@pytest.mark.parametrize("name", ["podcast", "feedback"])
def test_the_doctor_is_silent_on_the_recipes_and_skips_the_policy_before_its_warm_up(name, tmp_path):
    report = examine_recipe(find_recipe(name), words=SETTINGS[name], run_path=tmp_path / "run")
    assert report.is_healthy, report.to_lines()
    sampling = {"episodes", "tools", "reward_variance", "never_solved", "always_solved", "isolation", "waiting"}
    assert set(report.skipped) == sampling
    assert not (tmp_path / "run").exists()


def test_of_another_machines_preset_only_what_is_missing_here_is_reported(tmp_path):
    report = examine_recipe(find_recipe("podcast"), config=Path("seed"), run_path=tmp_path / "run")
    assert {finding.guard for finding in report.findings} <= {"model", "memory", "disk", "engine"}
    assert "not on this machine" in next(each.observation for each in report.findings if each.guard == "model")
    assert {"calls", "gold_answer"} <= report.skipped.keys()


def test_the_doctor_samples_from_a_policy_that_the_run_starts_from(tmp_path):
    settings = find_recipe("feedback").begin(tmp_path, words=SETTINGS["feedback"])[0]
    save_model(*make_small_policy(settings.model, seed=0), tmp_path / "policy")
    words = [*SETTINGS["feedback"], "model.local_path=", "inference.max_tokens=24", "training.overlong_buffer_tokens=0"]
    report = examine_recipe(find_recipe("feedback"), words=words, from_path=tmp_path / "policy", run_path=tmp_path)
    assert {"episodes", "never_solved"} <= {finding.guard for finding in report.findings}
    assert not report.skipped


@pytest.mark.parametrize(
    ("name", "needs"),
    [
        ("gsm8k_calculator", ""),
        ("ppo_critic", ""),
        ("gymnasium_environment", "gymnasium"),
        ("mcp_tools", "mcp"),
        ("search_documents", "lancedb"),
        ("textarena_game", "textarena"),
        ("verifiers_environment", "verifiers"),
    ],
)
def test_the_doctor_is_silent_on_examples(name, needs):
    if needs:
        pytest.importorskip(needs)
    report = examine_script(EXAMPLES / f"{name}.py")
    assert report.is_healthy, report.to_lines()
    assert "calls" in report.passed


def test_a_script_that_ends_early_is_reported_with_its_own_words(tmp_path):
    with pytest.raises(SettingsError, match=r"before it called fit\(\) with: no data here$"):
        examine_script(_file(tmp_path, "raise SystemExit('no data here')"))
    with pytest.raises(SettingsError, match=r"with: 2; give its arguments after --$"):
        examine_script(
            _file(tmp_path, "import argparse; argparse.ArgumentParser(exit_on_error=True).parse_args(['x'])")
        )
    with pytest.raises(SettingsError, match=r"called no Trainer\.fit"):
        examine_script(_file(tmp_path, "import sys; sys.stdout.buffer.write(b'x'); sys.stdout.write('y')"))


def test_the_command_examines_a_script_up_to_fit_without_a_supervised_step(tmp_path):
    def doctor(name: str, text: str):
        (tmp_path / name).write_text(text)
        return CliRunner().invoke(app, ["doctor", str(tmp_path / name), "--json"])

    good = doctor("good.py", SCRIPT.format(settings={}))
    found = json.loads(good.stdout)
    assert good.exit_code == 0 and found["is_healthy"] and "gold_answer" in found["passed"]
    assert "supervised steps come first" in found["skipped"]["episodes"]
    bad = doctor("bad.py", SCRIPT.format(settings={"trackers": ["wandb"], "max_seq_len": 8, "algoritm": "grpo"}))
    (finding,) = json.loads(bad.stdout)["findings"]
    assert (
        bad.exit_code == 1 and finding["check"] == "setup" and "algorithm" in finding["observation"] + finding["action"]
    )
    with pytest.raises(SettingsError, match=r"called no Trainer\.fit"):
        examine_script(_file(tmp_path, "1 + 1"))


def _file(folder: Path, text: str) -> Path:
    (folder / "nothing.py").write_text(text)
    return folder / "nothing.py"


def test_a_report_as_text_names_remedies_and_groups_skipped_checks():
    finding = Finding(observation="it is late", causes=("the clock",), action="sleep", guard="time", policy="warn")
    report = Report(findings=[finding], passed=["disk"], skipped={"a": "no GPU", "b": "no GPU"}, seconds=1.0)
    assert report.to_lines() == [
        "time  (warning)",
        "  it is late",
        "  cause 1: the clock",
        "  try: sleep",
        "skipped: a, b: no GPU",
        "1 finding; passed: disk (1.0 s)",
    ]
