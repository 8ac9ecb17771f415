"""Supervised steps before reinforcement learning: `Trainer.sft`."""

import copy
import json
import shutil
from typing import Any

import pytest
import torch
from small_environments import QUESTIONS, Colours, twice, weights, without_clocks

from midthought import SettingsError, Trainer
from midthought.errors import CheckpointError, DataError
from midthought.models.small_model import make_tokenizer
from midthought.plan.choices import supervised_rate
from midthought.report.run_folder import RunFolder
from midthought.types import Task

SETTINGS = {
    "batch_size": 4,
    "mini_batch_size": 4,
    "group_size": 2,
    "num_train_iters": 2,
    "max_tokens": 64,
    "validate_every": 0,
    "algorithm": "grpo",
    "rewards": ["correct"],
    "inference": {"deterministic": True},
    "progress": False,
}
STEPS: dict[str, Any] = {"num_steps": 6, "batch_tokens": 300, "warmup_steps": 0, "learning_rate": 3e-3}


QUESTION = {"role": "user", "content": "a"}


def calling(name: str) -> dict[str, Any]:
    call = {"function": {"name": name, "arguments": {"word": "red"}}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def shown(task: Task) -> list[dict[str, Any]]:
    """What the policy should write for a task: a call, its result, the answer."""
    return [
        calling("twice"),
        {"role": "tool", "content": "red red"},
        {"role": "assistant", "content": task.answer},
    ]


CONVERSATIONS = [
    [{"role": "user", "content": row["question"]}, *shown(Task(task_id="t", prompt="", answer=row["answer"]))]
    for row in QUESTIONS
]


@pytest.fixture
def make(talker):
    """Makes a trainer of a copy of the same model."""
    made = []

    def make_trainer(**options: Any) -> Trainer:
        start = {"model": copy.deepcopy(talker["model"]), "tokenizer": talker["tokenizer"]}
        made.append(Trainer(**{"dataset": QUESTIONS, "tools": [twice], **start, **SETTINGS, **options}))
        return made[-1]

    yield make_trainer
    for trainer in made:
        trainer.cleanup()


def rows(path: Any) -> list[dict[str, Any]]:
    return without_clocks(map(json.loads, (path / "metrics.jsonl").read_text().splitlines()))


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
    trainer = make(model=copy.deepcopy(callers["in_thought"]))
    episode = next(each for each in trainer.rollout().trajectories if each.num_calls == 1)
    assert [event.call.result for event in episode.tool_events] == ["red red"]
    first = make()
    mask = torch.tensor(episode.loss_mask)[1:]
    with torch.no_grad():
        token_ids = torch.tensor([episode.token_ids])
        logprobs = first.model(token_ids).logits.log_softmax(-1)[0, :-1]
    expected = -logprobs.gather(1, token_ids[0, 1:, None])[:, 0][mask].mean()
    (loss,) = first.sft([episode], num_steps=1, batch_tokens=64).losses
    assert loss == pytest.approx(float(expected), rel=1e-4)


@pytest.mark.parametrize(("max_tokens", "num_warnings"), [(8, 1), (64, 0)])
def test_demonstrations_that_are_longer_than_an_episode_are_reported(max_tokens, num_warnings, make, caplog):
    make(max_tokens=max_tokens).sft(shown, **{**STEPS, "num_steps": 1})
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
    trainer.sft(shown, **{**STEPS, "num_steps": 1})
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


class Stop(Exception):
    pass


def test_a_run_that_stops_anywhere_ends_with_the_same_metrics_and_weights(make, tmp_path, monkeypatch):
    def run(path, **options):
        trainer = make(run_path=path, kl_coef=0.1, checkpoint={"save_interval": 1}, **options)
        try:
            result = trainer.sft(shown, **{**STEPS, "num_steps": 14})
            trainer.fit()
            return weights(trainer), result
        finally:
            trainer.cleanup()

    whole, result = run(tmp_path / "whole")
    assert [row["stage"] for row in rows(tmp_path / "whole")] == ["sft"] * 14 + ["ppo"] * 2
    assert (tmp_path / "whole" / "warmup" / "config.json").is_file()

    stopped, original = tmp_path / "stopped", RunFolder.log

    def stopping(self, stage, step, metrics):
        if (stage, step) == stop_at:
            raise Stop
        original(self, stage, step, metrics)

    monkeypatch.setattr(RunFolder, "log", stopping)
    for stop_at in (("sft", 12), ("ppo", 1), ("ppo", 2)):  # noqa: B007
        with pytest.raises(Stop):  # the next one continues at step 10, at iteration 0, at iteration 1
            run(stopped, resume=stopped.exists())
    stop_at = ("", 0)
    last, again = run(stopped, resume=True)
    assert rows(stopped) == rows(tmp_path / "whole")
    assert again.losses == result.losses
    assert torch.equal(last, whole)


def test_checkpoints_by_time_are_of_every_stage_and_an_interrupted_program_names_the_newest(make, tmp_path, capsys):
    def interrupt(stage, step, **options):
        def log(self, *row):
            if row[:2] == (stage, step):
                raise KeyboardInterrupt
            original(self, *row)

        trainer, original = (
            make(run_path=tmp_path, checkpoint={"save_interval": 99, **options}, resume=True),
            RunFolder.log,
        )
        with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(RunFolder, "log", log)
            trainer.sft(shown, **STEPS)
            trainer.fit()
        trainer.cleanup()
        return capsys.readouterr().err

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
    with make() as trainer:
        small = trainer.sft(shown, **{**STEPS, "num_steps": 2, "learning_rate": "auto"})
        assert small[0]["learning_rate"] == 1e-3


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
    assert len(trainer.sft(shown, **{**STEPS, "num_steps": 1})) == 1


def test_a_limit_of_time_that_is_none_is_refused(make):
    with pytest.raises(SettingsError, match="max_seconds='1': give a finite number above 0"):
        make().sft(shown, max_seconds="1")


def test_a_function_needs_a_data_set(make):
    with pytest.raises(SettingsError, match="give a list of conversations"):
        make(dataset=None, environment=Colours, rewards=()).sft(shown)


def test_it_comes_before_fit_and_knows_its_settings(make):
    trainer = make()
    with pytest.raises(SettingsError, match=r"unknown key 'num_step' in supervised\. Did you mean 'num_steps'"):
        trainer.sft(shown, num_step=3)
    trainer.rollout()
    trainer.train_step()
    with pytest.raises(SettingsError, match="called after fit"):
        trainer.sft(shown)


def test_another_model_cannot_take_over_the_supervised_steps(make, tmp_path):
    trainer = make(run_path=tmp_path)
    trainer.sft(shown, num_steps=1)
    trainer.cleanup()
    with pytest.raises(CheckpointError, match="another model"):
        Trainer(dataset=QUESTIONS, tools=[twice], run_path=tmp_path, resume=True, **SETTINGS)


def test_steps_that_were_interrupted_go_on_with_the_same_settings_before_fit_or_with_others_if_that_is_allowed(
    make, tmp_path
):
    trainer = make(run_path=tmp_path, checkpoint={"save_interval": 1})
    trainer.sft(shown, **{**STEPS, "num_steps": 11})
    trainer.cleanup()
    shutil.rmtree(tmp_path / "warmup")
    (tmp_path / "manifest.json").unlink()  # it names the folder
    resumed = make(run_path=tmp_path, resume=True, checkpoint={"save_interval": 1})
    with pytest.raises(SettingsError, match=r"interrupted in its supervised steps; call sft"):
        resumed.fit()
    with pytest.raises(SettingsError, match=r"sft\(num_steps=12\).*with num_steps=11"):
        resumed.sft(shown, **{**STEPS, "num_steps": 12})
    resumed.cleanup()
    allowed = make(run_path=tmp_path, resume=True, allow_changes=True, checkpoint={"save_interval": 1})
    assert len(allowed.sft(shown, **{**STEPS, "num_steps": 12})) == 12


def test_a_model_that_went_on_learning_in_place_is_the_reference_as_the_supervised_steps_left_it(make, tmp_path):
    def kl_of(trainer: Trainer) -> float:
        trainer.rollout()
        found = trainer.train_step()["kl_reference"]
        trainer.cleanup()
        return found

    options = {"run_path": tmp_path, "kl_coef": 0.1, "rewards": [differs], "learning_rate": 1e-2}
    trainer = make(**options)
    trainer.sft(shown, **STEPS)
    model = trainer.model
    trainer.fit()
    trainer.cleanup()
    expected = kl_of(make(**options, resume=True))
    assert expected > 1e-4
    assert kl_of(make(**options, resume=True, model=model)) == expected
