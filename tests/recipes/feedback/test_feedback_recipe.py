"""The whole job through the command line, very small: warm-up, RL, evaluation, report; stages one by one; resuming."""

import json
from collections import Counter

import pytest
from small_runs import FEEDBACK
from typer.testing import CliRunner

from midthought.cli import app
from midthought.errors import SettingsError
from midthought.recipes.feedback.settings import FeedbackRecipeConfig
from midthought.recipes.feedback.tasks import FeedbackTasks, prepare_problems
from midthought.trainer.checkpoint import RunProgress

SMALL = [
    *[word for word in FEEDBACK if word != "inference.deterministic=true"],
    "sft.num_steps=3",
    "problems.num_train=12",
    "training.num_validation_questions=2",
    "problems.num_test=4",
    "training.num_train_iters=2",
    "training.batch_size=4",
    "training.validate_every=1",
]


def train(*words: str):
    return CliRunner().invoke(app, ["train", "feedback", *SMALL, *words], catch_exceptions=False)


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
    path = tmp_path_factory.mktemp("feedback") / "run"
    result = train("--run", str(path))
    assert result.exit_code == 0, result.output
    return path, result.output


def test_the_whole_job_leaves_both_policies_the_figures_and_the_report(whole_run):
    path, output = whole_run
    summary = json.loads((path / "summary.json").read_text())
    for folder in ("warmup", "policy"):
        assert (path / folder / "config.json").is_file()
    assert (path / "report.html").is_file()
    arms = {f"after.{arm}exact_match" for arm in ("", "none.", "wrong.")}
    assert {"before.first_try", "after.first_try", *arms} <= summary.keys()
    assert summary["num_questions"] == 4
    assert "First try" in output


def test_a_warm_up_of_its_own_is_gone_on_from_without_a_warning(whole_run, tmp_path):
    path, _ = whole_run
    result = train("--run", str(tmp_path / "rl"), "--stage", "rl", "--from", str(path))
    assert result.exit_code == 0, result.output
    assert "A policy without demonstrations of the tool" not in " ".join(result.output.split())


def test_rl_without_a_warm_up_warns_that_the_tool_is_not_known_and_few_episodes_are_shown(tmp_path):
    words = ["--stage", "rl", "training.num_train_iters=1", "training.batch_size=10", "training.mini_batch_size=10"]
    words += ["sft.source=nowhere.parquet"]  # nothing is demonstrated
    result = train("--run", str(tmp_path / "rl"), *words)
    assert result.exit_code == 0, result.output
    assert "A policy without demonstrations of the tool" in " ".join(result.output.split())
    lines = (tmp_path / "rl" / "trajectories.jsonl").read_text("utf-8").splitlines()
    arms = ("before", "before.sampled", "after", "after.sampled", "after.none", "after.wrong")
    written = Counter(json.loads(line)["arm"] for line in lines)
    assert written == {**dict.fromkeys(arms, 4), "validation": 2, "train": 8}


def test_an_evaluation_that_was_killed_after_its_arms_leaves_every_episode_once(whole_run, tmp_path, monkeypatch):
    def killed(*_):
        raise KeyboardInterrupt

    words, finish = ("--run", str(tmp_path / "again")), RunProgress.finish
    monkeypatch.setattr(RunProgress, "finish", killed)
    assert train(*words, "--stage", "evaluate", "--from", str(whole_run[0])).exit_code == 130
    log = tmp_path / "again" / "trajectories.jsonl"
    before = log.read_text("utf-8")
    monkeypatch.setattr(RunProgress, "finish", finish)
    result = train(*words, "--resume")
    assert result.exit_code == 0, result.output
    after = log.read_text("utf-8")
    assert before and len(after.splitlines()) == len(before.splitlines())


# -- settings and problems --------------------------------------------------------------------------------------------


def test_hints_are_refused_where_there_is_nothing_to_calculate():
    with pytest.raises(SettingsError, match="holds no calculations"):
        FeedbackRecipeConfig(problems={"dataset": "gsm8k"})


CRITIC = {"critic": "outcome"}


@pytest.fixture
def problems(tmp_path):
    def write(name, count):
        rows = (json.dumps({"question": f"{name} {n}?", "answer": f"#### {n}"}) + "\n" for n in range(count))
        (tmp_path / f"{name}.jsonl").write_text("".join(rows))
        return str(tmp_path / f"{name}.jsonl")

    return write


def sizes(num_validation=100, **section):
    config = {"problems": section, "training": {"num_validation_questions": num_validation}, "feedback": CRITIC}
    parts = prepare_problems(FeedbackRecipeConfig(**config))
    prompts = [task.prompt for tasks in parts.values() for task in tasks]
    assert len(set(prompts)) == len(prompts), "no problem is in two parts"
    return {name: len(tasks) for name, tasks in parts.items()}


def test_problems_of_one_data_set_are_kept_apart_and_those_of_a_test_set_are_shared_by_test_and_validation(problems):
    assert sizes(num_train=40, num_validation=10) == {"test": 800, "validation": 10, "train": 40}
    gsm8k = {"dataset": "gsm8k", "source": problems("train", 12)}
    assert sizes(**gsm8k, num_test=100) == {"test": 4, "validation": 2, "train": 6}
    other = {"test_dataset": "gsm8k", "test_source": problems("test", 9)}
    assert sizes(**gsm8k, **other) == {"test": 6, "validation": 3, "train": 12}


def test_a_validation_has_as_many_problems_as_are_asked_for_at_most():
    config = FeedbackRecipeConfig(problems={"num_train": 4, "num_test": 1}, training={"num_validation_questions": 9})
    tasks = FeedbackTasks(config, prepare_problems(config))
    assert [len(tasks.held_out(count)) for count in (3, 100)] == [3, 9]


def test_too_few_problems_are_told(problems):
    with pytest.raises(SettingsError, match="too few problems"):
        sizes(dataset="gsm8k", source=problems("one", 1))
