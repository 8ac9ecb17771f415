"""Property tests draw the same examples on every run and every machine, however slow it is.

Where tests run in several processes (pytest-xdist, `--dist loadgroup`), those of a file stay together, for they share what
is slow to make, and all of Ray's do: no two clusters start at once.
"""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("house", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("house")

RAYS_TESTS = Path(__file__).parent / "cluster" / "ray"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        is_rays = RAYS_TESTS in item.path.parents
        item.add_marker(pytest.mark.xdist_group("ray" if is_rays else str(item.path)))
