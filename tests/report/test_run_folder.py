import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from midthought.errors import CheckpointError, OutputPathError
from midthought.report.html import write_report
from midthought.report.run_folder import RunFolder, flat_keys


def scalars(path: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard itself shows of a folder of events."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(path), size_guidance={"scalars": 0})
    accumulator.Reload()
    return {
        tag: [(event.step, round(event.value, 4)) for event in accumulator.Scalars(tag)]
        for tag in accumulator.Tags()["scalars"]
    }


def test_a_metric_line_is_on_the_disk_when_log_returns(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    assert run.metrics.num_lines == run.trajectories.num_lines == 0 and not run.path.exists()
    with pytest.raises(ValueError, match="'stage' or 'step'"):
        run.log("ppo", 1, {"step": 2})
    run.log("ppo", 3, {"reward/mean": 0.5, "loss/policy": math.nan, "time/seconds": 1})
    line = {"stage": "ppo", "step": 3, "reward/mean": 0.5, "loss/policy": None, "time/seconds": 1.0}
    assert json.loads(run.metrics_path.read_text()) == line
    run.close()


def test_a_resumed_run_writes_the_same_metrics_as_one_that_never_stopped(tmp_path: Path) -> None:
    def train(run: RunFolder, steps: range) -> None:
        for step in steps:
            run.log("ppo", step, {"reward": step / 10})
            if step % 2 == 0:
                run.log("validation", step, {"exact_match": step / 20})

    with RunFolder(tmp_path / "whole") as whole:
        train(whole, range(1, 7))
    with RunFolder(tmp_path / "stopped") as stopped:
        train(stopped, range(1, 4))
        cursor = stopped.log_position
        train(stopped, range(4, 6))
    with stopped.metrics_path.open("a") as file:
        file.write('{"stage": "ppo", "st')
    with RunFolder(tmp_path / "stopped") as resumed:
        resumed.forget_after(cursor)
        train(resumed, range(4, 7))
    assert resumed.metrics_path.read_bytes() == whole.metrics_path.read_bytes()
    for stage in ("ppo", "validation"):
        assert scalars(resumed.tensorboard_path / stage) == scalars(whole.tensorboard_path / stage)


def test_the_summary_has_flat_dotted_keys_and_one_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    for summary in ({"after": {"oracle": {"exact_match": 0.9}}}, {"after.oracle.exact_match": 0.9}):
        run.write_summary({**summary, "control.exact_match": None, "bad": math.nan})
        written = {"after.oracle.exact_match": 0.9, "control.exact_match": None, "bad": None}
        assert json.loads(run.summary_path.read_text()) == written
        assert flat_keys(summary) == {"after.oracle.exact_match": 0.9}
        with pytest.raises(TypeError):
            run.write_summary({"seed": object()})
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]
    assert json.loads(run.summary_path.read_text()) == written


def test_a_new_run_does_not_write_into_an_old_one(tmp_path: Path) -> None:
    RunFolder(tmp_path).create()
    RunFolder(tmp_path).metrics.append([{"stage": "sft", "step": 1}])
    with pytest.raises(CheckpointError, match=r"already holds a run \(metrics.jsonl\).*--resume"):
        RunFolder(tmp_path).create()


def test_the_room_needs_neither_torch_nor_tensorboard_nor_rich_to_be_imported() -> None:
    code = (
        "import sys, midthought.report.html, midthought.report.console;"
        "print([name for name in ('torch', 'tensorboard', 'rich', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_folder_with_other_files_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("mine: 1\n")
    (tmp_path / "checkpoints").mkdir()
    for resume in (False, True):
        with pytest.raises(OutputPathError, match=r"is not empty \(checkpoints, config.yaml\)"):
            RunFolder(tmp_path).create(resume=resume)
    assert (tmp_path / "config.yaml").read_text() == "mine: 1\n"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["checkpoints", "config.yaml"]


def test_a_report_of_the_user_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"stage": "mine", "step": 1}\n')
    (tmp_path / "report.html").write_text("mine")
    with pytest.raises(OutputPathError, match=r"report.html"):
        write_report(tmp_path)
    assert (tmp_path / "report.html").read_text() == "mine"
