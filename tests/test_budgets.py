"""Ceilings of lines for each package, for the tests and for the documentation. Raising one needs a reason beside it."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from source_trees import tree_of

ROOT = Path(__file__).parent.parent
MODULES = "modules beside the packages"
LINES = {
    "algo": 1155,
    "checks": 1110,  # a run's checks are here and in `trainer/run.py`
    "cli": 1055,
    "cluster": 2835,
    "config": 1460,
    "data": 1180,  # options by their labels, columns that a problem set does not read, rows that mean something else
    "engines": 8715,  # a stopper that two threads may use (in-process vLLM); models that are not causal are refused
    "env": 2850,  # one environment for several groups, equal starts and rewards that expect an answer are refused or told
    "errors": 145,
    "feedback": 1475,  # feedback in converted logs is masked
    "files": 505,
    "http": 365,  # an address with a query is refused
    "learning": 3835,  # what is left of a split group stays within max_tokens; which log-probabilities are old
    "memory": 6790,
    "models": 1435,  # what a GGUF file lost; when a prompt is shared; layers that get no adapters, positions of LongRoPE
    "plan": 1055,
    "recipes": 3165,  # demonstrations of own questions and the factors are 180 of them; no held-out problem in training
    "report": 2585,  # long lists as JSON values in a quarter of the time (issue 54)
    "rollout": 2975,  # the journal and what repeats it is 175 of them, the turn graph 230; given episodes came from `trainer`
    "serve": 2390,  # two dialects, exchanges, sessions and the gateway are 1,230 of them (issue 55)
    "tokenization": 795,  # what the template writes after another end token
    "tools": 5245,  # ReAct has its own module; what no JSON Schema is; a docstring of other parameters
    "trainer": 3625,  # what callbacks raise waits for the checkpoint; agents are 260 of them (issue 55)
    "types": 750,  # records are copies of what a tool or an environment gave
    MODULES: 45,
}
"""All lines of Python in each package of `midthought/`."""
TOTALS = {"midthought": 57_490, "code of midthought": 39_240, "tests": 54_360}
# the plan counts shared prompts (issue 53); the journal and its tests of kills, silence, folders of killed processes (issue 54);
# the gateway is 1,770 lines, its tests 3,900 (issue 55); mended defects, with 70 lines and 1,460 of tests
"""All lines of Python; `code`: without blanks, comments and docstrings, so that nobody saves on these."""
# agents.md, agents in measured.md
DOCUMENTATION_BYTES, DOCUMENTATION_PAGES = 220_000, 20
"""Of docs/*.md, without the generated page of the settings and the page of runs with real models."""
MODULE_LINES, FUNCTION_LINES = 300, 60
LARGE_MODULES = {
    "trainer/trainer.py": "the public class: its arguments, the loop and every method that a user may override, on one page",
    "rollout/episode.py": "one episode from its prompt to its reward; what a turn adds is read in one piece",
    "rollout/in_flight.py": "the episodes that run at once, who may start one, and what is saved of open ones",
    "rollout/multi_turn.py": "the setup package's classes of several turns",
    "recipes/run.py": "the script of a recipe: its stages in their order",
    "learning/batch.py": "the tensors of a batch, each with its meaning and shape",
    "learning/learner.py": "the order of scoring, credit and update",
    "data/tasks.py": "rows of every documented form become tasks",
    "tokenization/__init__.py": "own and foreign text, which must not be read apart",
    "plan/choices.py": "every value of `auto`, in the order in which they are chosen",
    "plan/memory.py": "the bytes of each phase, one formula after another",
    "env/answers.py": "the forms of an answer, and which are equal",
    "report/run_folder.py": "every file of a run folder",
    "tools/call_formats/call_syntax.py": "the grammar of a call",
    "tools/call_formats/detection.py": "finds a model's own call format by probing its template",
    "engines/local/triton_products.py": "kernels of matrix products",
}
"""Modules of `midthought/` above 300 lines, with the reason."""
LONG_FUNCTIONS = {
    "trainer/trainer.py": "the constructor: 20 arguments with their annotations, and what it is made of",
    "cli/questions.py": "the options of `midthought questions`",
    "cli/runs.py": "the options of `midthought train`",
    "cli/serving.py": "the options of `midthought serve`",
    "engines/local/triton_products.py": "a kernel",
    "engines/local/gluon_products.py": "a kernel",
}
"""Modules with a function above 60 lines, with the reason."""


def lines(folder: str) -> Iterator[tuple[Path, str]]:
    for path in sorted((ROOT / folder).rglob("*.py")):
        yield path.relative_to(ROOT / folder), path.read_text("utf-8")


def num_code(text: str, tree: ast.Module) -> int:
    """Lines that are no docstring, and neither empty nor a comment unless they are inside a text."""
    lines = enumerate(map(str.strip, text.splitlines()), start=1)
    code, docstrings = {number for number, line in lines if line and not line.startswith("#")}, set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            docstrings.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        elif isinstance(node, ast.Constant | ast.JoinedStr):
            code.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(code - docstrings)


def test_no_package_is_larger_than_its_ceiling() -> None:
    sizes: Counter[str] = Counter()
    for path, text in lines("midthought"):
        sizes[path.parts[0] if len(path.parts) > 1 else MODULES] += len(text.splitlines())
    assert sizes.keys() == LINES.keys()
    assert {name: size for name, size in sizes.items() if size > LINES[name]} == {}


def test_neither_the_code_nor_the_tests_nor_the_documentation_grow() -> None:
    sizes = {folder: sum(len(text.splitlines()) for _, text in lines(folder)) for folder in ("midthought", "tests")}
    sizes["code of midthought"] = sum(
        num_code(text, tree_of(ROOT / "midthought" / path)) for path, text in lines("midthought")
    )
    assert {name: size for name, size in sizes.items() if size > TOTALS[name]} == {}
    pages = [path for path in (ROOT / "docs").glob("*.md") if path.name not in ("settings.md", "real_models.md")]
    assert sum(path.stat().st_size for path in pages) <= DOCUMENTATION_BYTES
    assert len(pages) <= DOCUMENTATION_PAGES


def test_modules_and_functions_are_short_unless_there_is_a_reason() -> None:
    large, long = set(), set()
    for path, text in lines("midthought"):
        if len(text.splitlines()) > MODULE_LINES:
            large.add(str(path))
        for node in ast.walk(tree_of(ROOT / "midthought" / path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                if node.end_lineno - node.lineno >= FUNCTION_LINES:
                    long.add(str(path))
    assert large == LARGE_MODULES.keys()
    assert long == LONG_FUNCTIONS.keys()


def test_lines_of_code_are_those_without_blanks_comments_and_docstrings() -> None:
    text = '"""A module."""\n\nX = 1  # one\n# two\n\n\ndef f():\n    """Returns it."""\n    return """a\nb"""\n'
    assert num_code(text, ast.parse(text)) == 4
