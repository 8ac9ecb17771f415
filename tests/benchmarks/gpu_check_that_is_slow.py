"""For the tests of the GPU command: a check that takes longer than its share of the time."""

import time
from typing import Any


def run(machine: Any, report: Any) -> None:
    while machine.seconds_left > -0.1:
        time.sleep(0.05)
    report.figure("", "after its share", 1)
