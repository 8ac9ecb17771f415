"""Imports go down only, peers do not see each other, no cycles. Starting up stays light.

Imports are read from the source, those inside functions included.
"""

import ast
import functools
import subprocess
import sys
from pathlib import Path

import pytest
from source_trees import tree_of

PACKAGE = Path(__file__).parent.parent / "midthought"

LAYERS = [
    ("errors", "inference"),
    ("types", "config", "tokenization", "http", "files"),
    ("models", "tools", "algo", "data", "report"),
    ("plan", "engines", "env", "memory", "learning"),
    ("rollout", "feedback"),
    ("cluster", "checks", "serve"),
    ("trainer",),
    ("recipes",),
    ("cli",),
]
LAYER_OF = {package: layer for layer, packages in enumerate(LAYERS) for package in packages}

HEAVY = ("torch", "transformers", "tokenizers", "lancedb", "pyarrow", "sentence_transformers")


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


PATHS = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def package_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] != "__main__" else ""


def imported(module: str) -> set[str]:
    """Every module that this one names in an import, wherever it stands."""
    package = module if PATHS[module].name == "__init__.py" else module.rpartition(".")[0]
    found: set[str] = set()
    for node in ast.walk(tree_of(PATHS[module])):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = package.split(".")
                base = ".".join([*parts[: len(parts) - node.level + 1], *([node.module] if node.module else [])])
            submodules = {f"{base}.{alias.name}" for alias in node.names} & PATHS.keys()
            found |= submodules or {base}
    return found


@functools.cache
def edges() -> dict[str, set[str]]:
    return {module: imported(module) for module in PATHS}


@functools.cache
def inner() -> dict[str, set[str]]:
    return {module: {name for name in names if name in PATHS} - {module} for module, names in edges().items()}


def outside(module: str) -> set[str]:
    return {name.partition(".")[0] for name in edges()[module]}


def test_every_import_of_our_own_names_a_module_that_is_there():
    unknown = {
        (module, name)
        for module, names in edges().items()
        for name in names
        if name.startswith("midthought") and name not in PATHS
    }
    assert unknown == set()


def test_imports_go_down_only_and_peers_do_not_see_each_other():
    wrong = [
        f"{module} -> {name}"
        for module, names in inner().items()
        for name in names
        if (above := package_of(module)) and (below := package_of(name)) and above != below
        if LAYER_OF[below] >= LAYER_OF[above]
    ]
    assert wrong == []


def test_modules_of_the_library_import_a_name_from_the_module_that_defines_it():
    wrong = [module for module, names in inner().items() if "midthought" in names and package_of(module) != "cli"]
    assert wrong == [], "`from midthought import name` is for users; docs/api.md has the module of each name"


def test_there_is_no_cycle_between_modules_not_even_inside_a_package():
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " -> ".join([*path[path.index(module) :], module])
        if module not in done:
            for name in sorted(inner()[module]):
                visit(name, (*path, module))
            done.add(module)

    for module in PATHS:
        visit(module, ())


ARRAYS_OF_GYMNASIUM = "midthought.env.gym"
"""The one module of `env` that may import numpy: Gymnasium's observations and actions are arrays."""


@pytest.mark.parametrize(
    ("package", "strangers"),
    [
        ("algo", {"tokenizers", "transformers", "midthought.tokenization", "midthought.types"}),
        ("env", {"torch", "numpy", "transformers", "tokenizers"}),
        ("tools", {"torch", "transformers", "tokenizers"}),
        ("memory", {"midthought.learning", "midthought.algo", "midthought.engines", "midthought.rollout"}),
        (
            "report",  # torch writes the events of TensorBoard
            {"transformers", "midthought.learning", "midthought.engines", "midthought.rollout", "midthought.algo"},
        ),
        ("types", {"torch", "numpy", "transformers", "tokenizers"}),
    ],
)
def test_a_package_does_not_know_what_is_not_its_business(package, strangers):
    known = {
        part
        for module in PATHS
        if package_of(module) == package and module != ARRAYS_OF_GYMNASIUM
        for name in edges()[module]
        for part in (name, name.partition(".")[0], ".".join(name.split(".")[:2]))
    }
    assert known & strangers == set()


def test_the_training_loop_knows_no_engine_no_tool_and_no_memory_by_name():
    known = {package_of(name) for module in PATHS if package_of(module) == "learning" for name in inner()[module]}
    assert known <= {"learning", "rollout", "algo", "types", "errors", "tokenization", "config", "models", "files"}


@pytest.mark.parametrize("package", ["lancedb", "tensorboard", "rich", "typer"])
def test_an_outside_package_is_known_in_one_package_only(package):
    assert len({package_of(module) for module in PATHS if package in outside(module)}) <= 1


HELP = """
import sys
from midthought.cli import main
for words in (["--help"], ["train", "--help"], ["memory", "--help"]):
    sys.argv = ["midthought", *words]
    try:
        main()
    except SystemExit as stop:
        assert not stop.code, stop.code
print("LOADED", *sys.modules)
"""


def test_importing_the_package_and_asking_for_help_loads_nothing_heavy():
    light = [name for name in PATHS if package_of(name) in ("", "types", "errors", "config", "cli", "env", "http")]
    light += ["midthought.recipes", "midthought.recipes.podcast", "midthought.recipes.podcast.settings"]
    code = "\n".join(f"import {name}" for name in light) + HELP
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.rpartition("LOADED")[2].split())
    assert "midthought.cli" in loaded
    assert loaded.isdisjoint(HEAVY)
