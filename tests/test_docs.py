"""Every Python block of the pages, and every example of a docstring (`>>>`), runs as a reader would run it.

The README's block is run by tests/examples/test_readme.py, with a tiny model in place of the real one.
"""

import doctest
import importlib
import re
from pathlib import Path

import pytest
from test_layers import LAYERS

from midthought.engines.create import BACKENDS
from midthought.engines.inference_engines import ScriptedInferenceEngine
from midthought.models.pretrained import save_model
from midthought.models.small_model import make_policy, make_tokenizer

ROOT = Path(__file__).parent.parent
PAGES = sorted(page for page in (ROOT / "docs").glob("*.md") if "```python" in page.read_text("utf-8"))
WORDS = ["Red?", '{"tool": "mix", "parameters": {"first": "red", "second": "blue"}}', "green", "blue"]


SHORTER = {
    "first_model.md": {
        "num_train_iters=200": "num_train_iters=1",
        "batch_size=64": "batch_size=8",
        "max_tokens=1024": "max_tokens=24",
        "num_steps=20": "num_steps=1",
        "num_episodes=100": "num_episodes=2",
    },
    "agents.md": {
        'algorithm="grpo"': 'algorithm="grpo", max_tokens=24, batch_size=8, num_train_iters=1',
        "num_epochs=10": "",
    },
}
"""What is replaced before the blocks of a page run, so that they take seconds."""


def blocks(page: Path) -> list[str]:
    text = page.read_text("utf-8")
    for number, smaller in SHORTER.get(page.name, {}).items():
        assert number in text
        text = text.replace(number, smaller)
    return re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)


@pytest.fixture
def scripted_model(monkeypatch) -> None:
    """Replaces the vLLM server that a page names by a scripted engine."""

    def engine(model_path: str, **options: object) -> ScriptedInferenceEngine:
        said = iter(WORDS * 50)
        return ScriptedInferenceEngine(lambda episode, token_ids: next(said) + "<|im_end|>")

    monkeypatch.setitem(BACKENDS, "vllm", engine)


@pytest.fixture
def hub(monkeypatch, tmp_path) -> None:
    """Replaces the model and the data set of the hub that a page names by a tiny model in that folder and eight rows."""
    problems = [{"question": f"What is {n} plus 4?", "answer": f"{n} + 4 = {n + 4}\n#### {n + 4}"} for n in range(8)]
    tokenizer = make_tokenizer([row["question"] for row in problems], 400)
    policy = make_policy(tokenizer, hidden_size=64, num_layers=1, num_heads=1, max_length=1024, seed=0)
    save_model(policy, tokenizer, tmp_path / "Qwen/Qwen3-0.6B")
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: datasets.Dataset.from_list(problems))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_blocks_of_a_page_run(page, scripted_model, tmp_path, monkeypatch, request):
    monkeypatch.chdir(tmp_path)
    if page.name in SHORTER:
        request.getfixturevalue("hub")
    names: dict[str, object] = {"__name__": "page"}
    for number, block in enumerate(blocks(page)):
        exec(compile(block, f"{page.name}, block {number + 1}", "exec", dont_inherit=True), names)


MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in sorted((ROOT / "midthought").rglob("*.py"))
    if ">>> " in path.read_text("utf-8")
]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS).failed == 0


def test_pages_and_docstrings_with_examples_are_found():
    assert {"own_parts.md", "data.md", "first_model.md", "agents.md"} <= {page.name for page in PAGES}
    assert {"midthought.tools.function_tool", "midthought.trainer.trainer"} <= {*MODULES}


def test_the_files_that_the_page_of_the_architecture_names_exist():
    named = set(re.findall(r"`([\w/]+\.(?:py|html))`", (ROOT / "docs" / "architecture.md").read_text("utf-8")))
    files = [f"/{path.relative_to(ROOT)}" for folder in ("midthought", "tests", "benchmarks") for path in find(folder)]
    assert named
    assert {
        name for name in named if "NAME" not in name and not any(file.endswith(f"/{name}") for file in files)
    } == set()


def find(folder: str) -> list[Path]:
    return [path for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".html")]


def test_the_layers_of_the_architecture_are_those_that_imports_are_checked_against():
    rows = re.findall(r"^\| (\d+) \| (.*?) \|", (ROOT / "docs/architecture.md").read_text("utf-8"), flags=re.MULTILINE)
    written: dict[int, set[str]] = {}
    for number, cell in rows:  # a layer may have several rows
        written.setdefault(int(number), set()).update(re.findall(r"`(\w+)`", cell))
    existing = {path.stem for path in (ROOT / "midthought").iterdir()}
    assert written == {number: set(packages) & existing for number, packages in enumerate(LAYERS)}
