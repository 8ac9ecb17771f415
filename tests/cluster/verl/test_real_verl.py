"""The tests that need a really installed verl, run by the interpreter of an environment that has it."""

import importlib.util
import os
import subprocess
from pathlib import Path

import pytest

PYTHON = os.environ.get("MIDTHOUGHT_VERL_PYTHON", "")


@pytest.mark.slow
@pytest.mark.skipif(
    not PYTHON, reason="MIDTHOUGHT_VERL_PYTHON does not name the interpreter of an environment that has verl"
)
@pytest.mark.skipif(
    importlib.util.find_spec("verl") is not None, reason="verl is installed here: the tests run by themselves"
)
def test_verl_itself_runs_our_loop_and_takes_our_bundle() -> None:
    tests = sorted(str(path) for path in Path(__file__).parent.glob("test_with_verl_*.py"))
    done = subprocess.run(
        [PYTHON, "-m", "pytest", "-p", "no:cacheprovider", *tests], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert "skipped" not in done.stdout.splitlines()[-1], done.stdout[-2000:]
