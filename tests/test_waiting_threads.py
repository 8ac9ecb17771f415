"""Threads of torch sleep while they wait, unless the user says otherwise."""

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(("given", "used"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_openmp_reads_the_policy_when_torch_is_imported(given, used):
    others = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    environment = others | ({"OMP_WAIT_POLICY": given} if given else {}) | {"OMP_DISPLAY_ENV": "true"}
    command = [sys.executable, "-c", "import midthought; midthought.Trainer"]
    told = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stderr
    assert f"OMP_WAIT_POLICY = '{used}'" in told
