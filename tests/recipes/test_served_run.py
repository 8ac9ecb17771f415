"""Opening the policy of a run to talk to it: its files are compared, its conversations are written as recorded."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from midthought.errors import CheckpointError, ModelPathError, SettingsError
from midthought.files.output_folder import MANIFEST
from midthought.recipes.served_run import open_run
from midthought.report.run_folder import CONVERSATION
from midthought.tools.builtin.calculate import CalculateTool
from midthought.tools.call_formats import ActionParser
from midthought.tools.definition import Tool, ToolDefinition
from midthought.trainer.trainer import Trainer
from midthought.types import ParsedAction, Task


class Look(Tool):
    definition = ToolDefinition("look", "Looks.")

    def execute(self) -> str:
        return "seen"


class ShoutParser(ActionParser):
    def parse_all(self, text: str) -> list[ParsedAction]:
        return []


def run_of(path, *tools, **options):
    """A run folder with a policy that was not trained."""
    tasks = [Task(task_id=name, prompt="2 + 2?", answer="4") for name in "ab"]
    options |= {"hidden_size": 64, "num_layers": 1, "num_heads": 2, "vocab_size": 300, "progress": False}
    with Trainer(dataset=tasks, tools=tools, run_path=path, **options) as trainer:
        trainer.save_model(path / "policy")
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("served") / "run"
    return run_of(path, CalculateTool(), system_prompt="Be brief.", call_format="react")


def test_conversations_are_written_as_in_training(run):
    with open_run(run).engine as engine:
        assert engine.core.max_seq_len > 0
    opened = open_run(run / "policy")
    policy = opened.policy
    assert (opened.name, policy.system_prompt, policy.call_format.name) == ("run", "Be brief.", "react")
    assert policy.executor.registry.names() == ["calculate"]
    (system, _) = policy.messages([{"role": "user", "content": "a"}])
    assert system["content"].startswith("Be brief.\n\n") and "calculate" in system["content"]


def test_a_run_folder_starts_no_code_by_itself(run, tmp_path):
    own, reference = run_of(tmp_path / "own", Look()), f"{__name__}:Look"
    with pytest.raises(SettingsError, match=f"tools look.*--tools {reference}.*--no-tools"):
        open_run(own)
    assert open_run(own, tools=[]).policy.executor.registry.names() == []
    sys.modules.setdefault(__name__, sys.modules[Look.__module__])
    assert open_run(own, tools=[reference]).policy.executor.registry.names() == ["look"]
    record = json.loads((own / CONVERSATION).read_text())
    for name, value, told in (
        ("recipe", "os:system", "unknown recipe 'os:system'"),
        ("tools", [{**record["tools"][0], "source": "os:getcwd"}], "if you trust it"),
        ("call_format", f"{__name__}:ShoutParser", r"of your own '.*:ShoutParser'; add --call-format"),
    ):
        hostile = changed(run if name == "call_format" else own, tmp_path / name, **{name: value})
        with pytest.raises(SettingsError, match=told):
            open_run(hostile)


def changed(run, copy, **values):
    """A copy of a run whose record has these values."""
    shutil.copytree(run, copy)
    (copy / MANIFEST).unlink()
    (copy / CONVERSATION).write_text(json.dumps({**json.loads((run / CONVERSATION).read_text()), **values}))
    return copy


def test_a_call_format_of_the_user_is_named_as_a_tool_is(tmp_path, monkeypatch):
    run = run_of(tmp_path / "run", CalculateTool(), call_format=ShoutParser())
    with pytest.raises(SettingsError, match="a call format of your own; add --call-format MODULE:NAME"):
        open_run(run)
    monkeypatch.setitem(sys.modules, "shout", sys.modules[__name__])
    opened = open_run(run, call_format="shout:ShoutParser")
    assert str(opened.policy.call_format) == "parser: ShoutParser"


@pytest.mark.parametrize(
    ("reference", "told"),
    [("os:getcwd", "no Tool"), ("no_such_module:x", "no module"), ("json:JSONDecodeError", "without")],
)
def test_what_is_no_tool_is_an_error_that_names_it(run, reference, told):
    with pytest.raises(SettingsError, match=told):
        open_run(run, tools=[reference])


def test_changed_files_are_refused(run, tmp_path):
    copy = Path(shutil.copytree(run, tmp_path / "copy"))
    weights = copy / "policy" / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(ModelPathError, match=r"model\.safetensors is not as it was written"):
        open_run(copy)
    weights.write_bytes(content)
    (copy / CONVERSATION).write_text("{}")
    with pytest.raises(CheckpointError, match=CONVERSATION):
        open_run(copy)


def test_a_run_without_its_record_needs_its_tools_and_a_model_folder_has_none(run, tmp_path):
    copy = changed(run, tmp_path / "copy")
    (copy / CONVERSATION).unlink()
    with pytest.raises(SettingsError, match="--recipe"):
        open_run(copy)
    opened = open_run(copy, tools=["midthought.tools.builtin.calculate:CalculateTool"], call_format="react")
    assert opened.policy.executor.registry.names() == ["calculate"]
    shutil.copytree(run / "policy", tmp_path / "model")
    assert open_run(tmp_path / "model").policy.executor.registry.names() == []


def test_commands_name_the_mistake_in_one_line(run, call):
    for words, told in (
        (["serve", str(run), "--host", "0.0.0.0"], "--api-key-env"),
        (["serve", str(run), "--api-key-env", "NO_SUCH_KEY"], "NO_SUCH_KEY holds no token"),
        (["chat", str(run), "--tools", "a:b", "--no-tools"], "leave one of them out"),
        (["chat", str(run.parent)], "holds no policy"),
        (["export", str(run.parent), "hub"], "holds no policy"),
    ):
        code, _, errors = call(*words)
        assert code == 2 and told in errors and len(errors.splitlines()) == 1, errors
