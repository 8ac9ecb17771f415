"""`midthought watch`: the metrics of a run are read from its folder, from outside, until the run ends."""

from pathlib import Path

import pytest

from midthought.report.run_folder import RunFolder
from midthought.report.run_lock import RunLock
from midthought.report.run_record import RunState, follow, metrics_line, state_of


@pytest.fixture
def run(tmp_path):
    """A run folder that this process works in, with 15 iterations."""
    with RunFolder(tmp_path / "run", trackers=()).create() as folder:
        for step in range(1, 16):
            folder.log("ppo", step, {"zeta": 1.0, "reward/mean": step / 16, "time/seconds": 2.0})
        yield folder


def test_a_line_shows_no_control_characters_and_not_all_metrics():
    parts = {f"part/{number}/\x1b[2J\n": 1.0 for number in range(40)}
    line = metrics_line({"stage": "ppo", "step": 6, "time/seconds": 1.0, "word": "x", **parts})
    assert line.startswith("ppo 6: part/0/[2J  1 · ") and not set("\x1b\n") & set(line) and line.count(" · ") == 5


def test_each_new_line_of_a_run_is_shown_once_until_its_end(run):
    lines = follow(run.path, 0.01)
    assert [next(lines) for _ in range(10)] == [f"ppo {step}: reward/mean {step / 16:.3g}" for step in range(6, 16)]
    run.log("validation", 15, {"exact_match": 0.25, "num_questions": 8})
    assert next(lines) == "validation 15: exact_match 0.25" and state_of(run.path) is RunState.RUNNING
    run.log("ppo", 16, {"reward/mean": 1.0})
    run.write_summary({})
    run.unlock()
    assert list(lines) == ["ppo 16: reward/mean 1"] and state_of(run.path) is RunState.FINISHED


def test_a_run_that_ends_while_it_is_looked_at_has_shown_its_last_line(run, monkeypatch):
    is_held = RunLock.is_held

    def ends_now(path):
        run.log("ppo", 16, {"reward/mean": 1.0})
        run.write_summary({})
        run.unlock()
        return is_held(path)

    monkeypatch.setattr(RunLock, "is_held", ends_now)
    assert list(follow(run.path))[-1] == "ppo 16: reward/mean 1"


def test_the_command_ends_with_the_state_of_the_run(run, call):
    code, *text = call("watch", str(run.path), "--once")
    assert code == 0 and "ppo 15: reward/mean 0.938" in "".join(text) and "run: running" in "".join(text)
    run.unlock()
    code, *text = call("watch", str(run.path))
    assert code == 1 and "run: ended before its last evaluation; --resume continues it" in "".join(text)
    code, _, error = call("watch", "nowhere")
    assert code == 2 and "nowhere is no run folder" in error
    assert not Path("nowhere").exists()
