"""Whole runs of a model that a user gives: what is chosen for its hardware is printed, recorded, kept, and trains."""

import pytest
import yaml
from small_runs import FEEDBACK
from typer.testing import CliRunner

from midthought.cli import app
from midthought.config import ModelConfig
from midthought.errors import SettingsError
from midthought.models.pretrained import save_model
from midthought.plan.hardware import Hardware
from midthought.recipes.feedback.demonstrations import make_small_policy

SMALL = [*FEEDBACK, "training.num_train_iters=1", "training.validate_every=0", "evaluation.arms=[]", "sft.num_steps=1"]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("models") / "small"
    policy, tokenizer = make_small_policy(ModelConfig(hidden_size=64, num_layers=2, vocab_size=600), 0)
    save_model(policy, tokenizer, path)
    return str(path)


def train(recipe: str, *words: str):
    return CliRunner().invoke(app, ["train", recipe, *words])


def recorded(path) -> tuple[object, ...]:
    config = yaml.safe_load((path / "config.yaml").read_text())
    chosen = [config["model"][key] for key in ("dtype", "critic", "lora_rank")]
    return *chosen, *(
        config["training"][key] for key in ("gradient_checkpointing", "learning_rate", "micro_batch_tokens")
    )


ON_GPU = ("bfloat16", "shared", 32, False, 1e-5, 16_384)


@pytest.fixture
def on_gpu(monkeypatch):
    """The run believes that its device, this CPU, is a GPU with so many GiB."""

    def believe(memory_gib: float) -> None:
        monkeypatch.setattr("midthought.recipes.run.find_hardware", lambda device: Hardware("gpu", "a GPU", memory_gib))

    return believe


def test_what_is_chosen_for_a_gpu_trains_is_recorded_and_kept_by_a_resumed_run(model, tmp_path, on_gpu, monkeypatch):
    on_gpu(24)
    words = ("--run", str(tmp_path / "run"), f"model.local_path={model}")
    result = train("feedback", *words, *SMALL)
    assert result.exit_code == 0, result.output
    assert "Chosen for a GPU (24.0 GiB): model.dtype=bfloat16" in " ".join(result.output.split())
    assert recorded(tmp_path / "run") == ON_GPU
    monkeypatch.undo()  # this CPU again
    assert train("feedback", *words, "--resume").exit_code == 0
    assert recorded(tmp_path / "run") == ON_GPU


@pytest.mark.parametrize("recipe", ["podcast", "feedback"])
def test_a_model_that_does_not_fit_is_refused_before_anything_is_written(recipe, model, tmp_path, on_gpu):
    on_gpu(0.001)
    with pytest.raises(SettingsError, match=r"small does not fit: training needs .* smaller model"):
        raise train(recipe, "--run", str(tmp_path / "run"), f"model.local_path={model}").exception
    assert not (tmp_path / "run").exists()
