"""Property tests draw the same examples on every run and every machine, however slow it is.

Where tests run in several processes (pytest-xdist), those of a file stay together, for they share what is slow to make, and
all of Ray's do: no two clusters start at once. (`--dist loadgroup` does nothing here: xdist 3.8 writes its groups where pytest
9.2 no longer reads them.)
"""

from typing import Any

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("house", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("house")

RAYS_TESTS = "tests/cluster/ray"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadFileScheduling

    class FilesAndRays(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return RAYS_TESTS if nodeid.startswith(f"{RAYS_TESTS}/") else super()._split_scope(nodeid)

    return FilesAndRays(config, log)
