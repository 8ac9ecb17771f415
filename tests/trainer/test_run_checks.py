"""Runs that cannot learn stop with the cause, healthy runs report nothing. What is wrong is in the settings or the input."""

import itertools
import math
import random

import pytest
import torch
from representatives import representatives
from small_environments import QUESTIONS, Colours, Hanging, lines, settings

from midthought import RayPPOTrainer, SettingsError, TrainingStoppedError
from midthought.report.run_lock import RunLock
from midthought.rollout.episode_source import LocalEpisodeSource
from midthought.rollout.trajectory_json import load_trajectories

LOGGER = "midthought.checks"
LONG = {"num_train_iters": 12}
EQUAL = {"reward_fn": lambda trajectory: 1.0, "adv_estimator": "grpo"}


def fit(talker, *, change=lambda model: None, seconds=60.0, policies=(), run_path=None, resume=False, **options):
    """A run; settings and arguments of the trainer are given side by side. Returns its metrics."""
    change(talker["model"])
    arguments = {"run_path": run_path, "resume": resume, "reward_fn": options.pop("reward_fn", None)}
    ground = "dataset" if "dataset" in options else "environment"
    arguments[ground] = options.pop(ground, Colours)
    temperature, max_staleness = options.pop("temperature", 1.0), options.pop("max_staleness", 0)
    config = settings(options.pop("adv_estimator", "gae"), **options)
    config.inference.temperature = temperature
    config.environment.step_timeout_seconds = seconds
    config.checks.policies = dict(policies)
    if max_staleness:
        config.training.max_staleness, config.inference.max_segment_length = max_staleness, 2
    with RayPPOTrainer(config, **arguments, **talker) as trainer:
        return trainer.fit()


def raises(trajectory):
    raise ZeroDivisionError("my reward")


def set_a_nan(model):
    model.model.layers[1].mlp.up_proj.weight.data[3, 3] = math.nan


def blow_up(model):
    model.model.norm.weight.data *= 1e38


def make_random(model):
    model.lm_head.register_forward_hook(lambda module, inputs, logits: logits + 3 * torch.randn_like(logits))


CANNOT_LEARN = {
    "learning rate 1e30": ({"learning_rate": 1e30}, r"learning_rate=1e\+30.*less than or equal to 1"),
    "critic's learning rate 50": ({"critic_learning_rate": 50.0}, "critic_learning_rate=50.*less than or equal to 1"),
    "learning rate 0.5": (
        {"learning_rate": 0.5} | LONG,
        "all rewards of 10 iterations are.*lower training.learning_rate",
    ),
    "reward function raises": ({"reward_fn": raises}, "all 4 episodes.*ZeroDivisionError for task .*: my reward"),
    "environment hangs": ({"environment": Hanging, "seconds": 0.05}, "all 4 episodes.*step_timeout_seconds"),
    "equal rewards in groups": (EQUAL | LONG, r"none of the 10 iterations.*reward 1\)"),
    "equal rewards with a critic": (
        {"reward_fn": lambda trajectory: 0.1} | LONG,
        r"none of the 10 iterations.*reward 0\.1\)",
    ),
    "temperature 0": ({"temperature": 0.0, "adv_estimator": "grpo"}, "temperature=0 in training means no exploration"),
    "a weight is NaN": ({"change": set_a_nan}, r"starts from: 1 of \d+ tensors.*'model.layers.1.mlp.up_proj.weight'"),
    "weights overflow": ({"change": blow_up}, r"none of the \d+ sampled tokens has a finite log-probability"),
}


@pytest.mark.parametrize("name", representatives(CANNOT_LEARN, *CANNOT_LEARN.keys() - {"learning rate 0.5"}))
def test_a_run_that_cannot_learn_stops_with_the_cause(name, talker, tmp_path):
    options, message = CANNOT_LEARN[name]
    with pytest.raises((TrainingStoppedError, SettingsError), match=f"(?s){message}"):
        fit(talker, run_path=tmp_path / "run", **options)
    assert not (tmp_path / "run" / "policy").exists()


def sometimes_failing():
    draw = random.Random(0)

    class Sometimes(Colours):
        def step(self, action):
            if draw.random() < 0.2:
                raise RuntimeError("now and then")
            return super().step(action)

    return Sometimes


def solved_in_the_end():
    """Equal rewards in all of the last iterations, and the best ones; before, equal texts have equal rewards."""
    judged = itertools.count()
    return lambda trajectory: 1.0 if next(judged) >= 12 else float(len(trajectory.turns[-1].model_output) % 2)


HEALTHY = {
    "gae, twelve iterations": LONG,
    "grpo": {"adv_estimator": "grpo"},
    "data set": {"dataset": QUESTIONS},
    "older tokens": {"max_staleness": 2} | LONG,
    "failing episodes": {"environment": sometimes_failing()} | LONG,
    "bfloat16": {"change": lambda model: model.bfloat16()},
    "solved in the end": {"reward_fn": solved_in_the_end(), "adv_estimator": "grpo", "num_train_iters": 16},
}
"""Short runs that resemble the others."""


@pytest.mark.parametrize("name", representatives(HEALTHY, "grpo", "data set", "failing episodes"))
def test_a_healthy_run_reports_nothing(name, talker, caplog):
    fit(talker, **HEALTHY[name])
    assert not [record for record in caplog.records if record.name == LOGGER]


def test_the_checks_go_on_where_a_resumed_run_had_stopped(talker, tmp_path):
    assert len(fit(talker, num_train_iters=6, run_path=tmp_path, **EQUAL)) == 6
    with pytest.raises(TrainingStoppedError, match="none of the 10 iterations"):
        fit(talker, run_path=tmp_path, resume=True, **EQUAL, **LONG)


def test_a_checkpoint_with_a_weight_that_is_not_finite_is_refused_and_the_last_good_one_stays(talker, tmp_path):
    with RayPPOTrainer(settings(), Colours, run_path=tmp_path / "run", **talker) as trainer:
        trainer.fit()
        (good,) = (tmp_path / "run" / "checkpoints" / "ppo" / "checkpoints").iterdir()
        trainer.iteration += 1
        set_a_nan(trainer.model)
        with pytest.raises(TrainingStoppedError, match=r"checkpoint .*policy: 1 of .*up_proj.*earlier checkpoints"):
            trainer.save_checkpoint()
        with pytest.raises(TrainingStoppedError, match=r"exported: 1 of .*up_proj"):
            trainer.save_model(tmp_path / "exported")
        assert not (tmp_path / "exported").exists()
        assert [*good.parent.iterdir()] == [good]
        trainer.load_checkpoint(good)


# -- what a stopped run leaves behind --------------------------------------------------------------------------------


def test_the_episodes_of_a_gradient_that_is_not_finite_are_saved_and_the_page_shows_the_finding(talker, tmp_path):
    message = r"gradients of iteration 1 were not finite: loss inf, mean reward .*e\+31.*scale the reward.*not_finite"
    with pytest.raises(TrainingStoppedError, match=f"(?s){message}"):
        fit(talker, reward_fn=lambda trajectory: 1e30 * len(trajectory.token_ids), run_path=tmp_path)
    saved = load_trajectories(tmp_path / "not_finite" / "000001.jsonl")
    assert [each.reward.total for each in saved] == [1e30 * len(each.token_ids) for each in saved]
    (finding,) = lines(tmp_path / "findings.jsonl")
    assert (finding["check"], finding["start_step"], finding["policy"]) == ("not_finite", 1, "stop")
    assert "mean reward" in finding["observation"] and "scale the reward" in finding["action"]
    page = (tmp_path / "report.html").read_text()  # a run that a check stopped has a report, too
    assert "1. not_finite" in page and "scale the reward" in page


def test_the_metrics_that_stop_a_run_before_the_update_are_logged_and_no_weight_has_changed(talker, tmp_path):
    make_random(talker["model"])
    with RayPPOTrainer(settings(), Colours, run_path=tmp_path, **talker) as trainer:
        before = [parameter.detach().clone() for parameter in trainer.model.parameters()]
        with pytest.raises(TrainingStoppedError, match=r"(?s)differ by .* nats.*the limit is 0\.5"):
            trainer.fit()
        assert all(map(torch.equal, before, trainer.model.parameters()))
        assert trainer.learner.num_steps == trainer.iteration == 0
    (finding,) = lines(tmp_path / "findings.jsonl")
    assert (finding["check"], finding["step"], finding["policy"]) == ("logprob_difference", 1, "stop")
    assert "logprob_difference_mean" in (tmp_path / "metrics.jsonl").read_text()


def test_the_policy_of_a_check_can_be_changed(talker, caplog):
    for policy, levels in (("warn", ["WARNING"]), ("off", [])):
        caplog.clear()
        assert len(fit(talker, policies={"equal_rewards": policy}, **EQUAL, **LONG)) == 12
        assert [record.levelname for record in caplog.records if record.name == LOGGER] == levels


@pytest.mark.parametrize(
    ("policies", "message"),
    [
        ({"reward_hackin": "stop"}, "no check 'reward_hackin'. Did you mean 'reward_hacking'"),
        ({"spike": "halt"}, "halt"),
    ],
)
def test_wrong_policies_are_named_and_what_was_started_before_is_ended(
    talker, policies, message, tmp_path, monkeypatch
):
    started, ended = [], []
    init, close = LocalEpisodeSource.__init__, LocalEpisodeSource.close
    monkeypatch.setattr(
        LocalEpisodeSource, "__init__", lambda *given, **more: started.append(1) or init(*given, **more)
    )
    monkeypatch.setattr(LocalEpisodeSource, "close", lambda source: ended.append(1) or close(source))
    with pytest.raises(SettingsError, match=message):
        fit(talker, policies=policies, run_path=tmp_path)
    assert not RunLock.is_held(tmp_path)
    assert len(started) == 2 * len(ended), "each engine has two sources; one closes it"
