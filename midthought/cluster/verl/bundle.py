"""Writes a folder that trains a recipe with verl: data, tools, agent loop, reward, command line, and this package.

It runs on any machine with verl. Paths inside it are resolved when it runs, so it may be moved; all nodes must see it under the
same path. If verl is installed, the overrides are checked against its configuration.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import yaml

from midthought.cluster.verl.job import ToolPlan, VerlJob
from midthought.cluster.verl.overrides import BundlePath, overrides_of
from midthought.cluster.verl.record import rows_of, write_parquet
from midthought.cluster.verl.settings import AGENT_NAME, DerivedValues, LoopOptions, VerlConfig
from midthought.errors import DataError, MissingExtraError, SettingsError

_PLAIN = re.compile(r"[A-Za-z_][\w/-]*(\.[\w/-]+)*", re.ASCII)
_NOT_TEXT = ("null", "true", "false", "nan", "inf")
VERL_VERSION = "0.9.1"
"""Version of verl that the bundle is written for."""
BUNDLE_VARIABLE = "MIDTHOUGHT_BUNDLE"
"""Environment variable of the workers: path of the bundle's folder."""
SCRIPT, TOOLS, AGENT_LOOP = "train.sh", "tools.yaml", "agent_loop.yaml"
PACKAGE = "package"
"""Folder in the bundle with a copy of this package, which is imported before an installed one."""
_HERE = f"${{oc.env:{BUNDLE_VARIABLE}}}"

_SCRIPT_HEAD = """#!/usr/bin/env bash
# Trains the recipe {recipe!r} with verl {verl}, {gpus} GPUs. Install once, on every node: pip install -r requirements.txt
# To use a running Ray cluster, set RAY_ADDRESS; its nodes must see this folder under the same path.
{trained_policy}
# Further arguments are passed to verl, for example: ./{script} trainer.total_training_steps=2
set -euo pipefail
cd "$(dirname "${{BASH_SOURCE[0]}}")"
export {variable}="$PWD" PYTHONPATH="$PWD/{package}${{PYTHONPATH:+:$PYTHONPATH}}"
exec "${{PYTHON:-python}}" -m verl.trainer.main_ppo \\
"""


def has_verl() -> bool:
    """Whether this interpreter can import verl."""
    return importlib.util.find_spec("verl") is not None


def require_verl() -> None:
    """Raises `MissingExtraError` if this interpreter has no verl."""
    if not has_verl():
        raise MissingExtraError("verl", "verl")


def compose(words: Sequence[str]) -> Any:
    """Returns the whole configuration of verl's PPO trainer (a DictConfig) with these overrides.

    Raises `SettingsError` for an unknown key or an invalid value.
    """
    from hydra import compose as compose_config
    from hydra import initialize_config_module
    from hydra.errors import HydraException

    try:
        with initialize_config_module("verl.trainer.config", version_base=None):
            return compose_config("ppo_trainer", overrides=list(words))
    except HydraException as error:
        raise SettingsError(f"verl does not accept the settings: {' '.join(str(error).split())}") from None


def hydra_override(key: str, value: Any) -> str:
    """Returns `key=value` in Hydra's syntax."""
    return f"{key}={_hydra_value(value)}"


def _hydra_value(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_hydra_value, value))}]"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{name}:{_hydra_value(each)}" for name, each in value.items()) + "}"
    text = str(value)
    if _PLAIN.fullmatch(text) and text.lower() not in _NOT_TEXT:
        return text
    escaped = re.sub(r"(\\*)(\'|$)", lambda found: found[1] * 2 + ("\\'" if found[2] else ""), text)
    return f"'{escaped}'"


def launch(script: Path) -> int:
    """Runs a bundle's script with this interpreter. Returns its exit code."""
    environment = {**os.environ, "PYTHON": sys.executable}
    return subprocess.run(["bash", str(script)], env=environment, check=False).returncode  # noqa: S607  # bash of PATH


def _trained_policy(overrides: Mapping[str, Any]) -> str:
    """Returns a comment: how to get the trained policy."""
    shards = "checkpoints/global_step_N/actor"
    if any(key.endswith("checkpoint.save_contents") and "hf_model" in each for key, each in overrides.items()):
        return f"# The trained policy: {shards}/huggingface"
    merge = f"python -m verl.model_merger merge --backend fsdp --local_dir {shards} --target_dir FOLDER"
    return f"# The trained policy: {merge}; then FOLDER, with adapters FOLDER/lora_adapter"


def write_bundle(job: VerlJob, verl: VerlConfig, folder: Path) -> list[Path]:
    """Writes the bundle into `folder`, which must be new or empty. Returns the files written.

    Raises `SettingsError` if the folder is not empty, verl lacks a setting, sizes are not multiples of each other, or (if verl
    is installed) a key is not in its configuration. Then nothing is written.
    """
    derived = DerivedValues(job.config, verl, job.recipe, len(job.tasks["train"]))
    overrides = overrides_of(derived)
    if has_verl():
        compose([hydra_override(key, value) for key, value in overrides.items()])
    try:
        supply_options = json.loads(json.dumps(dict(job.supply_options)))
    except (TypeError, ValueError) as error:
        raise SettingsError(f"supply_options of {job.recipe!r} are not JSON values: {error}") from None
    options = LoopOptions.from_config(
        job.config.inference, verl, call_format=job.call_format, supply=job.supply, supply_options=supply_options
    )
    files = {
        "config.yaml": job.config.to_yaml(),
        TOOLS: _tools_yaml(job, options.tool_timeout_seconds),
        AGENT_LOOP: _agent_loop_yaml(options),
        "requirements.txt": _requirements(job.extras, verl.rollout),
        SCRIPT: _script(job.recipe, verl, overrides),
    }
    splits = {
        "train": (job.data_source, job.tasks["train"]),
        "validation": (job.validation_source or job.data_source, job.tasks["validation"][: verl.num_validation_rows]),
    }
    tables = {
        split: rows_of(tasks, job.messages, data_source=source, ability=job.ability, split=split)
        for split, (source, tasks) in splits.items()
    }
    _write_folder(folder, tables, files)
    _copy_package(folder)
    job.write_files(folder)
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _write_folder(folder: Path, tables: Mapping[str, Sequence[Mapping[str, Any]]], files: Mapping[str, str]) -> None:
    """Writes Parquet tables into `data/`, and text files; makes `SCRIPT` executable.

    Raises `DataError` if a table is empty, `SettingsError` if the folder is not empty. Then nothing is written.
    """
    if empty := [name for name, rows in tables.items() if not rows]:
        raise DataError(f"{empty[0]}: there is no task to write; verl needs at least one")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise SettingsError(f"{folder} is not empty; give a new folder with --run")
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in tables.items():
        write_parquet(rows, folder / "data" / f"{name}.parquet")
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    (folder / SCRIPT).chmod(0o755)


def _script(recipe: str, verl: VerlConfig, overrides: Mapping[str, Any]) -> str:
    """Returns the script, one override per line."""
    head = _SCRIPT_HEAD.format(
        recipe=recipe,
        verl=VERL_VERSION,
        gpus=f"{verl.num_nodes} x {verl.gpus_per_node}",
        trained_policy=_trained_policy(overrides),
        script=SCRIPT,
        variable=BUNDLE_VARIABLE,
        package=PACKAGE,
    )
    return head + "".join(f"    {word} \\\n" for word in _shell_overrides(overrides)) + '    "$@"\n'


def _shell_overrides(overrides: Mapping[str, Any]) -> list[str]:
    words = [_shell_override(key, value) for key, value in overrides.items()]
    variables = (BUNDLE_VARIABLE, "PYTHONPATH")
    return [*words, *(f"\"+ray_kwargs.ray_init.runtime_env.env_vars.{name}='${name}'\"" for name in variables)]


def _shell_override(key: str, value: Any) -> str:
    """Returns an override quoted for the shell."""
    if not isinstance(value, BundlePath):
        return shlex.quote(hydra_override(key, value))
    return f"\"{key}='${BUNDLE_VARIABLE}/{value}'\""


def _tools_yaml(job: VerlJob, timeout_seconds: float) -> str:
    tools = [
        {
            "class_name": "midthought.cluster.verl.agent_loop.VerlTool",
            "config": {
                "type": "native",
                "tool": plan.reference,
                "options": _tool_options(plan),
                "timeout_seconds": timeout_seconds,
            },
            "tool_schema": plan.definition.json_schema(),
        }
        for plan in job.tools
    ]
    return _yaml({"tools": tools})


def _tool_options(plan: ToolPlan) -> dict[str, Any]:
    return {
        name: value.replace("{bundle}", _HERE) if isinstance(value, str) else value
        for name, value in plan.options.items()
    }


def _agent_loop_yaml(options: LoopOptions) -> str:
    loop = {
        "name": AGENT_NAME,
        "_target_": "midthought.cluster.verl.agent_loop.MidthoughtAgentLoop",
        "options": options.model_dump(mode="json"),
    }
    return _yaml([loop])


def _requirements(extras: Sequence[str], rollout: str) -> str:
    """Returns the requirements of a node: verl with its extras, and what this package requires with `extras`."""
    lines = [f"verl[{rollout},fsdp]=={VERL_VERSION}"]
    for line in requires("midthought") or ():
        requirement, _, marker = line.partition(";")  # the only markers are those of extras: extra == "memory"
        if not marker or marker.partition("==")[2].strip(" \"'") in extras:
            lines.append(requirement.strip())
    return "".join(f"{line}\n" for line in lines)


def _copy_package(folder: Path) -> None:
    """Copies this package into the bundle, so that all nodes run the code that wrote it."""
    source = Path(__file__).parents[2]
    shutil.copytree(source, folder / PACKAGE / source.name, ignore=shutil.ignore_patterns("__pycache__"))


def _yaml(value: Any) -> str:
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=120)
