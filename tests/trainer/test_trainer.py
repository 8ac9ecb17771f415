import asyncio
import copy
import itertools
import math
import signal
import weakref

import numpy as np
import pytest
import torch
from precision import logit_tolerance
from small_environments import (
    PAID,
    QUESTIONS,
    AsyncColours,
    Colours,
    lines,
    numbered,
    settings,
    twice,
    weights,
    without_clocks,
)
from transformers import Gemma3Config, LlamaConfig

from midthought import ActionParser, CalculateTool, HermesParser, RayPPOTrainer, TrainerCallback
from midthought.config import InferenceConfig
from midthought.env.rewards import weighted
from midthought.errors import MidthoughtError, SettingsError
from midthought.learning.batch import TokenBatch
from midthought.trainer.sources import longest_sequence
from midthought.trainer.tasks import EnvironmentTasks
from midthought.types import ParsedAction, Reward, RolloutData, SpanKind, StopReason


def first_colour(trajectory):
    return PAID.get(trajectory.actions[0].removeprefix("</think>"), 0.0)


@pytest.fixture
def calling(callers, tokenizer):
    """The arguments of a trainer whose policy calls `twice` in this call format."""

    def options(call_format):
        model = copy.deepcopy(callers[call_format])
        tools = {"tools": [twice], "call_format": call_format}
        return {"dataset": QUESTIONS, "model": model, "tokenizer": tokenizer, **tools}

    return options


# -- what it trains on ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", ["gae", "grpo_turns"])
def test_it_trains_in_an_environment_with_every_kind_of_estimator(estimator, talker):
    with RayPPOTrainer(settings(estimator), Colours(), **talker) as trainer:
        before = weights(trainer)
        history = trainer.fit()
        assert not torch.equal(weights(trainer), before)
    assert [figures["iteration"] for figures in history] == [1, 2]
    for figures in history:
        assert (figures["batch/num_episodes"], figures["env/steps_mean"]) == (4, 2)
        assert figures["reward/turns"] == figures["reward/mean"] == figures["env/return_mean"]
        assert figures["logprob_difference_max"] < logit_tolerance(talker["model"], 256)
        assert figures["time/seconds"] > figures["time/rollout_seconds"] > 0
        assert figures["time/tokens_per_second"] > 0
    assert (history[0]["value_loss"] != 0) is (estimator == "gae")
    assert ("batch/num_flat_groups" in history[0]) is (estimator == "grpo_turns")


@pytest.mark.parametrize("max_staleness", [0, 2])
def test_a_group_whose_reset_fails_is_counted_and_left_out_and_the_others_are_learned_from(
    max_staleness, talker, caplog
):
    class OftenAway(Colours):
        def reset(self, seed=0):
            if seed % 2:
                raise ConnectionError("the server is away")
            return super().reset(seed)

    config = settings("grpo", batch_size=16, mini_batch_size=16, num_train_iters=4)
    config.training.max_staleness, config.inference.overlap = max_staleness, False
    with RayPPOTrainer(config, environment=OftenAway, **talker) as trainer:
        history = trainer.fit()
    assert len(history) == 4
    assert any(0 < figures["batch/num_episodes"] < 16 for figures in history) or max_staleness
    if not max_staleness:  # there, groups are drawn one by one, and a reset that fails is tried again from another seed
        num_failed = [figures["env/num_failed_resets"] for figures in history]
        assert num_failed == [4 * figures["episode/failed"] for figures in history] and any(num_failed)
    told = "environments not reset; the first: OftenAway.reset raised ConnectionError: the server is away"
    assert told in caplog.text


def test_an_epoch_of_a_data_set_is_a_pass_over_it_and_held_out_tasks_are_judged_by_exact_match_too(talker):
    config = settings(batch_size=2, num_epochs=2, num_train_iters=None)
    held_out = [{**row, "answer": answer} for row, answer in zip(QUESTIONS, PAID, strict=False)]
    with RayPPOTrainer(config, dataset=QUESTIONS, validation=held_out, **talker) as trainer:
        assert [trainer.num_iters(), trainer.num_iters(4)] == [3, 6]
        for trajectory in trainer.rollout():
            assert trajectory.reward.parts["correct"] == float(trajectory.actions == ["</think>red"])
        figures = trainer.evaluate()
    assert figures["exact_match"] == pytest.approx(figures["reward/correct"])
    assert figures["exact_match"] in (0.0, 0.5, 1.0)


def test_epochs_are_counted_from_the_beginning_and_nothing_left_is_said(talker, caplog):
    with RayPPOTrainer(settings(), Colours, **talker) as trainer:
        assert len(trainer.fit(1, 2)) == 2
        assert len(trainer.fit(1, 2)) == 2
        assert "2 of 2 iterations are done" in caplog.text
        assert len(trainer.fit(2, 2)) == 4
        with pytest.raises(SettingsError, match="whole number"):
            trainer.fit(1.5)


def test_the_learning_rate_ends_where_this_fit_ends(talker):
    config = settings(lr_schedule="linear", warmup_steps=0, learning_rate=0.004)
    with RayPPOTrainer(config, Colours, **talker) as trainer:
        rates = [figures["learning_rate"] for figures in trainer.fit(num_epochs=2, num_iters_per_epoch=2)]
    assert rates == pytest.approx([0.004, 0.003, 0.002, 0.001])


class PaysOdd(Colours):
    """The groups of every other seed have equal rewards."""

    def reset(self, seed: int = 0) -> str:
        self.pays = seed % 2
        return super().reset(seed)

    def step(self, action: str) -> tuple[str, float, bool, dict]:
        text, reward, done, info = super().step(action)
        return text, self.pays * reward, done, info


def test_the_learning_rate_also_ends_there_if_groups_were_dropped(talker):
    config = settings("grpo", batch_size=8, num_train_iters=4, lr_schedule="linear", warmup_steps=0)
    with RayPPOTrainer(config, PaysOdd, **talker) as trainer:
        trainer.fit()
        assert 0 < trainer.learner.num_policy_steps < 4 * 2
        assert trainer.learner.learning_rate == 0.0


def test_with_max_seconds_the_iterations_and_the_learning_rate_follow_from_the_seconds_so_far(talker):
    config = settings(num_train_iters=50, lr_schedule="linear", warmup_steps=0)
    with RayPPOTrainer(config, Colours(), **talker) as trainer:
        assert len(trainer.fit(max_seconds=np.float32(1e-9))) == 1  # a number of numpy, too
        assert trainer.learner.learning_rate == 0.0
        history = trainer.fit(max_seconds=4 * trainer.metrics_history[0]["time/seconds"])
        assert 2 <= len(history) < 50 and trainer.learner.learning_rate == 0.0
        for wrong in (-1, math.inf, "1"):
            with pytest.raises(SettingsError, match=f"max_seconds={wrong!r}: give a finite number above 0"):
                trainer.fit(max_seconds=wrong)


# -- tools ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("call_format", "max_tokens"), [("in_thought", 40), ("hermes", 60), (HermesParser(), 60)])
def test_the_policy_calls_tools_and_their_words_are_not_trained_on(call_format, max_tokens, calling, renderer):
    options = calling(call_format if isinstance(call_format, str) else "hermes")
    with RayPPOTrainer(settings(max_tokens=max_tokens), **{**options, "call_format": call_format}) as trainer:
        episodes = trainer.rollout()
        calls = [event.call for trajectory in episodes for event in trajectory.tool_events if event.call.success]
        assert {call.result for call in calls} == {"red red"}
        called = next(t for t in episodes if t.num_calls and t.stop_reason is StopReason.ANSWERED)
        result = next(span for span in called.spans if span.kind is SpanKind.RESULT)
        assert "red red" in renderer.decode(called.token_ids[result.start : result.end])
        assert not any(called.loss_mask[result.start : result.end])
        figures = trainer.train_step()
        assert figures["tool/twice/calls"] > 0 > figures["reward/calls"]


def test_a_parser_of_ones_own_says_what_a_call_is(talker):
    class ColourParser(ActionParser):
        def parse_all(self, text):
            return [ParsedAction(tool_name="twice", parameters={"word": text[8:]}, raw_text=text, success=True)]

    options = {"dataset": QUESTIONS, "tools": [twice], "call_format": ColourParser(), "system_prompt": "Call."}
    with RayPPOTrainer(settings(), **options, **talker) as trainer:
        first = trainer.rollout().trajectories[0]
        prompt = trainer.renderer.decode(first.token_ids[: first.spans[0].end])
    word = first.actions[0].removeprefix("</think>")
    assert first.tool_events[0].call.result == f"{word} {word}"
    assert "Call." in prompt and "twice" in prompt


# -- rewards -------------------------------------------------------------------------------------------------------


async def asynchronous(trajectory, environment):
    await asyncio.sleep(0)
    return len(trajectory) + environment.get_step_count()


@pytest.mark.parametrize(
    ("environment", "reward_fn", "mean"),
    [
        (Colours, lambda trajectory: len(trajectory), 2),
        (Colours, lambda trajectory, environment: environment.get_step_count() + 10, 12),
        (Colours, asynchronous, 4),
        (None, lambda trajectory, environment: 3 if environment is None else 0, 3),
    ],
)
def test_a_reward_function_replaces_the_ground_s_reward_and_tasks_need_no_answer(environment, reward_fn, mean, talker):
    dataset = None if environment else ["Say a colour."]
    with RayPPOTrainer(settings(), environment, reward_fn, dataset, **talker) as trainer:
        figures = trainer.train_step(trainer.rollout())
        assert figures["reward/mean"] == figures["reward/reward_fn"] == mean


def test_a_reward_function_may_give_a_number_to_each_call(calling):
    amounts = itertools.count(1)

    def each_call(trajectory):
        return Reward(calls=tuple(float(next(amounts)) for _ in trajectory.tool_events))

    config, rewards = settings("grpo_calls", kl_coef=0.0), [weighted(each_call, 0.5)]
    with RayPPOTrainer(config, rewards=rewards, **calling("in_thought")) as trainer:
        batch = trainer.rollout()
        before = weights(trainer)
        figures = trainer.train_step(batch)
        assert not torch.equal(weights(trainer), before)
    called = next(t for t in batch.trajectories if t.num_calls and t.stop_reason is StopReason.ANSWERED)
    result = next(span for span in called.spans if span.kind is SpanKind.RESULT)
    assert called.call_ends[0] == (0, result.start - 1)
    rewards = TokenBatch.from_trajectories([called]).rewards.tolist()
    assert rewards[result.start - 1] == called.reward.calls[0] > 0
    assert figures["reward/per_call"] == figures["reward/mean"] > 0


@pytest.mark.parametrize("ground", [{"environment": Colours}, {"dataset": QUESTIONS}])
def test_an_episode_whose_reward_is_not_a_number_is_a_failed_one(ground, talker):
    rewards = itertools.chain([math.nan], itertools.repeat(1.0))
    with RayPPOTrainer(settings(), reward_fn=lambda trajectory: next(rewards), **ground, **talker) as trainer:
        episodes = trainer.rollout()
        figures = trainer.train_step()
    (failed,) = (trajectory for trajectory in episodes if trajectory.stop_reason is StopReason.FAILED)
    assert "finite number" in failed.error and "nan" in failed.error
    found = [figures[name] for name in ("episode/failed", "batch/num_episodes", "reward/mean")]
    assert found == [0.25, 3, 1.0]


# -- what goes wrong in episodes -----------------------------------------------------------------------------------


def test_a_prompt_that_is_longer_than_the_models_positions_fails_with_the_reason(talker, caplog):
    talker["model"].config.max_position_embeddings = 60
    rows = [*QUESTIONS, {"question": "Say a colour, please. " * 20, "answer": "red"}]
    with RayPPOTrainer(settings(), dataset=rows, **talker) as trainer:
        episodes = trainer.rollout()
        figures = trainer.train_step()
    error = next(t.error for t in episodes if t.stop_reason is StopReason.FAILED)
    assert "tokens, and a sequence may have 60" in error and error in caplog.text
    assert (figures["episode/failed"], figures["batch/num_episodes"]) == (0.25, 3)


# -- step by step --------------------------------------------------------------------------------------------------


def test_a_step_without_episodes_says_what_to_do(talker):
    with RayPPOTrainer(settings(), Colours, **talker) as trainer:
        for given, message in ((None, r"call rollout\(\) first"), (RolloutData(), "holds no episode")):
            with pytest.raises(SettingsError, match=message):
                trainer.train_step(given)
        trainer.train_step(trainer.rollout())
        with pytest.raises(SettingsError, match=r"call rollout\(\) first"):
            trainer.train_step()


@pytest.mark.parametrize("given", [True, False])
def test_rewards_that_the_user_changed_are_the_ones_that_count(given, talker):
    with RayPPOTrainer(settings("grpo"), Colours, lambda trajectory: 0.0, **talker) as trainer:
        episodes = trainer.rollout()
        assert {trajectory.reward.total for trajectory in episodes} == {0.0}, "all rewards were equal"
        numbered(episodes)
        figures = trainer.train_step(episodes if given else None)
    assert figures["reward/mine"] == figures["reward/mean"] == 1.5
    assert (figures["batch/num_flat_groups"], figures["batch/num_episodes"]) == (0, 4)


def test_a_step_on_the_rollout_as_it_was_is_the_step_of_fit(_talker, tokenizer):
    histories = []
    for by_hand in (False, True):
        given = {"model": copy.deepcopy(_talker), "tokenizer": tokenizer}
        with RayPPOTrainer(settings("reinforce_plus_plus"), Colours, **given) as trainer:
            for step in [lambda: trainer.train_step(trainer.rollout())] * 2 if by_hand else [trainer.fit]:
                step()
        histories.append(without_clocks(trainer.metrics_history))
    assert histories[0] == histories[1]


def test_what_a_subclass_overrides_takes_effect_and_is_logged(talker, tmp_path):
    class Mine(RayPPOTrainer):
        def rollout(self):
            episodes = super().rollout()
            numbered(episodes)
            return episodes

        def train_step(self, data=None):
            return {**super().train_step(data), "more": 7.0}

    class Without(RayPPOTrainer):
        def train_step(self, data=None):
            return {"loss": float(len(data))}

    with Mine(settings(), Colours, run_path=tmp_path / "run", **talker) as trainer:
        history = trainer.fit()
    logged = [row for row in lines(tmp_path / "run/metrics.jsonl") if row["stage"] == "ppo"]
    assert [row["step"] for row in logged] == [1, 2]
    assert [(row["reward/mine"], row["more"]) for row in (*history, *logged)] == [(1.5, 7.0)] * 4
    with Without(settings(), Colours, **talker) as trainer:
        assert [row["total_loss"] for row in trainer.fit()] == [4.0, 4.0]


def test_in_fit_a_train_step_does_not_save_an_iteration_that_is_not_counted_yet(talker, tmp_path):
    class Saving(RayPPOTrainer):
        def train_step(self, data=None):
            metrics = super().train_step(data)
            self.save_checkpoint()
            return metrics

    with (
        Saving(settings(), Colours, run_path=tmp_path / "run", **talker) as trainer,
        pytest.raises(SettingsError, match="save in a callback's on_step"),
    ):
        trainer.fit()


def test_it_learns_from_episodes_that_are_brought(talker):
    with RayPPOTrainer(settings("grpo"), Colours, first_colour, **talker) as trainer:
        episodes = [t for _ in range(2) for t in trainer.rollout()]
        for given in (RolloutData(trajectories=episodes), episodes):  # a list will do
            assert trainer.train_step(given)["batch/num_episodes"] == 8, (
                "twice batch_size: all of them are learned from"
            )
        assert trainer.iteration == 2
        with pytest.raises(SettingsError, match="'red' is no Trajectory"):
            trainer.train_step(["red"])


# -- evaluation ----------------------------------------------------------------------------------------------------


def test_an_evaluation_is_greedy_and_the_same_every_time(talker):
    with RayPPOTrainer(settings(), Colours, **talker) as trainer:
        first, second = without_clocks(trainer.evaluate() for _ in range(2))
        assert first == second and first["env/num_episodes"] == 3
        assert trainer.evaluate(5)["env/num_episodes"] == 5
        assert trainer.metrics_history == []
        with pytest.raises(SettingsError, match="num_episodes=0"):
            trainer.evaluate(0)


def test_an_evaluation_leaves_the_course_of_training_alone(_talker, tokenizer):
    histories = []
    for validate_every in (0, 1):
        config = settings(validate_every=validate_every)
        with RayPPOTrainer(config, Colours, model=copy.deepcopy(_talker), tokenizer=tokenizer) as trainer:
            histories.append(without_clocks(trainer.fit()))
    assert histories[0] == histories[1]


def test_a_data_set_without_held_out_tasks_trains_but_cannot_be_evaluated(talker):
    with RayPPOTrainer(settings(validate_every=1), dataset=QUESTIONS, **talker) as trainer:
        trainer.fit()
        with pytest.raises(SettingsError, match="validation="):
            trainer.evaluate()


# -- callbacks, loops, threads, signals ----------------------------------------------------------------------------


class Diary(TrainerCallback):
    def __init__(self):
        self.entries = []

    def on_step(self, trainer, metrics):
        self.entries.append(("step", trainer.iteration, metrics["batch/num_episodes"]))

    def on_evaluation(self, trainer, metrics):
        self.entries.append(("evaluation", trainer.iteration, metrics["env/num_episodes"]))

    def on_save(self, trainer, path):
        self.entries.append(("save", trainer.iteration, path.name))


def test_callbacks_are_told_of_the_step_its_evaluation_and_its_checkpoint_in_this_order(talker, tmp_path):
    diary = Diary()
    with RayPPOTrainer(
        settings(validate_every=2), Colours, callbacks=diary, run_path=tmp_path / "run", **talker
    ) as trainer:
        trainer.fit()
    assert diary.entries == [("step", 1, 4), ("step", 2, 4), ("evaluation", 2, 3), ("save", 2, "step_000002")]


@pytest.mark.parametrize(("method", "error"), [("on_step", RuntimeError), ("on_evaluation", KeyboardInterrupt)])
def test_what_a_callback_raises_ends_fit_after_the_checkpoint_that_is_due(method, error, talker, tmp_path):
    def raising(trainer, metrics):
        raise error("mine")

    broken, diary, config = TrainerCallback(), Diary(), settings(validate_every=1)
    setattr(broken, method, raising)
    config.checkpoint.save_interval = 1
    given = {"run_path": tmp_path / "run", **talker}
    with RayPPOTrainer(config, Colours, callbacks=[broken, diary], **given) as trainer:
        with pytest.raises(error, match="mine"):
            trainer.fit()
        with pytest.raises(error, match="mine"):
            trainer.fit()
        held = weakref.ref(trainer.learner)
        with pytest.raises(error, match="mine"):  # outside `fit` at once
            trainer.evaluate() if method == "on_evaluation" else trainer.train_step(trainer.rollout())
    assert [entry[:2] for entry in diary.entries[:6]] == [
        (what, number) for number in (1, 2) for what in ("step", "evaluation", "save")
    ]
    assert held() is None  # what was raised holds nothing
    with RayPPOTrainer(config, Colours, resume=True, **given) as resumed:
        assert resumed.iteration == 2


def test_of_two_errors_in_one_iteration_each_is_shown(talker, monkeypatch):
    def raising(text):
        def on_step(*given):
            raise RuntimeError(text)

        callback = TrainerCallback()
        callback.on_step = on_step
        return callback

    callbacks = [raising("first"), raising("second")]
    with RayPPOTrainer(settings(validate_every=1), Colours, callbacks=callbacks, **talker) as trainer:
        with pytest.raises(RuntimeError, match="first") as caught:
            trainer.fit()
        assert "RuntimeError: second" in "".join(caught.value.__notes__)
        monkeypatch.setattr(trainer, "evaluate", callbacks.pop().on_step)
        with pytest.raises(RuntimeError, match="second") as caught:
            trainer.fit()
        assert "RuntimeError: first" in "".join(caught.value.__notes__)


def test_a_second_signal_in_a_callback_ends_fit_at_once(talker):
    class Stopped(Diary):
        def on_step(self, trainer, metrics):
            super().on_step(trainer, metrics)
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    diary = Stopped()
    with RayPPOTrainer(settings(validate_every=1), Colours, callbacks=diary, **talker) as trainer:
        with pytest.raises(KeyboardInterrupt):
            trainer.fit()
        assert [entry[:2] for entry in diary.entries] == [("step", 1)]


@pytest.mark.parametrize("ground", [{"environment": AsyncColours, "reward_fn": asynchronous}, {"dataset": QUESTIONS}])
def test_it_works_inside_a_running_event_loop(ground, talker):
    async def notebook():
        with RayPPOTrainer(settings(validate_every=1), validation=ground.get("dataset"), **ground, **talker) as trainer:
            return trainer.fit()

    assert {figures["episode/failed"] for figures in asyncio.run(notebook())} == {0}


# -- the end -------------------------------------------------------------------------------------------------------


def test_cleaning_up_twice_is_fine_and_use_afterwards_says_so(talker, tmp_path):
    trainer = RayPPOTrainer(settings(), Colours, **talker)
    trainer.fit()
    held = weakref.ref(trainer.learner)
    trainer.cleanup()
    trainer.cleanup()
    assert held() is None
    assert len(trainer.metrics_history) == 2
    uses = [trainer.fit, trainer.rollout, trainer.train_step, trainer.evaluate, trainer.save_checkpoint]
    for use in (*uses, lambda: trainer.load_checkpoint(tmp_path), lambda: trainer.save_model(tmp_path)):
        with pytest.raises(MidthoughtError, match="cleaned up"):
            use()


def test_cleaning_up_ends_the_others_also_if_the_engine_cannot_be_ended(talker, monkeypatch):
    trainer, ended = RayPPOTrainer(settings(), Colours, **talker), []
    monkeypatch.setattr(trainer.source, "close", lambda: ended.append("engine") or pytest.fail("silent"))
    monkeypatch.setattr(EnvironmentTasks, "close", lambda tasks: ended.append("environments"))
    monkeypatch.setattr(trainer.learner, "close", lambda: ended.append("learner"))
    with pytest.raises(pytest.fail.Exception, match="silent"):
        trainer.cleanup()
    assert ended == ["engine", "environments", "learner"] and trainer.model is None


def test_a_trainer_that_cannot_be_made_is_ended_without_what_a_subclass_adds(talker):
    class Own(RayPPOTrainer):
        def cleanup(self):
            self.not_there.close()

    config = settings()
    config.checks.policies = {"spik": "off"}
    with pytest.raises(SettingsError, match="no check 'spik'"):
        Own(config, Colours, **talker)


# -- what is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "one of the two"),
        ({"environment": Colours, "dataset": QUESTIONS}, "one of the two"),
        ({"environment": Colours, "reward_fn": len, "rewards": [len]}, "twice"),
        ({"dataset": QUESTIONS, "validation": ["Say a colour."]}, "validation: task .* has no answer"),
        ({"environment": Colours, "call_format": "hermse"}, "'hermes'"),
        ({"environment": Colours, "call_format": HermesParser}, "not a class"),
        ({"environment": Colours, "call_format": 3}, "call_format=3"),
        ({"environment": Colours, "model": torch.nn.Linear(1, 1)}, "needs its tokenizer"),
        ({"environment": Colours, "tokenizer": "gpt2"}, r"tokenizer='gpt2': give a loaded one, AutoTokenizer"),
        ({"environment": Colours, "demonstrations": [[None]]}, "demonstrations: message 0 is None; .* has a role"),
        ({"environment": Colours, "resume": True}, "run_path"),
        ({"environment": Colours, "tools": CalculateTool()}, r"give a list of them: tools=\[calculate\]"),
        ({"environment": Colours, "callbacks": [print]}, "is no TrainerCallback; extend it"),
        ({"environment": Colours, "callbacks": [TrainerCallback]}, "an object, not a class"),
        ({"environment": Colours, "callbacks": 3}, "is no TrainerCallback"),
    ],
)
def test_arguments_that_make_no_sense_are_refused_with_a_reason(options, words):
    with pytest.raises(MidthoughtError, match=words):
        RayPPOTrainer(settings(), **options)


def test_settings_that_were_made_to_disagree_one_by_one_are_found_at_the_door():
    config = settings()
    config.inference.__dict__["top_p"] = 0.5
    with pytest.raises(SettingsError, match="top_p"):
        RayPPOTrainer(config, Colours)


@pytest.mark.parametrize(
    ("longest_prompt", "settings", "expected"),
    [
        (100, {}, 120),
        (495, {}, 500),  # the model's maximum
        (None, {}, 500),
        (None, {"backend": "vllm"}, 500),
        (100, {"max_seq_len": 300}, 300),
        (None, {"max_seq_len": 300, "backend": "vllm"}, 300),
    ],
)
def test_engines_reserve_memory_for_what_the_tasks_need(longest_prompt, settings, expected):
    config = LlamaConfig(max_position_embeddings=500)
    assert longest_sequence(longest_prompt, InferenceConfig(max_tokens=20, **settings), config) == expected
    with pytest.raises(SettingsError, match="max_seq_len=501: the model has 500 positions; set at most that"):
        longest_sequence(longest_prompt, InferenceConfig(max_tokens=20, max_seq_len=501), config)
    factors = {"short_factor": [1.0] * 64, "long_factor": [2.0] * 64}
    rope = {"rope_type": "longrope", "original_max_position_embeddings": 60, **factors}
    extended = LlamaConfig(max_position_embeddings=500, rope_parameters=rope)
    with pytest.raises(SettingsError, match="max_seq_len=300: the model has 60 positions"):
        longest_sequence(longest_prompt, InferenceConfig(max_tokens=20, max_seq_len=300), extended)
    # a server for an environment reserves less than that
    long = Gemma3Config(text_config={"max_position_embeddings": 262_144})
    assert longest_sequence(None, InferenceConfig(max_tokens=20, backend="vllm"), long) == 4096 + 20
