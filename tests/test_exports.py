"""`import midthought` exports exactly the documented names, and imports heavy packages only when a name is used."""

import ast
import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import midthought

PAGE = Path(__file__).parent.parent / "docs" / "api.md"
HEAD = """All importable from `midthought`; each is loaded on first use. The fields of the settings: [settings](settings.md).
The site (`make docs`) replaces a line `::: module.name` by signature and docstring."""
DESIGNED = [
    "ConfigStore", "ModelConfig", "InferenceConfig", "RewardConfig", "EnvironmentConfig", "TrainingConfig",
    "RayConfig", "CheckpointConfig", "create_default_config", "merge_configs", "BaseEnvironment",
    "SimpleGameEnvironment", "Trajectory", "RolloutData", "AdvantageEstimator", "compute_gae_advantage_return",
    "compute_grpo_advantage", "compute_advantage", "compute_policy_loss", "compute_value_loss", "kl_divergence",
    "apply_kl_penalty", "KLController", "BaseInferenceEngine", "VLLMInferenceEngine", "SGLangInferenceEngine",
    "create_inference_engine", "GenerationOutput", "MultiTurnInferenceEngine", "BatchInferenceManager",
    "LocalInferenceEngine", "ToolDefinition", "ToolParameter", "Tool", "ToolRegistry", "ParsedAction", "ActionParser",
    "JSONActionParser", "ReActActionParser", "FunctionCallingParser", "MultiTurnManager", "ToolCall", "Turn",
    "EnvironmentStepTool", "QueryTool", "CalculateTool", "RayPPOTrainer", "PolicyValueModel", "PolicyHead",
    "ValueHead", "PPOBatch",
]  # fmt: skip
ALIASES = {"RayPPOTrainer": "Trainer"}


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_every_public_name_is_there_and_says_what_it_is_and_those_of_the_setup_package_are_among_them():
    for name in midthought.__all__:
        value = getattr(midthought, name)
        is_defined = inspect.isclass(value) or inspect.isfunction(value)
        assert value.__name__ == ALIASES.get(name, name) if is_defined else value is not None
        assert (inspect.getdoc(value) or "").strip(), f"{name} has no docstring"
    assert set(DESIGNED) <= set(midthought.__all__)


def modules() -> dict[str, str]:
    """The module of each public name, from `__init__.pyi`."""
    stub = ast.parse(Path(midthought.__file__).with_suffix(".pyi").read_text("utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: node.module for node in imports for alias in node.names}


def test_type_checkers_see_every_name_that_there_is():
    assert sorted(modules()) == sorted(midthought.__all__)
    for name, module in modules().items():
        assert getattr(importlib.import_module(f"midthought.{module}"), name) is getattr(midthought, name)


def page() -> str:
    """docs/api.md: the public names by package, with the first sentence of their docstrings; then, for each of them, the line
    that the documentation site replaces by signature and docstring."""
    lines = ["# Public names", "", HEAD, ""]
    packages: dict[str, list[tuple[str, str]]] = {}
    for name, module in modules().items():
        packages.setdefault(module.partition(".")[0], []).append((name, module))
    for package, names in packages.items():
        lines += [f"## {package}", "", "| name | what it is |", "| --- | --- |"]
        lines += [f"| `{name}` | {first_sentence(name)} |" for name, _ in names] + [""]
        if package != "config":  # settings.md has the fields
            lines += [*dict.fromkeys(reference(name, module) for name, module in names), ""]
    return "\n".join(lines)


def first_sentence(name: str, longest: int = 110) -> str:
    """Returns the first sentence of a name's docstring, cut to a cell of `longest` characters."""
    said = " ".join((inspect.getdoc(getattr(midthought, name)) or "").split("\n\n")[0].split())
    sentence = re.split(r"(?<=[^.].\.) (?=[A-Z`])|: (?=`)", said)[0].replace("|", "\\|")
    return sentence if len(sentence) <= longest else sentence[: longest - 1].rpartition(" ")[0] + " …"


def reference(name: str, module: str) -> str:
    """Returns the line of the documentation generator for a name."""
    value = getattr(midthought, name)
    is_defined = inspect.isclass(value) or inspect.isfunction(value)
    return f"::: {value.__module__}.{value.__name__}" if is_defined else f"::: midthought.{module}.{name}"


def test_the_page_of_public_names_is_up_to_date():
    assert PAGE.read_text("utf-8") == page(), "regenerate it: python tests/test_exports.py"


def test_importing_the_package_loads_no_torch():
    assert (
        run("import sys, midthought; print(not {'torch', 'transformers', 'pydantic'} & set(sys.modules))") == "True\n"
    )


def test_a_name_that_is_not_there_is_told_as_python_does():
    with pytest.raises(AttributeError, match="RayPPOTrainr"):
        midthought.RayPPOTrainr  # noqa: B018
    assert dir(midthought) == midthought.__all__


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
