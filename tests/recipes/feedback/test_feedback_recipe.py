"""The whole job through the command line, very small: warm-up, RL, evaluation, report; stages one by one; resuming."""

import json
from collections import Counter
from pathlib import Path

import pytest
from small_runs import FEEDBACK, summary, trajectories
from typer.testing import CliRunner

from midthought.cli import app
from midthought.errors import SettingsError
from midthought.feedback.convert import convert
from midthought.recipes.feedback.settings import FeedbackRecipeConfig
from midthought.recipes.feedback.tasks import FeedbackTasks, prepare_problems
from midthought.trainer.checkpoint import RunProgress

SMALL = [word for word in FEEDBACK if word != "inference.deterministic=true"]
SMALL += ["sft.num_steps=3", "problems.num_train=12", "training.num_validation_questions=2", "problems.num_test=4"]
SMALL += ["training.num_train_iters=2", "training.batch_size=4", "training.validate_every=1"]


def train(run: Path, *words: str, code: int = 0) -> str:
    """Runs the command, which must end with this exit code. Returns what it printed, without line ends."""
    result = CliRunner().invoke(app, ["train", "feedback", *SMALL, "--run", str(run), *words], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return " ".join(result.output.split())


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
    path = tmp_path_factory.mktemp("feedback") / "run"
    return path, train(path)


def test_the_whole_job_leaves_both_policies_the_figures_and_the_report(whole_run):
    path, output = whole_run
    found = summary(path)
    assert all((path / name).is_file() for name in ("warmup/config.json", "policy/config.json", "report.html"))
    arms = {f"after.{arm}exact_match" for arm in ("", "sampled.", "none.", "wrong.")}
    assert {"before.first_try", "after.first_try", *arms} <= found.keys()
    assert found["num_questions"] == 4 and "First try" in output and "Sampled" in output
    assert "Sampled exact match on 4 held-out questions" in (path / "report.html").read_text("utf-8")


def test_a_warm_up_of_its_own_is_gone_on_from_without_a_warning(whole_run, tmp_path):
    output = train(tmp_path / "rl", "--stage", "rl", "--from", str(whole_run[0]))
    assert "A policy without demonstrations of the tool" not in output


def test_rl_without_a_warm_up_warns_that_the_tool_is_not_known_and_few_episodes_are_shown(tmp_path):
    words = ["--stage", "rl", "training.num_train_iters=1", "training.batch_size=10", "training.mini_batch_size=10"]
    output = train(tmp_path / "rl", *words, "sft.source=nowhere.parquet")  # nothing is demonstrated
    assert "A policy without demonstrations of the tool" in output
    arms = ("before", "before.sampled", "after", "after.sampled", "after.none", "after.wrong")
    written = Counter(row["arm"] for row in trajectories(tmp_path / "rl"))
    assert written == {**dict.fromkeys(arms, 4), "validation": 2, "train": 8}


def test_an_evaluation_that_was_killed_after_its_arms_leaves_every_episode_once(whole_run, tmp_path, monkeypatch):
    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RunProgress, "finish", killed)
        train(tmp_path / "again", "--stage", "evaluate", "--from", str(whole_run[0]), code=130)
    before = trajectories(tmp_path / "again")
    train(tmp_path / "again", "--resume")
    assert before and len(trajectories(tmp_path / "again")) == len(before)


# -- settings and problems --------------------------------------------------------------------------------------------


def test_hints_are_refused_where_there_is_nothing_to_calculate():
    with pytest.raises(SettingsError, match="holds no calculations"):
        FeedbackRecipeConfig(problems={"dataset": "gsm8k"})


@pytest.fixture
def problems(tmp_path):
    def write(name, count):
        rows = (json.dumps({"question": f"{name} {n}?", "answer": f"#### {n}"}) + "\n" for n in range(count))
        (tmp_path / f"{name}.jsonl").write_text("".join(rows))
        return str(tmp_path / f"{name}.jsonl")

    return write


def sizes(num_validation=100, **section):
    config = {"problems": section, "training": {"num_validation_questions": num_validation}}
    parts = prepare_problems(FeedbackRecipeConfig(**config, feedback={"critic": "outcome"}))
    prompts = [task.prompt for tasks in parts.values() for task in tasks]
    assert len(set(prompts)) == len(prompts), "no problem is in two parts"
    return {name: len(tasks) for name, tasks in parts.items()}


def test_problems_of_one_data_set_are_kept_apart_and_those_of_a_test_set_are_shared_by_test_and_validation(problems):
    assert sizes(num_train=40, num_validation=10) == {"test": 800, "validation": 10, "train": 40}
    gsm8k = {"dataset": "gsm8k", "source": problems("train", 12)}
    assert sizes(**gsm8k, num_test=100) == {"test": 4, "validation": 2, "train": 6}
    other = {"test_dataset": "gsm8k", "test_source": problems("test", 9)}
    assert sizes(**gsm8k, **other) == {"test": 6, "validation": 3, "train": 12}
    with pytest.raises(SettingsError, match="too few problems"):
        sizes(dataset="gsm8k", source=problems("one", 1))


def test_a_question_is_held_out_also_in_another_form_and_training_takes_any_others(problems, tmp_path):
    """The prompts of math and gsm8k ask for the answer in different words."""
    source = Path(problems("train", 40))
    rows = [
        {"problem": row["question"].replace(" ", "  ").upper(), "answer": "1"} for row in map(json.loads, source.open())
    ]
    (tmp_path / "math.jsonl").write_text("\n".join(map(json.dumps, [*rows, *rows])))
    test = {"test_dataset": "math", "test_source": str(tmp_path / "math.jsonl"), "num_test": 9}
    found = FeedbackRecipeConfig(
        problems={"dataset": "gsm8k", "source": str(source), "num_train": 5, **test},
        training={"num_validation_questions": 9},
        feedback={"critic": "outcome"},
    )
    parts = prepare_problems(found)
    numbers = {name: [int(task.labels["question"].split()[1][:-1]) for task in tasks] for name, tasks in parts.items()}
    asked = [number for each in numbers.values() for number in each]
    assert len(asked) == len(set(asked)) == 9 + 9 + 5
    assert numbers["train"] != sorted(numbers["train"]), "not the first ones of a sorted file"


def test_converted_conversations_about_held_out_problems_are_not_demonstrated(problems, tmp_path):
    source, log = problems("train", 12), {"iteration": 0, "is_correct": True, "feedback": ""}
    rows = [{**log, "original_question": f"train {n}?", "full_response": [f"\\boxed{{{n}}}"]} for n in range(12)]
    (tmp_path / "log.jsonl").write_text("\n".join(map(json.dumps, rows)))
    convert(tmp_path / "log.jsonl", tmp_path / "sft.parquet", dataset="gsm8k")
    words = ["problems.dataset=gsm8k", f"problems.source={source}", "feedback.critic=outcome"]
    output = train(tmp_path / "run", "--stage", "sft", *words, f"sft.source={tmp_path / 'sft.parquet'}")
    assert "6 of 12 conversations left out: held-out problems" in output


def test_a_validation_has_as_many_problems_as_are_asked_for_at_most():
    config = FeedbackRecipeConfig(problems={"num_train": 4, "num_test": 1}, training={"num_validation_questions": 9})
    tasks = FeedbackTasks(config, prepare_problems(config))
    assert [len(tasks.held_out(count)) for count in (3, 100)] == [3, 9]
