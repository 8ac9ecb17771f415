"""What a run has done so far: a later process reads what an earlier one wrote."""

import time

import pytest

from midthought.config import RecipeConfig
from midthought.errors import CheckpointError
from midthought.report.run_folder import PROGRESS, RunFolder
from midthought.rollout.resuming import Journal
from midthought.trainer.checkpoint import RunProgress
from midthought.trainer.prompt_record import PromptRecord
from midthought.trainer.run import Run


@pytest.fixture
def run(tmp_path):
    with RunFolder(tmp_path / "run").create() as folder:
        yield folder


def test_a_later_process_knows_what_is_done_with_its_figures_seconds_memory_and_lines(run):
    progress = RunProgress(run)
    run.log("sft", 1, {"loss": 2.0})
    run.log("sft", 2, {"loss": 1.0})
    run.add_trajectories([{"task_id": "t"}])
    with progress.timed("warmup"):
        time.sleep(0.02)
    progress.finish("warmup", {"before.exact_match": 0.5})
    assert 10 < progress.peak_rss_mib < 1e6
    progress.peak_rss_mib = 1e9
    run.log("ppo", 1, {"reward/mean": 0.1})  # not part of a finished stage
    with pytest.raises(KeyboardInterrupt), progress.timed("ppo"):
        time.sleep(0.02)
        raise KeyboardInterrupt
    progress.save()

    later = RunProgress(run)
    later.load()
    assert later.done == ["warmup"] and later.metrics == {"before.exact_match": 0.5}
    assert [later.log_position[f"num_{log}_lines"] for log in ("metric", "trajectory")] == [2, 1]
    assert later.seconds["warmup"] >= 0.02
    with later.timed("ppo"):  # the interrupted stage's seconds count, too
        time.sleep(0.02)
    assert later.seconds["ppo"] >= 0.04
    later.save()
    assert later.peak_rss_mib == 1e9


@pytest.mark.parametrize("text", [None, "", "{", "[]", "3", '{"done": 3}', '{"surprise": 1}'])
def test_where_there_is_nothing_to_go_on_from_the_file_is_named(run, text):
    if text is not None:
        (run.path / PROGRESS).write_text(text)
    with pytest.raises(CheckpointError, match=r"progress\.json cannot be read .*no run to go on with"):
        RunProgress(run).load()


def test_a_recipe_that_records_other_settings_has_dropped_what_the_journal_has_of_earlier_ones(tmp_path):
    """A kill before its trainer exists would leave it for a process that sees no change."""
    for resume, rate in ((False, 1e-5), (True, 2e-5)):
        config = RecipeConfig(training={"learning_rate": rate})
        run = Run(tmp_path / "run", config, resume=resume, allow_changes=True, is_shared=True)
        run.require_same(config, PromptRecord())
        run.create()
        run.find_checkpoints()
        run.record_settings("beginning", 0)
        journal = run.journal
        if not resume:
            journal.begin()
            journal.write({"version": 0, "checksum": 1})
        run.close()
    assert [*Journal(journal._folder).read(0)] == []  # noqa: SLF001
