"""`midthought train podcast --engine verl`: the bundle of both profiles, and every mistake as one line."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet
import pytest
import yaml
from commands import train
from podcast import write
from small_runs import write_short_transcripts

from midthought.cluster.verl import installed
from midthought.cluster.verl.record import task_of
from midthought.recipes.podcast.verl import memory_tool, settings


def test_the_cluster_profile_has_room_for_its_segments_and_its_memory_goes_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = write(monkeypatch, tmp_path, "cluster")
    [loop] = yaml.safe_load((bundle / "agent_loop.yaml").read_text())
    script = (bundle / "train.sh").read_text()
    assert loop["options"]["max_segment_length"] == 256 and "data.max_response_length=4096" in script
    rows = pyarrow.parquet.read_table(bundle / "data" / "train.parquet").to_pylist()
    assert len(rows) >= 256
    assert [said["role"] for said in rows[0]["prompt"]] == ["system", "user"]
    assert "#call memory_retrieval" in rows[0]["prompt"][0]["content"]
    [tool] = yaml.safe_load((bundle / "tools.yaml").read_text())["tools"]
    options = tool["config"]["options"]
    assert options["path"] == "${oc.env:MIDTHOUGHT_BUNDLE}/memory"
    found = memory_tool(**options | {"path": str(bundle / "memory")})
    asked = next(task_of(row) for row in rows if task_of(row).labels["needs_memory"])
    assert found.execute(query=asked.prompt.split('"')[1], k=3).metadata["chunk_ids"]


def test_a_file_of_ones_own_may_hold_a_section_for_verl(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(
        "verl: {num_nodes: 2, overrides: {trainer.save_freq: 7}}\ntraining: {seed: 3}\n"
    )
    chosen = settings(["verl.gpus_per_node=4"], tmp_path / "mine.yaml")
    assert (chosen.verl.num_nodes, chosen.verl.gpus_per_node, chosen.training.seed) == (2, 4, 3)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--engine", "verll"), "unknown engine 'verll'. Did you mean 'verl'?"),
        (("--gpu-gib", "24"), "--gpu-gib describes a GPU for --dry-run"),
        (
            ("--engine", "verl", "--stage", "sft"),
            "verl learns whole messages, and the demonstrations of 'podcast' hold",
        ),
        (("--engine", "verl", "--stage", "evaluate"), "unknown stage 'evaluate'"),
        (("--engine", "verl", "--resume"), "run the bundle's train.sh again"),
        (("--engine", "verl", "--dry-run", "--config", "clutser"), "no file and no profile. Did you mean 'cluster'?"),
        (("--engine", "verl", "--dry-run", "verl.gpus=4"), "unknown key 'gpus' in verl"),
        (("--engine", "verl", "--dry-run", "training.batch_size=96"), "not a multiple of mini_batch_size=64"),
        (("--engine", "verl"), "pip install 'midthought[verl]'"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_written(
    words: tuple[str, ...],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(installed, "has_verl", lambda: False)
    transcripts = write_short_transcripts(tmp_path / "episodes")
    code = train(monkeypatch, "podcast", *words, "--run", str(tmp_path / "b"), f"memory.transcripts={transcripts}")
    told = capsys.readouterr().err
    assert code == 2 and said in told and told.count("\n") == 1
    assert not (tmp_path / "b").exists()
