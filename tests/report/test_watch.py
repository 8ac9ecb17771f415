"""`midthought watch`: the metrics of a run are read from its folder, from outside, until the run ends."""

import sys
import threading
from pathlib import Path

import pytest

from midthought.cli import main
from midthought.report.run_folder import RunFolder
from midthought.report.run_lock import RunLock
from midthought.report.watch import RunState, RunWatcher, metrics_line


@pytest.fixture
def run(tmp_path):
    """A run folder that this process works in, with 15 iterations."""
    with RunFolder(tmp_path / "run", trackers=()).create() as folder:
        for step in range(1, 16):
            folder.log("ppo", step, {"zeta": 1.0, "reward/mean": step / 16, "time/seconds": 2.0})
        yield folder


def test_each_new_line_of_the_metrics_is_shown_once(run):
    watcher = RunWatcher(run.path)
    assert list(watcher.look()) == [f"ppo {step}: reward/mean {step / 16:.3g}" for step in range(6, 16)]
    assert list(watcher.look()) == [] and watcher.state is RunState.RUNNING
    run.log("validation", 15, {"exact_match": 0.25, "num_questions": 8})
    assert list(watcher.look()) == ["validation 15: exact_match 0.25"]


def test_a_line_shows_no_control_characters_and_not_all_metrics():
    parts = {f"part/{number}/\x1b[2J\n": 1.0 for number in range(40)}
    line = metrics_line({"stage": "ppo", "step": 6, "time/seconds": 1.0, "word": "x", **parts})
    assert line.startswith("ppo 6: part/0/[2J  1 · ") and not set("\x1b\n") & set(line) and line.count(" · ") == 5


def test_a_run_is_followed_until_its_end(run):
    def end() -> None:
        run.log("ppo", 16, {"reward/mean": 1.0})
        run.write_summary({})
        run.unlock()

    timer = threading.Timer(0.3, end)
    timer.start()
    watcher = RunWatcher(run.path)
    assert list(watcher.follow(0.1))[-1] == "ppo 16: reward/mean 1" and watcher.state is RunState.FINISHED
    timer.join()


def test_a_run_that_ends_while_it_is_looked_at_has_shown_its_last_line(run, monkeypatch):
    is_held = RunLock.is_held

    def ends_now(path):
        run.log("ppo", 16, {"reward/mean": 1.0})
        run.write_summary({})
        run.unlock()
        return is_held(path)

    monkeypatch.setattr(RunLock, "is_held", ends_now)
    watcher = RunWatcher(run.path)
    assert list(watcher.look())[-1] == "ppo 16: reward/mean 1" and watcher.state is RunState.FINISHED


def test_the_command_ends_with_the_state_of_the_run(run, monkeypatch, capsys):
    def call(*words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["midthought", "watch", *words])
        with pytest.raises(SystemExit) as stop:
            main()
        captured = capsys.readouterr()
        return int(stop.value.code or 0), captured.out + captured.err

    code, text = call(str(run.path), "--once")
    assert code == 0 and "ppo 15: reward/mean 0.938" in text and "run: running" in text
    run.unlock()
    code, text = call(str(run.path))
    assert code == 1 and "run: ended before its last evaluation; --resume continues it" in text
    code, text = call("nowhere")
    assert code == 2 and "nowhere is no run folder" in text
    assert not Path("nowhere").exists()
