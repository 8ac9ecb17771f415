"""docs/scaling.md shows what the command prints; its commands, and the scripts in examples/cluster, can be read.

`python tests/plan/test_scaling_page.py` writes the output anew.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest
import typer
import yaml
from typer.testing import CliRunner

from midthought.cli import app
from midthought.recipes import find_recipe

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "scaling.md"
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
    assert page == renewed(page), "write it anew: python tests/plan/test_scaling_page.py"


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


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text("utf-8")), "utf-8")
