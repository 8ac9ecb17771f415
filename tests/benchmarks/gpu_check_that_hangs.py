"""For the tests of the GPU command: a check that does not end."""

import time
from typing import Any


def run(machine: Any, report: Any) -> None:
    report.figure("", "before the hang", 1)
    time.sleep(600)
