"""The bundle: what is in it, that it is whole, and that nothing is written where something is wrong."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
import yaml
from worlds import Look, task

from midthought.cluster.verl.bundle import write_bundle
from midthought.cluster.verl.job import ToolPlan, VerlJob
from midthought.cluster.verl.record import task_of
from midthought.cluster.verl.settings import LoopOptions, VerlConfig
from midthought.config import RecipeConfig
from midthought.errors import DataError, SettingsError

TASKS = [dataclasses.replace(task(number), prompt=f"Ü\ud800 {number}") for number in range(70)]
PROJECT = "it's mine; $(rm -rf x)"


def configured(**sections: Any) -> RecipeConfig:
    return RecipeConfig().merged({"model": {"local_path": "some/model"}, "training": {"batch_size": 64}, **sections})


def job(**more: Any) -> VerlJob:
    given = {
        "recipe": "test",
        "config": configured(),
        "data_source": "x",
        "ability": "qa",
        "tasks": {"train": TASKS, "validation": TASKS[:3]},
        "messages": lambda each: each.messages("Be short."),
        "tools": [
            ToolPlan(reference="worlds:Look", definition=Look.definition, options={"path": "{bundle}/m", "k": 3})
        ],
        "supply": "worlds:supply",
        "supply_options": {"every_few": False},
        "extras": ["memory"],
        "write_files": lambda folder: (folder / "more.txt").write_text("more"),
    }
    return VerlJob(**given | more)


def test_everything_that_a_cluster_needs_is_in_it(tmp_path: Path) -> None:
    files = write_bundle(job(), VerlConfig(num_validation_rows=2), tmp_path / "b")
    names = [path.relative_to(tmp_path / "b").as_posix() for path in files]
    expected = (
        "agent_loop.yaml config.yaml data/train.parquet data/validation.parquet more.txt requirements.txt tools.yaml"
    )
    assert [name for name in names if not name.startswith("package/")] == [*expected.split(), "train.sh"]
    rows = pyarrow.parquet.read_table(tmp_path / "b" / "data" / "train.parquet").to_pylist()
    assert len(rows) == 70
    assert rows[4]["prompt"] == [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Ü? 4"}]
    assert rows[4]["reward_model"] == {"style": "rule", "ground_truth": "Ada"}
    assert (rows[4]["data_source"], rows[4]["ability"], rows[4]["agent_name"]) == ("x", "qa", "midthought")
    assert (rows[4]["extra_info"]["index"], rows[4]["extra_info"]["split"]) == (4, "train")
    assert task_of(rows[4]) == TASKS[4]
    assert pyarrow.parquet.read_table(tmp_path / "b" / "data" / "validation.parquet").num_rows == 2
    [loop] = yaml.safe_load((tmp_path / "b" / "agent_loop.yaml").read_text())
    assert loop["name"] == "midthought" and LoopOptions(**loop["options"]).supply == "worlds:supply"
    [tool] = yaml.safe_load((tmp_path / "b" / "tools.yaml").read_text())["tools"]
    assert tool["config"]["options"] == {"path": "${oc.env:MIDTHOUGHT_BUNDLE}/m", "k": 3}
    assert tool["tool_schema"]["function"]["name"] == "look"
    verl, *others = (tmp_path / "b" / "requirements.txt").read_text().splitlines()
    assert verl == "verl[vllm,fsdp]==0.9.1" and {"pydantic>=2.11", "lancedb>=0.40"} <= {*others}
    assert not [line for line in others if "midthought" in line or "math-verify" in line or ";" in line]


def test_the_package_that_wrote_it_is_imported_before_an_installed_one(tmp_path: Path) -> None:
    write_bundle(job(), VerlConfig(), tmp_path / "b")
    package = tmp_path / "b" / "package"
    assert {"py.typed", "report/report.html", "recipes/podcast/cluster.yaml"} <= {
        path.relative_to(package / "midthought").as_posix() for path in package.rglob("*.*")
    }
    assert (package / "midthought/cluster/verl/record.py").is_file() and not list(package.rglob("__pycache__"))
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "import midthought; print(midthought.__file__)"\n')
    python.chmod(0o755)
    command, environment = ["bash", tmp_path / "b" / "train.sh"], {**os.environ, "PYTHON": str(python)}
    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert said.strip() == str(package / "midthought" / "__init__.py")


def test_the_script_runs_verl_from_wherever_the_bundle_lies(tmp_path: Path) -> None:
    write_bundle(job(config=configured(checkpoint={"tracker_project": PROJECT})), VerlConfig(), tmp_path / "b")
    moved = tmp_path / "moved to here"
    (tmp_path / "b").rename(moved)
    echo = tmp_path / "echo"
    echo.write_text('#!/bin/sh\nprintf "%s\\n" "$@" > "$MIDTHOUGHT_BUNDLE/words"\nexit 3\n')
    echo.chmod(0o755)
    command = ["bash", str(moved / "train.sh"), "trainer.total_training_steps=2"]
    assert subprocess.run(command, env={**os.environ, "PYTHON": str(echo)}, check=False).returncode == 3
    words = (moved / "words").read_text().splitlines()
    assert words[:2] == ["-m", "verl.trainer.main_ppo"] and words[-1] == "trainer.total_training_steps=2"
    assert f"data.train_files='{moved}/data/train.parquet'" in words
    assert f"actor_rollout_ref.rollout.agent.agent_loop_config_path='{moved}/agent_loop.yaml'" in words
    assert f"+ray_kwargs.ray_init.runtime_env.env_vars.MIDTHOUGHT_BUNDLE='{moved}'" in words
    assert "trainer.project_name='it\\'s mine; $(rm -rf x)'" in words


@pytest.mark.parametrize(
    ("lora_rank", "overrides"), [(0, {}), (8, {}), (0, {"actor_rollout_ref.actor.checkpoint.save_contents": ["model"]})]
)
def test_the_script_says_how_to_get_the_trained_policy(
    tmp_path: Path, lora_rank: int, overrides: dict[str, Any]
) -> None:
    """verl's Hugging Face folder does not load if the model has adapters, so it is not written then."""
    model = {"local_path": "some/model", "lora_rank": lora_rank}
    write_bundle(job(config=configured(model=model)), VerlConfig(overrides=overrides), tmp_path / "b")
    script, is_written = (tmp_path / "b" / "train.sh").read_text(), lora_rank == 0 and not overrides
    assert ("checkpoint.save_contents=[model,optimizer,extra,hf_model]" in script) == is_written
    assert ("# The trained policy: checkpoints/global_step_N/actor/huggingface\n" in script) == is_written
    merge = (
        "model_merger merge --backend fsdp --local_dir checkpoints/global_step_N/actor --target_dir FOLDER; then FOLDER"
    )
    assert (merge in script) == (not is_written)


@pytest.mark.parametrize(
    ("changes", "place", "error", "words"),
    [
        ({"tasks": {"train": TASKS[:5], "validation": TASKS}}, "new", SettingsError, "5 training tasks do not fill"),
        ({"tasks": {"train": TASKS, "validation": []}}, "new", DataError, "validation: there is no task"),
        ({"supply_options": {"a": {1, 2}}}, "new", SettingsError, "supply_options.*JSON"),
        ({}, "used", SettingsError, "used is not empty; give a new folder"),
        ({}, "used/file", SettingsError, "file is not empty"),
    ],
)
def test_where_something_is_wrong_nothing_is_written(
    tmp_path: Path, changes: dict[str, Any], place: str, error: type[Exception], words: str
) -> None:
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").touch()
    with pytest.raises(error, match=words):
        write_bundle(job(**changes), VerlConfig(), tmp_path / place)
    assert [path.name for path in tmp_path.rglob("*")] == ["used", "file"]
