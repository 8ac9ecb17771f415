"""Every part runs, does the work that it says, and gives its rows; what is timed here means nothing."""

import json
import os
from importlib.util import find_spec
from pathlib import Path

import pytest
from representatives import representatives

from benchmarks import trl_loop
from benchmarks.learner_work import extended_rows, long_tailed_work
from benchmarks.parts import PARTS, main
from benchmarks.reciter import Reciter
from benchmarks.systems import Ours, OurSampling, RePrefill, make_engine
from benchmarks.vllm import PYTHON
from benchmarks.work import Shape, Work

SHAPE = Shape(num_episodes=3, num_prompt=40, num_span=12, num_result=24)


def run(part: str, folder: Path) -> list[dict]:
    main([part, "--quick", "--out", str(folder)])
    assert (folder / f"{part}.md").read_text("utf-8").count(f"| {part} |") > 0
    return json.loads((folder / f"{part}.json").read_text("utf-8"))["rows"]


GOALS = {
    "rollout": ["≥ 0.9", "≥ 1.2", "≤ 1.15", "≥ 1", "≤ 2.5", "≤ 1.1"],
    "tools": ["≤ 1.1"],
    "parse": ["≤ 3"] * 10,
    "lora": ["≥ 0.95"],
    "scaling": [],
    "memory_scale": ["≥ 0.95"],
    "memory": [],
    "service": ["≤ 1.3", "≤ 1.3", "≤ 1.3", "≥ 2"],
    "busy": ["≥ 0.9", "≥ 1.5"],
    "gateway": [*["≤ 3"] * 8, "≤ 5", "≤ 20", "≤ 1.02"],
    "plan": ["≥ 0.98", "≥ 0.98"],
    "ray": ["≥ 0.9", "≥ 0.9"],
    "learner": [*["≥ 0.85", *["≥ 1.5"] * trl_loop.is_installed()] * 2, "≤ 0.4"],
    "trl": ["≥ 2.5", "≥ 5"],
    "vllm": [],
}
NEEDS = {"ray": find_spec("ray"), "trl": trl_loop.is_installed(), "vllm": os.environ.get(PYTHON)}


@pytest.mark.parametrize("part", representatives(GOALS, "parse"))
def test_a_part_runs_alone_and_judges_its_goals(part: str, tmp_path: Path) -> None:
    if not NEEDS.get(part, True):
        pytest.skip(f"needs {part}")
    rows = run(part, tmp_path)
    assert [row["goal"] for row in rows if row["goal"]] == GOALS[part]
    for row in rows:
        value = row["value"]
        assert 0 < value["lowest"] <= value["median"] <= value["highest"]
        assert (row["is_met"] is None) == (not row["goal"])


def test_extended_rows_have_one_length_and_the_same_tokens_to_learn_from() -> None:
    batch = long_tailed_work("tiny", 4).batch()
    extended = extended_rows(batch)
    assert {*extended.lengths.tolist()} == {int(batch.lengths.max())} != {*batch.lengths.tolist()}
    assert extended.token_ids[extended.loss_mask].equal(batch.token_ids[batch.loss_mask])


def test_an_unknown_part_is_refused_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["rolout"])
    message = capsys.readouterr().err
    assert "'rolout'" in message
    assert all(part in message for part in PARTS)


@pytest.mark.parametrize("style", ["in_thought", "hermes"])
def test_our_episodes_have_the_shape_that_was_asked_for(style: str) -> None:
    reciter = Reciter("tiny", style, num_span=SHAPE.num_span)
    shape = Shape(num_episodes=3, num_prompt=60, num_span=SHAPE.num_span, num_result=60)
    system = Ours(reciter, make_engine(reciter, shape))
    system.prepare(Work(reciter, shape, seed=1))
    system.run()
    system.check()
    assert [len(trajectory.token_ids) for trajectory in system.trajectories] == [shape.length] * 3
    assert len(system.finished_seconds) == 3


def test_re_prefilling_computes_every_context_at_every_call_and_ours_only_what_is_new() -> None:
    """Contexts of 40, 40 + 12 + 24 = 76 and 112 tokens; ours: 40, then a sampled token and the result, 25, twice."""
    reciter = Reciter("tiny", "in_thought", num_span=SHAPE.num_span)
    engine = make_engine(reciter, SHAPE, share_prefixes=False)
    forgetful = RePrefill(reciter, SHAPE)
    for system in (Ours(reciter, engine), forgetful):
        system.prepare(Work(reciter, SHAPE, seed=1))
        system.run()
        system.check()
    assert engine.stats.num_prefilled_tokens == 3 * (40 + 25 + 25)
    assert forgetful.engine.stats.num_prefilled_tokens == 3 * (40 + 76 + 112)


def test_work_done_wrong_is_found_out() -> None:
    """An engine of another script: its tokens are not those that the benchmark asked for."""
    reciter, other = (Reciter("tiny", "in_thought", num_span=num_span) for num_span in (12, 13))
    system = OurSampling(reciter, make_engine(other, SHAPE))
    system.prepare(Work(reciter, SHAPE, seed=1))
    system.run()
    with pytest.raises(AssertionError, match="sampled token"):
        system.check()
