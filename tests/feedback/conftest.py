from pathlib import Path

import pytest

SHARED = Path(__file__).parents[3] / "shared" / "data"


@pytest.fixture
def real_data() -> Path:
    """Public data sets beside the repository, where somebody put them."""
    if not SHARED.is_dir():
        pytest.skip(f"needs the data sets in {SHARED}")
    return SHARED
