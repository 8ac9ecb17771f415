"""Published policies: the model card, and files that work elsewhere."""

import re
import shutil
import subprocess

import pytest
import yaml

from midthought import save_for_hub
from midthought.errors import CheckpointError, ModelPathError
from midthought.files.output_folder import MANIFEST, MARK
from midthought.models.pretrained import require_intact_model
from midthought.report.run_folder import RunFolder
from midthought.tools.builtin.calculate import CalculateTool
from midthought.trainer.trainer import Trainer
from midthought.types import Task

BEFORE = {"before.exact_match": 0.25, "before.exact_match.low": 0.2, "before.exact_match.high": 0.3}
FIGURES = {**BEFORE, "after.exact_match": 0.5, "arms.rft.exact_match": 0.375}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("published") / "run"
    tasks = [Task(task_id=name, prompt="2 + 2?", answer="4") for name in "ab"]
    sizes = {"hidden_size": 64, "num_layers": 1, "num_heads": 2, "vocab_size": 300, "inference": {"max_tokens": 9}}
    prompts = {"tools": [CalculateTool()], "system_prompt": "Be <b> brief.", "call_format": "in_thought"}
    with Trainer(dataset=tasks, run_path=path, progress=False, **prompts, **sizes) as trainer:
        trainer.save_model(path / "policy")
    RunFolder(path).write_summary(FIGURES)
    return path


def test_the_folder_works_with_transformers_alone(run, tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = save_for_hub(run, tmp_path / "hub", name="me/policy")
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    inputs = tokenizer.apply_chat_template(
        [{"role": "user", "content": "2 + 2?"}], add_generation_prompt=True, return_dict=True, return_tensors="pt"
    )
    written = model.generate(**inputs, max_new_tokens=9)[0, inputs["input_ids"].shape[1] :].tolist()
    assert 1 <= len(written) <= 9
    assert "model.generate(**inputs, max_new_tokens=9)" in (folder / "README.md").read_text("utf-8")
    config = model.generation_config
    assert tokenizer.eos_token_id in config.eos_token_id and config.max_new_tokens is None
    assert config.pad_token_id == tokenizer.pad_token_id


def test_the_card_has_metadata_steps_figures_of_all_arms_tools_and_a_place_for_the_license(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    for stage, key in (("sft", "loss"), ("sft", "loss"), ("ppo", "reward/mean")):
        folder.log(stage, 1, {key: 0.5})
    folder.close()
    text = (save_for_hub(tmp_path / "run", tmp_path / "hub", name="me/policy") / "README.md").read_text("utf-8")
    head = yaml.safe_load(text.split("---")[1])
    assert head["library_name"] == "transformers" and head["pipeline_tag"] == "text-generation"
    assert head["license"] == "unknown" and "midthought" in head["tags"]
    assert "| exact_match | 0.250 (0.200–0.300) | 0.500 | 0.375 |\n\nIn brackets: 95 %" in text and "arms.rft" in text
    assert "- `calculate`: " in text and "hf download me/policy" in text and "## License\n\nNot filled in" in text
    assert "--tools midthought.tools.builtin.calculate:CalculateTool --system 'Be <b> brief.'\n```" in text
    assert re.search(r"Supervised steps: 2; reinforcement learning \(\w+\): 1 iterations, with \[midthought", text)
    assert str(tmp_path) not in text


def test_a_card_of_a_policy_that_was_only_measured_once_explains_its_interval(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    RunFolder(tmp_path / "run").write_summary({f"after{key[6:]}": value for key, value in BEFORE.items()})
    text = (save_for_hub(tmp_path / "run", tmp_path / "hub") / "README.md").read_text("utf-8")
    assert "| exact_match | 0.250 (0.200–0.300) |\n\nIn brackets: 95 %" in text


def test_neither_git_nor_the_hub_takes_the_marks_of_the_folder(run, tmp_path):
    folder = save_for_hub(run, tmp_path / "hub")
    subprocess.run(["git", "init", "--quiet", folder], check=True)
    known = subprocess.run(["git", "-C", folder, "ls-files", "--others", "--exclude-standard"], capture_output=True)
    assert {path.name for path in folder.iterdir()} - {*known.stdout.decode().split(), ".git"} == {MANIFEST, MARK}


def test_an_edited_card_is_kept_and_the_folder_loads_with_it(run, tmp_path):
    folder = save_for_hub(run, tmp_path / "hub")
    card = (folder / "README.md").read_text("utf-8").replace("unknown", "apache-2.0")
    (folder / "README.md").write_text(card, "utf-8")
    require_intact_model(folder)
    save_for_hub(run, folder)
    assert (folder / "README.md").read_text("utf-8") == card
    require_intact_model(folder)


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(ModelPathError, match="holds no policy"):
        save_for_hub(tmp_path, tmp_path / "hub")
    (tmp_path / "policy").mkdir()
    (tmp_path / "policy/config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="not in a run folder"):
        save_for_hub(tmp_path / "policy", tmp_path / "hub")
