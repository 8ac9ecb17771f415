"""Tests in several processes: which process runs which file, and in which order (`tests/conftest.py`)."""

import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

CONFTEST = Path(__file__).with_name("conftest.py")
A_TEST = """
import os, pathlib, time, pytest
@pytest.mark.parametrize("i", range(6))
def test_it(i):
    with open("ran", "a") as file:
        print(os.environ["PYTEST_XDIST_WORKER"], pathlib.Path(__file__).parent.name, pathlib.Path(__file__).stem, file=file)
    time.sleep(0.02)
"""
FILES = [
    "algo/test_a.py",
    "algo/test_b.py",
    "cluster/ray/test_c.py",
    "cluster/ray/test_d.py",
    "checks/test_g.py",
    "checks/test_h.py",
    "recipes/test_e.py",
    "tools/test_f.py",
]


@pytest.mark.slow
def test_files_and_groups_of_them_stay_in_one_process_and_whole_jobs_start_first(tmp_path):
    pytest.importorskip("xdist")
    for name in FILES:
        file = tmp_path / "tests" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(A_TEST)
    (tmp_path / "tests" / "conftest.py").write_text(CONFTEST.read_text())
    (tmp_path / "pytest.ini").write_text("[pytest]\ntestpaths = tests\n")
    alone = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    subprocess.run([sys.executable, "-m", "pytest", "-q", "-n", "2"], cwd=tmp_path, env=alone, check=True, timeout=120)

    ran = [line.split() for line in (tmp_path / "ran").read_text().splitlines()]
    processes: defaultdict[str, set[str]] = defaultdict(set)
    for process, folder, file in ran:
        processes[folder if folder in ("ray", "checks") else file].add(process)
    assert len(ran) == 6 * len(FILES)
    assert set(processes) == {"ray", "checks", "test_a", "test_b", "test_e", "test_f"}
    assert {name: len(them) for name, them in processes.items()} == dict.fromkeys(processes, 1)
    assert processes["ray"] != processes["test_e"]
    first = {process: file for process, _, file in reversed(ran)}
    assert set(first.values()) == {"test_c", "test_e"}
