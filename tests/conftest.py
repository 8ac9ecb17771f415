"""Property tests draw the same examples on every run and every machine, however slow it is.

Where tests run in several processes (pytest-xdist), those of a file stay together, for they share what is slow to make, and
all of Ray's do: no two clusters start at once. Whole jobs are begun first, that no process is left with one at the end.
(`--dist loadgroup` does nothing here: xdist 3.8 writes its groups where pytest 9.2 no longer reads them.)

`ATEN_CPU_CAPABILITY=default` or `avx2` shows what a processor without AVX-512 computes. torch 2.13 then still asks oneDNN, which
finds the AMX unit that is there, and attention in bfloat16 fails; so oneDNN is limited, too, also in processes that tests start.
"""

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

if os.environ.get("ATEN_CPU_CAPABILITY") in ("default", "avx2"):
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX2")

settings.register_profile("house", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("house")

RAYS_TESTS = "tests/cluster/ray/"
BEGUN_FIRST = (RAYS_TESTS, "tests/recipes/", "tests/benchmarks/", "tests/cluster/", "tests/trainer/")
"""Folders of whole jobs, the longest first. The other files follow in the order of their names."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadFileScheduling

    class WholeJobsFirst(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return RAYS_TESTS if nodeid.startswith(RAYS_TESTS) else super()._split_scope(nodeid)

    config.option.loadscopereorder = False  # xdist's own order is by number of tests: whole jobs would come last
    return WholeJobsFirst(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        return next((i for i, folder in enumerate(BEGUN_FIRST) if item.nodeid.startswith(folder)), len(BEGUN_FIRST))

    items.sort(key=place)
