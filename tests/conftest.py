"""Property tests draw the same examples on every run and every machine, without time limits.

If tests run in several processes (pytest-xdist), the tests of a file stay in one process, because they share fixtures that are
slow to make. So do the files of a group in `TOGETHER`. Whole training jobs start first, so that no process is left with one at
the end. (`--dist loadgroup` has no effect here: pytest 9.2 does not read the groups that xdist 3.8 writes.)

`ATEN_CPU_CAPABILITY=default` or `avx2` computes like a processor without AVX-512. oneDNN would still use the AMX unit in torch
2.13, and attention in bfloat16 fails then; so oneDNN is limited, too, also in processes that tests start.
"""

import gc
import os
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

if os.environ.get("ATEN_CPU_CAPABILITY") in ("default", "avx2"):
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX2")

HOUSE = {"derandomize": True, "deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("house", max_examples=50, **HOUSE)
settings.register_profile("thorough", max_examples=1000, **HOUSE)  # pytest --hypothesis-profile=thorough
settings.load_profile("house")

RAY_TESTS = "tests/cluster/ray/"
FORKED = (
    "tests/recipes/test_run_path.py",
    "tests/memory/test_llm_questions.py",
    "tests/memory/test_memory_growth.py",
    "tests/memory/test_serve_command.py",
    "tests/trainer/test_killed_training.py",
)
REAL_ENGINES = (
    "tests/benchmarks/test_bench_parts.py",
    "tests/cluster/verl/test_real_verl.py",
    "tests/feedback/test_real_vllm_feedback.py",
    "tests/memory/test_llm_questions_vllm.py",
    "tests/rollout/test_real_vllm.py",
    "tests/rollout/test_vllm_in_process.py",
)
TOGETHER = (
    (RAY_TESTS,),  # one cluster
    REAL_ENGINES,  # one GPU
    FORKED,  # one server of command_process.py: its imports take 7 s of CPU time
    ("tests/trainer/",),  # models that were taught
    ("tests/checks/",),
    ("tests/benchmarks/test_retrieval_",),  # the real transcripts
    ("tests/test_budgets.py", "tests/test_config.py", "tests/test_layers.py"),
    # the syntax trees of the package
)
"""Groups of files, or beginnings of their paths, whose tests run in one process."""
FIRST = (RAY_TESTS, "tests/recipes/", "tests/benchmarks/", "tests/cluster/", "tests/trainer/")
"""Folders of whole jobs, the longest first. The other files follow by name."""


PUBLIC_DATA = Path(__file__).parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Public data sets beside the repository, if they are there."""
    if not PUBLIC_DATA.is_dir():
        pytest.skip(f"needs the data sets in {PUBLIC_DATA}")
    return PUBLIC_DATA


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs the command as its entry point does: (exit code, standard output, standard error)."""
    from midthought.cli import main

    def run(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["midthought", *map(str, words)])
        with pytest.raises(SystemExit) as stop:
            main()
        captured = capsys.readouterr()
        return int(stop.value.code or 0), captured.out, captured.err

    return run


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Modules and tests stay to the end: the garbage collector need not visit them. It took a quarter of the collection."""
    gc.disable()
    result = yield
    gc.enable()
    gc.freeze()
    return result


@pytest.fixture(autouse=True, scope="session")
def without_fsync() -> Iterator[None]:
    """`os.fsync` matters only if the machine loses power. It returns at once: tests write thousands of small files."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadFileScheduling

    class WholeJobsFirst(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            group = next((group for group in TOGETHER if nodeid.startswith(group)), None)
            return super()._split_scope(nodeid) if group is None else group[0]

    config.option.loadscopereorder = False  # xdist orders by number of tests, which puts whole jobs last
    return WholeJobsFirst(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        return next((i for i, folder in enumerate(FIRST) if item.nodeid.startswith(folder)), len(FIRST))

    items.sort(key=place)
