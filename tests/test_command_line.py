"""Conventions of the command line: version, help, exit codes, and the project that `init` writes."""

import os
import subprocess
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest
import typer
import yaml

from midthought import cli
from midthought.errors import TrainingStoppedError

PROJECT_MODULES = ("tools", "environment", "reward", "train", "test_project")


@pytest.fixture
def call(call, monkeypatch, tmp_path):
    """Runs the command in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return call


def test_the_version_is_printed(call):
    assert call("--version") == (0, f"midthought {version('midthought')}\n", "")


@pytest.mark.parametrize("words", [(), ("train",), ("memory", "search"), ("engine", "serve"), ("init",)])
def test_every_command_explains_itself(call, words):
    code, text, _ = call(*words, "-h")
    assert code == 0 and " ".join(("Usage: midthought", *words)) in text
    assert text == call(*words, "--help")[1]


def test_the_help_is_printed_in_any_encoding():
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    words = [sys.executable, "-m", "midthought", "compare", "-h"]
    done = subprocess.run(words, env=environment, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"") and b"Usage: midthought compare" in done.stdout


def test_a_command_whose_output_is_closed_does_its_work():
    words = ["sh", "-c", '"$0" -m midthought settings podcast >&-', sys.executable]
    done = subprocess.run(words, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("words", "nearest"),
    [(("trian",), "'train'"), (("memory", "serach"), "'search'"), (("train", "--resum"), "--resume")],
)
def test_a_misspelled_command_or_option_names_the_nearest_one(call, words, nearest):
    code, _, error = call(*words)
    assert code == 2 and nearest in error


def test_the_command_to_continue_is_found_by_the_shell(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "over here").mkdir()
    (tmp_path / "over here/progress.json").write_text("{}")

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("midthought.recipes.recipe.Recipe.run", interrupted)
    monkeypatch.setattr(sys, "argv", [".venv/bin/midthought", "train", "podcast", "--run", "over here"])
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SystemExit, match="130"):
        cli.main()
    assert "Continue with: .venv/bin/midthought train podcast --run 'over here' --resume" in capsys.readouterr().err


def test_a_warning_is_one_line(call, tmp_path):
    (tmp_path / "old.yaml").write_text("inference: {multi_turn: true}\ntraining: {unknown: 1}\n")
    code, _, errors = call("train", "podcast", "--config", "old.yaml")
    warning, error = errors.splitlines()
    assert code == 2 and "unknown" in error
    assert warning == "warning: the setting multi_turn has another name now: max_turns, 1 for a single turn"


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (TrainingStoppedError("the policy collapsed"), 3, "midthought: the policy collapsed"),
        (KeyError("x"), 70, "Traceback"),
    ],
)
def test_the_exit_code_says_what_ended_a_command(call, monkeypatch, error, code, said):
    def fail() -> None:
        raise error

    application = typer.Typer()
    application.command()(fail)
    monkeypatch.setattr(cli, "app", application)
    found, _, printed = call()
    assert found == code and said in printed


# -- init ------------------------------------------------------------------------------------------------------


@pytest.fixture
def project(call, tmp_path) -> Path:
    code, text, _ = call("init", "parcels")
    assert code == 0 and "cd parcels && python train.py" in text
    return tmp_path / "parcels"


@pytest.fixture
def import_project(project, monkeypatch):
    """Imports a module of the project, as `python train.py` does in its folder."""
    monkeypatch.chdir(project)
    monkeypatch.syspath_prepend(str(project))
    for name in PROJECT_MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield import_module
    for name in PROJECT_MODULES:
        sys.modules.pop(name, None)


def test_the_written_project_trains(project, import_project):
    settings = yaml.safe_load((project / "config.yaml").read_text("utf-8"))
    settings["training"] |= {"batch_size": 4, "mini_batch_size": 4, "group_size": 2}
    settings |= {"inference": {"max_tokens": 16}, "model": {"hidden_size": 64, "num_layers": 2, "vocab_size": 400}}
    (project / "config.yaml").write_text(yaml.safe_dump(settings), "utf-8")
    (metrics,) = import_project("train").main(["--iterations", "1", "--warmup", "0"])
    assert metrics["episode/count"] == 4 and "reward/right" in metrics and "reward/calls" in metrics
    assert (project / "runs" / "train" / "report.html").is_file()


def test_the_parts_of_the_written_project_pass_its_tests(import_project):
    tests = {name: test for name, test in vars(import_project("test_project")).items() if name.startswith("test_")}
    assert len(tests) == 4
    for name, test in tests.items():
        if name != "test_training_runs":
            test()


@pytest.mark.slow
def test_the_written_project_passes_its_own_test_of_training(import_project, tmp_path):
    import_project("test_project").test_training_runs(tmp_path)


def test_the_written_project_is_in_good_style(project):
    files = {path.name for path in project.iterdir()}
    assert files == {f"{name}.py" for name in PROJECT_MODULES} | {"config.yaml", "README.md"}
    assert (project / "README.md").read_text("utf-8").startswith("# parcels\n")
    ruff = [sys.executable, "-m", "ruff"]
    options = [
        "--config",
        f"{Path(__file__).parents[1] / 'pyproject.toml'}",
        "--config",
        'lint.isort.known-first-party=["midthought"]',
    ]
    for command in (["check", "--ignore=S101", *options], ["format", "--check", *options]):
        done = subprocess.run([*ruff, *command, str(project)], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def test_init_overwrites_nothing(call, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "reward.py").write_text("mine")
    code, _, error = call("init", "mine")
    assert code == 2 and "reward.py" in error and "Give the name of a new folder" in error
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["reward.py"]
    assert (tmp_path / "mine" / "reward.py").read_text() == "mine"
    (tmp_path / "file").touch()
    assert call("init", "file")[0] == 2
