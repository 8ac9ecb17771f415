"""docs/servers.md shows what is chosen on every GPU, docs/scaling.md what the command prints. Its commands, and the scripts in
examples/cluster, can be read. `python tests/plan/test_pages.py` writes the table and the output anew."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from unittest.mock import patch

import pytest
import typer
import yaml
from typer.testing import CliRunner

from midthought.cli import app
from midthought.errors import SettingsError
from midthought.plan.choices import KNOWN_VLLM
from midthought.recipes import find_recipe

ROOT = Path(__file__).parents[2]
PAGE, SERVERS = ROOT / "docs" / "scaling.md", ROOT / "docs" / "servers.md"
WRITE_ANEW = "write it anew: python tests/plan/test_pages.py"
CLUSTER = ROOT / "examples" / "cluster"
CONSOLE = re.compile(r"```console\n\$ (midthought train [^\n]*)\n(.*?)```\n", flags=re.DOTALL)


def printed(command: str) -> str:
    result = CliRunner().invoke(app, shlex.split(command)[1:])
    assert result.exit_code == 0, result.output
    return result.output


def renewed(page: str) -> str:
    return CONSOLE.sub(lambda found: f"```console\n$ {found[1]}\n{printed(found[1])}```\n", page)


def scripts() -> list[str]:
    """The scripts of the page and of `examples/cluster`, with the commands in the comments of the YAML files."""
    written = re.findall(r"```bash\n(.*?)```", PAGE.read_text("utf-8"), flags=re.DOTALL)
    comments = [
        "\n".join(re.findall(r"^#   (.*)", file.read_text("utf-8"), re.MULTILINE)) for file in CLUSTER.glob("*.yaml")
    ]
    return [*written, (CLUSTER / "slurm.sh").read_text("utf-8"), *comments]


def commands() -> list[str]:
    """Every `midthought …` of the page and the scripts, as one line."""
    text = "\n".join(scripts()).replace("\\\n", " ")
    found = re.findall(r"^\s*(midthought .*)$", text, flags=re.MULTILINE)
    inline = re.findall(r"`(midthought [^`]*)`", PAGE.read_text("utf-8"))
    return [*found, *(command for command in inline if " " in command.removeprefix("midthought "))]


def test_the_page_shows_what_the_command_prints():
    page = PAGE.read_text("utf-8")
    assert len(CONSOLE.findall(page)) == 1
    assert page == renewed(page), WRITE_ANEW


@pytest.mark.parametrize("command", commands())
def test_the_commands_of_the_page_are_read_with_settings_that_there_are(command):
    name, *words = [word.replace("$address", "host:6379") for word in shlex.split(command)[1:]]
    parser = typer.main.get_command(app).commands[name]
    if name == "engine":
        name, *words = words
        parser = parser.commands[name]
    given = parser.make_context(name, list(words)).params
    if name != "train":
        return
    found = find_recipe(given["recipe"])
    if given["engine"] == "verl":
        found.begin_with_verl(given["settings"] or [], given["config"])
    else:
        found.begin(Path(), words=given["settings"] or [], config=given["config"])


def test_the_slurm_script_is_one_that_bash_reads():
    script = (CLUSTER / "slurm.sh").read_text("utf-8")
    assert subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True).stderr == ""


def test_the_yaml_is_what_kuberay_takes():
    """Its fields as in ray.io/v1: https://ray-project.github.io/kuberay/reference/api/."""
    job, cluster = (
        yaml.safe_load((CLUSTER / name).read_text("utf-8"))
        for name in ("kuberay_verl_job.yaml", "kuberay_cluster.yaml")
    )
    assert [(each["apiVersion"], each["kind"]) for each in (job, cluster)] == [
        ("ray.io/v1", "RayJob"),
        ("ray.io/v1", "RayCluster"),
    ]
    assert job["spec"].keys() == {"entrypoint", "shutdownAfterJobFinishes", "ttlSecondsAfterFinished", "rayClusterSpec"}
    for spec in (job["spec"]["rayClusterSpec"], cluster["spec"]):
        assert spec.keys() == {"rayVersion", "headGroupSpec", "workerGroupSpecs"}
        (group,) = spec["workerGroupSpecs"]
        assert group.keys() == {"groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template"}
        for part in (spec["headGroupSpec"], group):
            pod = part["template"]["spec"]
            volumes = {volume["name"] for volume in pod["volumes"]}
            (container,) = pod["containers"]
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
            assert container["resources"]["limits"] == container["resources"]["requests"]


# -- docs/servers.md ---------------------------------------------------------------------------------------------------

TABLE = re.compile(r"(<!-- choices -->\n)(.*?)(<!-- end -->\n)", flags=re.DOTALL)
MEMORIES_GIB = (24, 48, 80, 141)
MODELS = tuple(f"Qwen/Qwen3-{size}" for size in ("0.6B", "1.7B", "4B", "8B", "14B"))
USUAL = {
    "model.dtype": "bfloat16",
    "model.critic": "shared",
    "model.lora_rank": "32",
    "model.attn_implementation": "sdpa",
}
"""Settings that a cell names only if they differ."""


def dry_run(model: str, memory_gib: int) -> tuple[dict[str, str], str, str]:
    """Returns what `midthought train podcast --dry-run` prints: values by setting, needed GiB, and the refusal (empty: none)."""
    with (
        patch("midthought.plan.choices.installed_vllm", lambda: KNOWN_VLLM),
        patch("midthought.plan.choices.find_spec", lambda name: object()),
    ):
        words = ["train", "podcast", "--dry-run", "--gpu-gib", str(memory_gib), f"model.local_path={model}"]
        result = CliRunner().invoke(app, words)
    if result.exception is not None and not isinstance(result.exception, SettingsError):
        raise result.exception
    values = dict(line.split()[0].split("=", 1) for line in result.output.splitlines() if re.match(r"\w+\.\w+=", line))
    needed = re.search(r"^Memory needed: (\S+) GiB; ", result.output, flags=re.MULTILINE)
    return values, needed[1], str(result.exception or "")


def cell(model: str, memory_gib: int) -> str:
    values, needed, refusal = dry_run(model, memory_gib)
    parts = [f"`{values['inference.backend']}`"]
    if "inference.in_process" in values:
        parts.append(f"share {values['inference.gpu_memory_utilization']}")
    parts += [f"{values['inference.max_num_seqs']} seqs", f"{values['training.micro_batch_tokens']} tokens"]
    parts += ["recomputed"] * (values["training.gradient_checkpointing"] != "false")
    parts.append(f"needed {needed}")
    parts += [values[name] for name, usual in USUAL.items() if values[name] != usual]
    if refusal:
        remedy = re.search(r"it fits with (.*)$", refusal)
        parts.append(f"**refused**: fits with `{remedy[1]}`" if remedy else "**refused**: smaller model or larger GPU")
    return ", ".join(parts)


def row(model: str) -> str:
    return f"| {model} | {' | '.join(cell(model, memory) for memory in MEMORIES_GIB)} |"


@pytest.mark.parametrize(("place", "model"), enumerate(MODELS))
def test_the_page_shows_what_is_chosen(place, model):
    _, _, *rows = TABLE.search(SERVERS.read_text("utf-8"))[2].splitlines()
    assert rows[place] == row(model), WRITE_ANEW


def table() -> str:
    head = f"| model | {' | '.join(f'{memory} GiB' for memory in MEMORIES_GIB)} |"
    return "\n".join([head, f"|{' --- |' * (1 + len(MEMORIES_GIB))}", *map(row, MODELS), ""])


if __name__ == "__main__":
    SERVERS.write_text(TABLE.sub(lambda found: found[1] + table() + found[3], SERVERS.read_text("utf-8")), "utf-8")
    PAGE.write_text(renewed(PAGE.read_text("utf-8")), "utf-8")
