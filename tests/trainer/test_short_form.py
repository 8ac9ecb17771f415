"""The short form: a trainer without a settings object; rewards, data sets and settings by name."""

from __future__ import annotations

import json

import pytest
from small_environments import QUESTIONS, Colours

from midthought import RewardError, SettingsError, Trainer, create_default_config, tool
from midthought.env.rewards import used_tool
from midthought.errors import DataError
from midthought.trainer.short_form import NAMED_REWARDS, by_section, is_correct, named_rewards, named_tasks
from midthought.types import Completion, Finish, Task, Trajectory, Turn

SMALL = {"batch_size": 4, "mini_batch_size": 4, "max_tokens": 12, "num_layers": 1, "hidden_size": 64, "progress": False}


@tool
def multiply(a: int, b: int) -> int:
    """Multiplies two whole numbers."""
    return a * b


def answered(text: str, truth: str, **labels: str) -> Trajectory:
    trajectory = Trajectory(Task(task_id="t", prompt="?", answer=truth, labels=labels), [1])
    trajectory.add_sampled(Completion(token_ids=(2,), sampled_logprobs=(-1.0,), finish=Finish.END))
    trajectory.turns.append(Turn(model_output=text))
    return trajectory


def test_it_trains_without_a_settings_object():
    rows = [{"question": f"What is {n} times 3?", "answer": f"{n} times 3.\n#### {3 * n}"} for n in range(4)]
    with Trainer(
        dataset=rows,
        validation=rows[:1],
        tools=[multiply],
        rewards=["correct", (used_tool, 0.1), ("num_failed_calls", -0.2)],
        algorithm="grpo",
        num_train_iters=1,
        group_size=2,
        training={"seed": 3},
        **SMALL,
    ) as trainer:
        training = trainer.config.training
        assert (training.algorithm, training.adv_estimator, training.seed) == ("grpo", "grpo", 3)
        assert (training.batch_size, trainer.config.inference.max_tokens) == (4, 12)
        result = trainer.fit()
        assert {"reward/correct", "reward/used_tool", "reward/num_failed_calls"} <= result.metrics.keys()
        assert "exact_match" in trainer.evaluate()


def test_a_models_folder_is_a_name(tmp_path, talker):
    talker["model"].save_pretrained(tmp_path)
    talker["tokenizer"].save_pretrained(tmp_path)
    options = {"batch_size": 2, "mini_batch_size": 2, "max_tokens": 8, "progress": False}
    with Trainer(model=tmp_path, env=Colours, device="cpu", lora_rank=0, **options) as trainer:
        assert trainer.config.model.local_path == str(tmp_path)
        assert trainer.model.config.vocab_size == talker["model"].config.vocab_size
    with Trainer(env=Colours, **talker, **options) as trainer:
        assert trainer.model is talker["model"]


def test_settings_by_name_replace_those_of_a_config_and_of_the_preset():
    config = create_default_config(training={"clip_ratio": 0.1, "learning_rate": 3e-5})
    with Trainer(config, Colours, algorithm="dapo", clip_ratio_high=0.5, group_size=2, **SMALL) as trainer:
        training = trainer.config.training
        assert (training.clip_ratio_low, training.clip_ratio_high, training.learning_rate) == (0.2, 0.5, 3e-5)
    assert config.training.algorithm is None and config.training.batch_size != 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"learning_rat": 1}, "'learning_rat'.*Did you mean.*'learning_rate'"),
        ({"datset": []}, "'datset'.*Did you mean 'dataset'"),
        ({"training": 3}, "training=3: it is a section"),
        ({"training": {"batch_sise": 3}}, "batch_sise.*Did you mean 'batch_size'"),
        ({"weight_transport": "disk"}, r"several sections.*inference=\{'weight_transport': …\} or ray="),
        ({"batch_size": "many"}, "batch_size"),
        ({"algorithm": "gpro"}, "Did you mean.*'grpo'"),
        ({"env": None, "dataset": "gsm9k"}, "neither a file nor a data set.*Did you mean 'gsm8k'"),
        ({"config": {"training": {}}}, "must be a ConfigStore"),
    ],
)
def test_what_is_unknown_or_wrong_is_named_with_what_is_near(arguments, message):
    with pytest.raises(SettingsError, match=message):
        Trainer(**{"env": Colours, **arguments})


def test_settings_are_sorted_by_section():
    assert by_section(create_default_config(), {"lam": 0.9, "model": {"dtype": "float32"}, "max_tokens": 5}) == {
        "training": {"lam": 0.9},
        "model": {"dtype": "float32"},
        "inference": {"max_tokens": 5},
    }


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ("correct", [("correct", 1.0)]),
        (["correct", ("num_calls", -0.1)], [("correct", 1.0), ("num_calls", -0.1)]),
        ({"correct": 2, "numeric_match": 0.5}, [("correct", 2), ("numeric_match", 0.5)]),
        ((), []),
    ],
)
def test_rewards_by_name_have_a_weight(rewards, expected):
    found = named_rewards(rewards)
    assert [(part.name, part.weight) for part in found] == expected
    assert all(part.function is NAMED_REWARDS[part.name] for part in found)


@pytest.mark.parametrize(
    ("rewards", "message"),
    [
        (["corect"], "unknown reward 'corect'.*Did you mean 'correct'"),
        ([("correct", "0.5")], "the weight is a number"),
        ([("correct", None)], "correct"),
        ([("a", "b", "c", "d")], "is no reward function"),
    ],
)
def test_a_reward_that_is_none_is_refused(rewards, message):
    with pytest.raises(RewardError, match=message):
        Trainer(dataset=QUESTIONS, rewards=rewards, **SMALL)


def test_a_reward_of_the_answer_needs_answers():
    with pytest.raises((SettingsError, DataError), match="answer"):
        Trainer(dataset=[{"question": "Why?"}], rewards=["correct"], **SMALL)


@pytest.mark.parametrize(
    ("text", "truth", "right"),
    [
        ("The answer is 42.", "42", True),
        ("<think>41</think>\nIt is $1,250", "1250", True),
        ("5", "-5", False),
        ("1 5", "1.5", False),
        ("forty-two", "42", False),
        ("<think>42", "42", False),
        ("Ada Lovelace.", "ada lovelace", True),
        ("It was Ada Lovelace.", "Ada Lovelace", False),
    ],
)
def test_an_answer_is_judged_by_its_last_number_or_its_words(text, truth, right):
    assert is_correct(answered(text, truth)) is right


def test_tasks_of_a_known_data_set_are_judged_by_its_rules():
    assert is_correct(answered("The answer is B", "B", dataset="mmlu"))
    assert not is_correct(answered("The answer is C", "B", dataset="mmlu"))
    assert is_correct(answered("The answer is 0x1F.", "1f", dataset="hex"))


def test_a_generated_data_set_by_name_is_validated_on_the_published_problems():
    tasks, held_out = named_tasks("multiplication", None)
    assert len(tasks) == len(held_out) == 1000
    assert not {task.prompt for task in tasks} & {task.prompt for task in held_out}
    assert named_tasks("multiplication", QUESTIONS)[1] is QUESTIONS
    assert named_tasks(QUESTIONS, None) == (QUESTIONS, None)


GSM8K_CARD = """---
configs:
- config_name: main
  data_files:
  - {split: train, path: main/train.jsonl}
  - {split: test, path: main/test.jsonl}
---
"""


def test_a_data_set_of_the_hub_by_name(tmp_path, monkeypatch):
    """A folder in the hub's form, which `datasets` loads under the data set's own name."""
    pytest.importorskip("datasets")
    folder = tmp_path / "openai" / "gsm8k"
    (folder / "main").mkdir(parents=True)
    (folder / "README.md").write_text(GSM8K_CARD)
    for split, number in (("train", 42), ("test", 43)):
        row = {"question": f"The {split} question?", "answer": f"It is <<{number}={number}>>{number}.\n#### {number}"}
        (folder / "main" / f"{split}.jsonl").write_text(json.dumps(row))
    monkeypatch.chdir(tmp_path)
    (task,), (held_out,) = named_tasks("gsm8k", None)
    assert (task.answer, held_out.answer) == ("42", "43")
    assert is_correct(answered("So the answer is 42.", task.answer, **task.labels))
