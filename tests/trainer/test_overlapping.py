"""What overlap of sampling and learning gains is measured, and decides how the run goes on."""

from __future__ import annotations

import time
from itertools import groupby
from types import SimpleNamespace

import pytest
from small_environments import QUESTIONS
from test_staleness import QUESTIONS_OF_ONE_KIND, by_length, settings

from midthought import RayPPOTrainer, TrainerCallback
from midthought.trainer import overlapping
from midthought.trainer.overlapping import Stages, forecast


def batch(*, sampling=2.0, num_sampled=100, num_trained=100, learning=1.0, rest=0.0, waiting=0.0):
    """Metrics of a batch of 100 tokens that takes 2 s of sampling and 1 s of learning, in turn."""
    return {
        "episode/policy_tokens": num_trained / 4,
        "episode/count": 4,
        "time/engine_tokens_per_second": num_sampled / sampling,
        "time/wall": 50.0,
        "time/idle_engine": 50.0 - sampling,
        "time/idle_learner": 50.0 - learning,
        "time/rollout_seconds": sampling + waiting,
        "time/seconds": sampling + waiting + learning + rest,
        "time/waiting": waiting,
    }


def at_once(*seconds, **values):
    return [{**batch(**values), "time/seconds": each} for each in seconds]


def test_the_gain_is_the_time_in_turn_by_that_of_batches_that_overlapped():
    gain, sentence = forecast([batch(), batch()], at_once(2.2, 2.4, 2.6, sampling=2.3, learning=1.3))
    assert gain == pytest.approx(3.0 / 2.4)
    assert sentence == (
        "a batch takes 3 s if sampling (2 s), learning (1 s) and waiting (0 s) are in turn, 2.4 s if they overlap "
        "(2.3 s, 1.3 s), gain 1.25"
    )


def test_what_is_waited_for_in_turn_and_what_neither_samples_nor_learns_counts():
    in_turn = [batch(waiting=1.0, rest=9.0), batch(waiting=2.0, rest=0.25)]
    assert forecast(in_turn, at_once(4.0))[0] == pytest.approx((2 + 1 + 1.5 + 0.25) / 4)


def test_neither_what_is_sampled_ahead_nor_the_learners_start_nor_a_longer_batch_counts():
    expected = pytest.approx(forecast([batch(), batch()], at_once(3.0))[0])
    first = batch(sampling=6.0, num_sampled=300, learning=30.0)
    assert forecast([first, batch()], at_once(3.0))[0] == expected
    longer = {"sampling": 4.0, "num_sampled": 200, "num_trained": 200, "learning": 2.0}
    assert forecast([batch(), batch(**longer)], at_once(6.0, **longer))[0] == expected


def test_batches_of_given_episodes_have_no_waiting():
    given = [{name: value for name, value in batch().items() if name != "time/waiting"}] * 2
    assert forecast(given, at_once(2.0)) == forecast([batch(), batch()], at_once(2.0))


def test_batches_with_episodes_from_before_a_restart_are_not_measured():
    """Their groups were sampled before, so they take less time."""
    engine = SimpleNamespace(busy_seconds=0.0, num_tokens=0)
    stream = SimpleNamespace(engine=engine, overlaps=False)
    told, modes = [], []
    measured = Stages(stream, None, "auto", told.append)
    for is_restored in (True, True, False, True, False, False, True, False, False):
        stream.is_restored, engine.busy_seconds = is_restored, time.perf_counter()
        engine.num_tokens += 9
        measured.end_batch({**batch(), "time/update_seconds": 1.0})
        modes.append((stream.overlaps, len(told)))
    assert modes[:-1] == [(False, 0)] * 4 + [(True, 0)] * 4 and modes[-1][1] == 1


class Modes(TrainerCallback):
    """Whether the next batch is sampled while the learner works, and the threads of both."""

    def __init__(self):
        self.seen = []

    def on_step(self, trainer, metrics):
        self.seen.append((trainer.source.stream.overlaps, trainer.learner.workers.num_threads))


@pytest.mark.parametrize(("least", "last"), [(0.0, (True, 1)), (1e9, (False, 2))], ids=["it gains", "it does not"])
def test_two_batches_are_in_turn_three_overlap_and_then_the_gain_decides(least, last, untaught, monkeypatch, capsys):
    monkeypatch.setattr(overlapping, "MIN_GAIN", least)
    monkeypatch.setattr(overlapping, "num_cores", lambda: 2)
    monkeypatch.setattr("torch.get_num_threads", lambda: 2)
    config, modes = settings(num_iters=12, deterministic=False, overlap="auto"), Modes()
    options = {"dataset": QUESTIONS_OF_ONE_KIND, "reward_fn": by_length, "validation": QUESTIONS, "callbacks": modes}
    with RayPPOTrainer(config, **untaught, **options) as trainer:
        history = trainer.fit()
    kinds = [kind for kind, _ in groupby(modes.seen)]  # a batch that was sampled before as a whole is not counted
    assert kinds == [(False, 2), (True, 1), *[last] * (last != (True, 1))]
    assert modes.seen.count((True, 1)) >= 3
    (line,) = [line for line in capsys.readouterr().out.splitlines() if ", gain " in line]
    assert line.endswith(f"they {'overlap' if last[0] else 'work in turn'} (inference.overlap=auto)")
    for figures in history:
        assert figures["staleness/max"] <= 2
        assert 0 <= figures["time/waiting"] <= figures["time/rollout_seconds"]
        assert 0 <= figures["time/idle_engine"] <= figures["time/wall"]
        assert figures["time/idle_learner"] <= figures["time/wall"]
