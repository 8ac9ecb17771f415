"""Supervised steps before reinforcement learning: `Trainer.sft`."""

import contextlib
import copy
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from small_environments import QUESTIONS, Colours, lines, twice, weights, without_clocks

from midthought import SettingsError, Trainer, load_tasks
from midthought.errors import CheckpointError, DataError
from midthought.models.small_model import make_tokenizer
from midthought.plan.choices import supervised_rate
from midthought.report.run_folder import RunFolder
from midthought.types import Task

SETTINGS: dict[str, Any] = {"batch_size": 4, "mini_batch_size": 4, "group_size": 2, "num_train_iters": 2}
SETTINGS |= {"max_tokens": 64, "validate_every": 0, "algorithm": "grpo", "rewards": ["correct"], "progress": False}
SETTINGS |= {"inference": {"deterministic": True}}
STEPS: dict[str, Any] = {"num_steps": 6, "batch_tokens": 300, "warmup_steps": 0, "learning_rate": 3e-3}
ONE_STEP = {**STEPS, "num_steps": 1}


QUESTION = {"role": "user", "content": "a"}


def calling(name: str) -> dict[str, Any]:
    call = {"function": {"name": name, "arguments": {"word": "red"}}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def shown(task: Task) -> list[dict[str, Any]]:
    """What the policy should write for a task: a call, its result, the answer."""
    return [calling("twice"), {"role": "tool", "content": "red red"}, {"role": "assistant", "content": task.answer}]


CONVERSATIONS = [[{"role": "user", "content": task.prompt}, *shown(task)] for task in load_tasks(QUESTIONS)]


@pytest.fixture
def make(talker):
    """Makes a trainer of a copy of the same model."""
    with contextlib.ExitStack() as made:

        def make_trainer(**options: Any) -> Trainer:
            start = {"model": copy.deepcopy(talker["model"]), "tokenizer": talker["tokenizer"]}
            trainer = Trainer(**{"dataset": QUESTIONS, "tools": [twice], **start, **SETTINGS, **options})
            return made.enter_context(trainer)

        yield make_trainer


def rows(run: Path) -> list[dict[str, Any]]:
    return without_clocks(lines(run / "metrics.jsonl"))


def test_demonstrations_of_a_file_a_function_and_the_constructor_teach_the_same(make, tmp_path):
    """Other forms: test_demonstration_forms.py."""
    steps, file = {**STEPS, "num_steps": 2}, tmp_path / "shown.jsonl"
    file.write_text("\n".join(json.dumps({"messages": messages}) for messages in CONVERSATIONS))
    result = make().sft(file, **steps)
    assert len(result) == 2 and result.policy_path is None
    assert make().sft(shown, **steps).losses == result.losses
    assert make(demonstrations=CONVERSATIONS).sft(**steps).losses == result.losses


def test_only_what_the_policy_wrote_is_trained_on(make, callers):
    """The loss of a step on an episode is the mean over the tokens that the episode's loss mask has."""
    trainer, first = make(model=copy.deepcopy(callers["in_thought"])), make()
    episode = next(each for each in trainer.rollout().trajectories if each.num_calls == 1)
    assert [event.call.result for event in episode.tool_events] == ["red red"]
    mask, token_ids = torch.tensor(episode.loss_mask)[1:], torch.tensor([episode.token_ids])
    with torch.no_grad():
        logprobs = first.model(token_ids).logits.log_softmax(-1)[0, :-1]
    expected = -logprobs.gather(1, token_ids[0, 1:, None])[:, 0][mask].mean()
    (loss,) = first.sft([episode], num_steps=1, batch_tokens=64).losses
    assert loss == pytest.approx(float(expected), rel=1e-4)


@pytest.mark.parametrize(("max_tokens", "num_warnings"), [(8, 1), (64, 0)])
def test_demonstrations_that_are_longer_than_an_episode_are_reported(max_tokens, num_warnings, make, caplog):
    make(max_tokens=max_tokens).sft(shown, **ONE_STEP)
    found = [each.message for each in caplog.records if "longer than an episode may be" in each.message]
    assert len(found) == num_warnings
    assert all("inference.max_tokens=8)" in each and each.endswith("set inference.max_tokens=64") for each in found)


def differs(trajectory: Any) -> float:
    """A reward with variance in every group."""
    return float(trajectory.seed % 1000)


@pytest.mark.parametrize("lora_rank", [0, 4])
def test_the_reference_of_the_kl_is_the_policy_after_it_with_its_adapters_merged(lora_rank, make):
    trainer = make(lora_rank=lora_rank, kl_coef=0.1, rewards=[differs])
    before = weights(trainer)
    trainer.sft(shown, **{**STEPS, "learning_rate": 1e-2})
    assert not torch.equal(weights(trainer), before)
    trainer.rollout()
    assert trainer.train_step()["kl_reference"] == pytest.approx(0.0, abs=1e-6)


def test_a_base_model_without_a_chat_template_says_how_conversations_are_written_and_keeps_its_generation_config(
    make, talker, tmp_path, caplog
):
    start = make(tokenizer=copy.deepcopy(talker["tokenizer"]))
    start.model.generation_config.update(do_sample=True, temperature=0.6, top_k=20)
    start.tokenizer.chat_template = None
    start.save_model(tmp_path / "base")
    caplog.clear()
    trainer = make(model=str(tmp_path / "base"), tokenizer=None, run_path=tmp_path / "run", lora_rank=0)
    told = "has no chat template: texts are joined by newlines, without roles"
    assert caplog.text.count(told) == 1
    trainer.sft(shown, **ONE_STEP)
    trainer.fit()
    for name in ("warmup", "policy"):
        assert f"{tmp_path / 'run' / name} {told}" in caplog.text
        saved = json.loads((tmp_path / "run" / name / "generation_config.json").read_text())
        assert (saved["do_sample"], saved["temperature"], saved["top_k"]) == (True, 0.6, 20)
        assert "max_new_tokens" not in saved and "top_p" not in saved
    trainer.tokenizer.chat_template = "{{ messages }}"
    caplog.clear()
    trainer.save_model(tmp_path / "with")
    assert told not in caplog.text


def test_a_run_that_stops_anywhere_ends_with_the_same_metrics_and_weights(make, tmp_path, monkeypatch):
    def run(path, stop_at=None, **options):
        def stopping(self, stage, step, metrics):
            if (stage, step) == stop_at:
                raise KeyboardInterrupt
            original(self, stage, step, metrics)

        monkeypatch.setattr(RunFolder, "log", stopping)
        with make(run_path=path, kl_coef=0.1, checkpoint={"save_interval": 1}, **options) as trainer:
            result = trainer.sft(shown, **{**STEPS, "num_steps": 14})
            trainer.fit()
            return weights(trainer), result.losses

    original = RunFolder.log
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    expected = run(whole)
    assert [row["stage"] for row in rows(whole)] == ["sft"] * 14 + ["ppo"] * 2
    assert (whole / "warmup" / "config.json").is_file()
    for stop_at in (("sft", 12), ("ppo", 1), ("ppo", 2)):
        with pytest.raises(KeyboardInterrupt):  # the next one continues at step 10, at iteration 0, at iteration 1
            run(stopped, stop_at, resume=stopped.exists())
    last, losses = run(stopped, resume=True)
    assert (rows(stopped), losses) == (rows(whole), expected[1])
    assert torch.equal(last, expected[0])


def test_checkpoints_by_time_are_of_every_stage_and_an_interrupted_program_names_the_newest(
    make, tmp_path, capsys, monkeypatch
):
    def interrupt(stage, step, **options):
        def log(self, *row):
            if row[:2] == (stage, step):
                raise KeyboardInterrupt
            original(self, *row)

        monkeypatch.setattr(RunFolder, "log", log)
        checkpoint = {"save_interval": 99, **options}
        with make(run_path=tmp_path, checkpoint=checkpoint, resume=True) as trainer, pytest.raises(KeyboardInterrupt):
            trainer.sft(shown, **STEPS)
            trainer.fit()
        return capsys.readouterr().err

    original = RunFolder.log
    assert "Nothing that was learned is saved yet" in interrupt("sft", 3)
    folders = [tmp_path / "checkpoints" / stage / "checkpoints" for stage in ("sft", "ppo")]
    told = [interrupt(*at, save_minutes=1e-9) for at in (("sft", 3), ("ppo", 1), ("ppo", 2))]
    saved = [folders[0] / "step_000002", tmp_path / "warmup", folders[1] / "step_000001"]
    for words, path in zip(told, saved, strict=True):
        assert f"The newest that is saved is {path}. Continue with the same program and resume=True" in words


def test_a_small_model_that_is_created_reads_its_tokenizer_from_the_demonstrations():
    small = {"dataset": QUESTIONS, "tools": [twice], "vocab_size": 420, "num_layers": 1, "hidden_size": 64, **SETTINGS}
    with Trainer(demonstrations=lambda task: task.answer, **small) as trainer:  # a function may give only a text
        assert trainer.sft(num_steps=1)
    with Trainer(demonstrations=shown, **small) as trainer:
        texts = ['#call twice {"word": "red"}', "red red"]
        alone = make_tokenizer([*(row["question"] for row in QUESTIONS), "red"], 420)
        assert all(len(trainer.tokenizer(text).input_ids) < len(alone(text).input_ids) for text in texts)
        assert trainer.sft(num_steps=1).metrics["learning_rate"] > 0


def test_the_rate_of_a_given_models_weights_falls_with_the_root_of_their_number(make):
    assert [supervised_rate(number) for number in (7 * 10**9, 135 * 10**6, 10**6)] == [2e-5, 1.4e-4, 1e-3]
    (small,) = make().sft(shown, **{**ONE_STEP, "learning_rate": "auto"})
    assert small["learning_rate"] == 1e-3


UNREADABLE: list[tuple[Any, str]] = [
    (None, "no demonstrations"),
    ([], "there is none"),
    ([CONVERSATIONS[0], [{"role": "user"}]], "row 2: the content of message 0 is None"),
    ([[{"role": "user", "content": {("a",): 1}}]], r"the content of message 0 is \{\('a',\): 1\}; it must be text"),
    (CONVERSATIONS[0], "row 1: it has no column 'messages'.*a list of conversations"),
    ([{"text": "a"}], "row 1: it has no column 'messages'; it has: text"),
    (["a text"], "row 1: it is 'a text'; give a list of messages"),
    ([[QUESTION, calling("twise"), *CONVERSATIONS[0][2:]]], "row 1: it calls 'twise', which is no tool.*'twice'"),
    (lambda _: [{"role": "user", "content": "Else?"}, {"role": "assistant", "content": "a"}], "its question is 'Else"),
    (lambda _: [{"role": "assistant", "content": "a " * 900}], r"it has \d+ tokens, and the model has 512 positions"),
]


def test_a_demonstration_that_cannot_be_read_is_named_and_the_trainer_is_as_before(make):
    trainer = make()
    for given, message in UNREADABLE:
        with pytest.raises((DataError, SettingsError), match=message):
            trainer.sft(given, **STEPS)
    assert len(trainer.sft(shown, **ONE_STEP)) == 1
    with pytest.raises(SettingsError, match="give a list of conversations"):  # a function needs a data set
        make(dataset=None, environment=Colours, rewards=()).sft(shown)


def test_it_comes_before_fit_and_knows_its_settings(make):
    trainer = make()
    for wrong, message in (
        ({"num_step": 3}, r"unknown key 'num_step' in supervised\. Did you mean 'num_steps'"),
        ({"max_seconds": "1"}, "max_seconds='1': give a finite number above 0"),
    ):
        with pytest.raises(SettingsError, match=message):
            trainer.sft(shown, **wrong)
    trainer.rollout()
    trainer.train_step()
    with pytest.raises(SettingsError, match="called after fit"):
        trainer.sft(shown)


def test_another_model_cannot_take_over_the_supervised_steps(make, tmp_path):
    with make(run_path=tmp_path) as trainer:
        trainer.sft(shown, num_steps=1)
    with pytest.raises(CheckpointError, match="another model"):
        make(model=None, tokenizer=None, run_path=tmp_path, resume=True)


def test_steps_that_were_interrupted_go_on_with_the_same_settings_before_fit_or_with_others_if_that_is_allowed(
    make, tmp_path
):
    given = {"run_path": tmp_path, "checkpoint": {"save_interval": 1}}
    with make(**given) as trainer:
        trainer.sft(shown, **{**STEPS, "num_steps": 11})
    shutil.rmtree(tmp_path / "warmup")
    (tmp_path / "manifest.json").unlink()  # it names the folder
    with make(**given, resume=True) as resumed:
        with pytest.raises(SettingsError, match=r"interrupted in its supervised steps; call sft"):
            resumed.fit()
        with pytest.raises(SettingsError, match=r"sft\(num_steps=12\).*with num_steps=11"):
            resumed.sft(shown, **{**STEPS, "num_steps": 12})
    with make(**given, resume=True, allow_changes=True) as allowed:
        assert len(allowed.sft(shown, **{**STEPS, "num_steps": 12})) == 12


def test_a_model_that_went_on_learning_in_place_is_the_reference_as_the_supervised_steps_left_it(make, tmp_path):
    def kl_of(**more: Any) -> float:
        with make(**options, resume=True, **more) as trainer:
            trainer.rollout()
            return trainer.train_step()["kl_reference"]

    options = {"run_path": tmp_path, "kl_coef": 0.1, "rewards": [differs], "learning_rate": 1e-2}
    with make(**options) as trainer:
        trainer.sft(shown, **STEPS)
        model = trainer.model
        trainer.fit()
    expected = kl_of()
    assert expected > 1e-4 and kl_of(model=model) == expected
