"""The short form: a trainer without a settings object; rewards, data sets and settings by name."""

import importlib.util
from typing import Any

import pytest
from small_environments import QUESTIONS, Colours, twice

from midthought import RewardError, SettingsError, Trainer, create_default_config
from midthought.env.rewards import NAMED_REWARDS, combine_rewards, named_rewards, used_tool
from midthought.errors import DataError, MissingExtraError
from midthought.trainer import tasks
from midthought.trainer.tasks import DatasetTasks, named_tasks
from midthought.types import Completion, Finish, Task, Trajectory, Turn

SMALL = {"batch_size": 4, "mini_batch_size": 4, "max_tokens": 12, "num_layers": 1, "hidden_size": 64, "progress": False}


def test_it_trains_without_a_settings_object_and_a_later_evaluation_is_in_the_report(tmp_path):
    rows = [{"question": f"What is {n} times 3?", "answer": f"{n} times 3.\n#### {3 * n}"} for n in range(4)]
    rewards, report = ["correct", (used_tool, 0.1), ("num_failed_calls", -0.2)], tmp_path / "run/report.html"
    given = {"validation": rows[:1], "tools": [twice], "rewards": rewards, "run_path": tmp_path / "run"}
    options = {"algorithm": "grpo", "num_train_iters": 1, "group_size": 2, "training": {"seed": 3}}
    with Trainer(dataset=rows, **given, **options, **SMALL) as trainer:
        training = trainer.config.training
        assert (training.algorithm, training.adv_estimator, training.seed) == ("grpo", "grpo", 3)
        assert (training.batch_size, trainer.config.inference.max_tokens) == (4, 12)
        result = trainer.fit()
        assert {"reward/correct", "reward/used_tool", "reward/num_failed_calls"} <= result.metrics.keys()
        assert "Reward of held-out episodes" not in report.read_text("utf-8")
        assert "exact_match" in trainer.evaluate()
    assert "Reward of held-out episodes" in report.read_text("utf-8")


def test_a_models_folder_is_a_name(tmp_path, talker):
    talker["model"].save_pretrained(tmp_path)
    talker["tokenizer"].save_pretrained(tmp_path)
    options = {"batch_size": 2, "mini_batch_size": 2, "max_tokens": 8, "progress": False}
    with Trainer(model=tmp_path, environment=Colours, device="cpu", lora_rank=0, **options) as trainer:
        assert trainer.config.model.local_path == str(tmp_path)
        assert trainer.model.config.vocab_size == talker["model"].config.vocab_size
    with Trainer(environment=Colours, **talker, **options) as trainer:
        assert trainer.model is talker["model"]


def test_settings_by_name_replace_those_of_a_config_and_of_the_preset():
    config = create_default_config(training={"clip_ratio": 0.1, "learning_rate": 3e-5})
    with Trainer(config, Colours, algorithm="dapo", clip_ratio_high=0.5, group_size=2, **SMALL) as trainer:
        training = trainer.config.training
        assert (training.clip_ratio, training.clip_ratio_high, training.learning_rate) == (0.2, 0.5, 3e-5)
    assert config.training.algorithm is None and config.training.batch_size != 4


ON_ROWS = {"environment": None, "dataset": QUESTIONS}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"learning_rat": 1}, "'learning_rat'.*Did you mean.*'learning_rate'"),
        ({"algorithm": "grpo", "training": {"algorithm": "ppo"}}, "training.algorithm is given as 'ppo' and as 'grpo'"),
        ({"batch_size": 4, "training": {"batch_size": 8}}, "training.batch_size is given as 4 and as 8; give it once"),
        ({"lr": 1}, r"unknown argument or setting 'lr'.*docs/coming_from\.md"),
        ({"datset": []}, "'datset'.*Did you mean 'dataset'"),
        ({"training": 3}, "training=3: it is a section"),
        ({"environment": None, "dataset": "gsm9k"}, "neither a file nor a data set.*Did you mean 'gsm8k'"),
        ({**ON_ROWS, "validation": "mth"}, "validation='mth' is neither a file nor"),
        ({**ON_ROWS, "max_steps": 100}, "max_steps=100: .*iterations is num_train_iters"),
        ({"config": {"training": {}}}, "must be a ConfigStore"),
        ({"tools": "calculate"}, "tools='calculate': give a list"),
        ({"tools": {"a": twice}}, "give a list"),
        ({"tools": len}, "@tool makes one"),
        ({"rewards": 3}, "rewards=3: give a list of names"),
        ({"rewards": ["corect"]}, "unknown reward 'corect'.*Did you mean 'correct'"),
        ({"rewards": [("correct", "0.5")]}, "the weight is a number"),
        ({"rewards": [("correct", None)]}, "correct"),
        ({"rewards": [("a", "b", "c", "d")]}, "is no reward function"),
        (
            {"rewards": ["num_calls", "exact_match"]},
            "'exact_match' compares with task.answer, which is empty in an envir",
        ),
        ({"environment": None, "dataset": [{"question": "Why?"}], "rewards": ["correct"]}, "answer"),
    ],
)
def test_what_is_unknown_or_wrong_is_named_with_what_is_near(options, message):
    with pytest.raises((SettingsError, RewardError, DataError), match=message):
        Trainer(**{"environment": Colours, **options})


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ("correct", [("correct", 1.0)]),
        (["correct", ("num_calls", -0.1)], [("correct", 1.0), ("num_calls", -0.1)]),
        ({"correct": 2, "numeric_match": 0.5}, [("correct", 2), ("numeric_match", 0.5)]),
        ((), []),
        (None, []),
        (("correct", "num_calls"), [("correct", 1.0), ("num_calls", 1.0)]),
    ],
)
def test_rewards_by_name_have_a_weight(rewards, expected):
    found = named_rewards(rewards)
    assert [(part.name, part.weight) for part in found] == expected
    assert all(part.function is NAMED_REWARDS[part.name] for part in found)


def test_a_lambda_is_named_by_its_place():
    for rewards, names in (
        (lambda trajectory: 1.0, {"reward_1": 1.0}),
        (["correct", (lambda trajectory: 1.0, 0.5)], {"correct": 1.0, "reward_2": 0.5}),
    ):
        parts = combine_rewards(named_rewards(rewards)).parts
        assert {name: weight for name, (weight, _) in parts.items()} == names


def test_a_generated_data_set_by_name_is_validated_on_the_published_problems():
    generated, held_out = named_tasks("multiplication", None)
    assert len(generated) == len(held_out) == 1000
    assert {task.prompt for task in generated}.isdisjoint(task.prompt for task in held_out)
    assert named_tasks("multiplication", QUESTIONS)[1] is QUESTIONS
    assert named_tasks(QUESTIONS, None) == (QUESTIONS, None)


def test_a_data_set_of_the_hub_is_validated_on_its_usual_split_if_it_has_one_to_train_on(monkeypatch, tmp_path):
    (tmp_path / "gsm8k").mkdir()  # a folder holds no rows
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tasks, "load_problems", lambda *name, **split: (*name, *split.values()))
    assert named_tasks("gsm8k", None) == (("gsm8k", "train"), ("gsm8k",))
    assert named_tasks("math", None) == (("math", None), None)
    assert named_tasks("gsm8k", QUESTIONS) == (("gsm8k", "train"), QUESTIONS)
    assert named_tasks(QUESTIONS, "math") == (QUESTIONS, ("math",)) and named_tasks(None, "math") == (None, "math")


def test_without_math_verify_a_data_set_that_needs_it_is_refused_at_the_start(monkeypatch):
    def answered(text: str, truth: str) -> Trajectory:
        trajectory = Trajectory(Task(task_id="t", prompt="?", answer=truth), [1])
        trajectory.add_sampled(Completion(token_ids=(2,), sampled_logprobs=(-1.0,), finish=Finish.END))
        trajectory.turns.append(Turn(model_output=text))
        return trajectory

    def tasks_of(answer: str, rewards: Any, **labels: str) -> DatasetTasks:
        reward = combine_rewards(named_rewards(rewards)) if rewards else None
        return DatasetTasks(
            [Task(task_id="t", prompt="?", answer=answer, labels=labels)], reward, create_default_config()
        )

    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None)
    with pytest.raises(MissingExtraError, match="math-verify"):
        tasks_of("1", None, dataset="math")
    with pytest.raises(MissingExtraError, match=r"'x \+ 1' of task 't'.*math-verify.*midthought\[math\]"):
        tasks_of("x + 1", "correct")
    of_another_reward = tasks_of("x + 1", "num_calls")
    assert of_another_reward.is_right(answered("x + 1", "x + 1")) is None
    assert of_another_reward.is_right(answered("so 5", "5")) is True
