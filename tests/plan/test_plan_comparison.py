"""`midthought plan --against RUN`: real small runs through the command line, and figures worked by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from midthought import Trainer, create_default_config
from midthought.cli import app
from midthought.errors import CheckpointError, SettingsError
from midthought.learning.phase_meter import Measured
from midthought.learning.small_model import make_policy, make_tokenizer
from midthought.plan.comparison import Comparison
from midthought.plan.hardware import Hardware
from midthought.plan.memory import MIB, Memory
from midthought.plan.phases import plan_record
from midthought.plan.settings import PlanSettings
from midthought.plan.shape import find_shape

QUESTIONS = [{"question": f"What is {number}?", "answer": str(number)} for number in range(8)]
PHASES = {"sampling", "scoring", "update", "weight_update", "validation", "saving"}


def train(run: Path, num_iters: int, *, resume: bool = False, **more) -> None:
    config = create_default_config().merged(
        {
            "model": {"hidden_size": 64, "num_layers": 2, "num_heads": 2},
            "inference": {"max_tokens": 8},
            "training": {
                "num_train_iters_per_epoch": num_iters,
                "batch_size": 4,
                "mini_batch_size": 2,
                "validate_every": 1,
                "num_validation_questions": 2,
            },
        }
    )
    settings = {"dataset": QUESTIONS, "validation": QUESTIONS, "run_path": run, "resume": resume, "progress": False}
    with Trainer(config, **settings, **more) as trainer:
        trainer.fit(num_iters // 2)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "run"
    train(path, 2)
    return path


def against(path: Path, *words: str):
    return CliRunner().invoke(app, ["plan", "--against", str(path), *words])


def test_every_run_records_its_plan_and_the_peak_and_the_seconds_of_each_phase(run):
    record = json.loads((run / "plan.json").read_text("utf-8"))
    assert record["planned"]["bytes"].keys() == record["measured"]["phases"].keys() == PHASES
    assert record["planned"]["settings"]["hidden_size"] == 64 and record["planned"]["device"] == "cpu"
    for found in record["measured"]["phases"].values():
        assert found["calls"] >= 1 and found["seconds"] > 0 and found["peak_bytes"] > 100 * MIB
    episodes = record["measured"]["episodes"]
    assert episodes["tokens"] > episodes["prompt_tokens"] > 0 and episodes["count"] >= 4


def test_the_command_prints_planned_and_measured_by_phase_and_says_why_seconds_are_not_planned(run):
    result = against(run)
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert next(line for line in lines if "at the peak" in line).split()[-3:] == ["planned", "measured", "difference"]
    assert any(line.startswith("  update") for line in lines)
    assert "No seconds are planned: a plan has no speed of a CPU" in result.output
    found = json.loads(against(run, "--json").output)
    assert {row["part"] for row in found["bytes"]} >= {"sampling", "update", "saving"}
    seconds = {row["part"]: row["measured"] for row in found["seconds"]}
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]
    updates = [row["time/update_seconds"] for row in metrics if row["stage"] == "ppo"]
    assert seconds["update"] == pytest.approx(sorted(updates[1:] or updates)[0], rel=1e-6)


def test_a_resumed_run_adds_to_what_was_measured(tmp_path):
    train(tmp_path / "run", 2)
    before = json.loads((tmp_path / "run" / "plan.json").read_text("utf-8"))["measured"]
    train(tmp_path / "run", 4, resume=True)
    after = json.loads((tmp_path / "run" / "plan.json").read_text("utf-8"))["measured"]
    assert after["phases"]["update"]["calls"] > before["phases"]["update"]["calls"]
    assert after["episodes"]["tokens"] > before["episodes"]["tokens"]


def test_a_given_model_is_planned_from_its_config_and_another_architecture_is_reported(tmp_path):
    tokenizer = make_tokenizer([row["question"] for row in QUESTIONS], 300)
    made = make_policy(tokenizer, hidden_size=64, num_layers=2, num_heads=2, max_length=64, seed=0)
    train(tmp_path / "known", 2, model=made, tokenizer=tokenizer)
    record = json.loads((tmp_path / "known" / "plan.json").read_text("utf-8"))
    weights = sum(parameter.nbytes for parameter in made.parameters())
    assert record["planned"]["bytes"]["update"]["weights"] >= weights
    from transformers import AutoModelForCausalLM, GPTNeoXConfig

    config = GPTNeoXConfig(vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
                           intermediate_size=64, eos_token_id=tokenizer.eos_token_id)  # fmt: skip
    with torch.random.fork_rng():
        other = AutoModelForCausalLM.from_config(config)
    train(tmp_path / "other", 2, model=other, tokenizer=tokenizer)
    result = against(tmp_path / "other")
    assert result.exit_code == 0, result.output
    assert "There is no plan of this run: model_type='gpt_neox' is not counted here" in result.output


def test_adapters_of_a_given_model_are_planned_if_they_are_on_all_linear_layers(tmp_path):
    from peft import LoraConfig, get_peft_model

    def planned(name: str, **settings):
        tokenizer = make_tokenizer([row["question"] for row in QUESTIONS], 300)
        made = make_policy(tokenizer, hidden_size=64, num_layers=2, num_heads=2, max_length=64, seed=0)
        adapted = get_peft_model(made, LoraConfig(r=4, task_type="CAUSAL_LM", **settings))
        train(tmp_path / name, 2, model=adapted, tokenizer=tokenizer)
        return json.loads((tmp_path / name / "plan.json").read_text("utf-8"))["planned"]

    known = planned("known", target_modules="all-linear", use_dora=True)
    assert (known["settings"]["lora_rank"], known["settings"]["use_dora"]) == (4, True)
    other = planned("other", target_modules=["q_proj"])
    assert other["bytes"] is None and "only LoRA and DoRA on all linear layers are planned" in other["unknown"]


def test_a_folder_without_a_record_is_refused_with_the_remedy(tmp_path):
    with pytest.raises(CheckpointError, match=r"holds no plan\.json.*resuming it with more iterations"):
        raise against(tmp_path).exception
    (tmp_path / "plan.json").write_text("[]", "utf-8")
    with pytest.raises(CheckpointError, match=r"plan\.json cannot be read"):
        raise against(tmp_path).exception
    with pytest.raises(SettingsError, match="leave out the rest"):
        raise against(tmp_path, "gpus=8").exception


# -- figures worked by hand ----------------------------------------------------------------------------------------

H100 = Hardware("gpu", "NVIDIA H100 80GB HBM3", 79.2, 79.2)
WORDS = {"model": "Qwen/Qwen3-0.6B", "lora_rank": 8, "engine": "local", "prompt_tokens": 100, "response_tokens": 100,
         "batch_size": 8, "mini_batch_size": 8, "micro_batch_tokens": 1600}  # fmt: skip


def comparison(peaks: dict[str, float], metrics=(), hardware: Hardware = H100, **more) -> Comparison:
    """A run on a GPU whose phases took `peaks` times what was planned."""
    settings = PlanSettings(**WORDS)
    planned = plan_record(Memory(find_shape(settings), settings), "", hardware)
    sums = {phase: sum(parts.values()) for phase, parts in planned["bytes"].items()}
    phases = {
        phase: {"calls": 1, "seconds": 1.0, "peak_bytes": round(share * sums[phase]), "reserved_bytes": 0}
        for phase, share in peaks.items()
    }
    assert Measured(**phases["update"]).calls == 1
    episodes = {"count": 8, "tokens": 1600, "prompt_tokens": 800, "longest": 200, "longest_prompt": 100}
    measured = {"memory": "allocated", "is_peak_of_phase": True, "base_bytes": 0, "phases": phases}
    return Comparison({"planned": planned, "measured": {**measured, "episodes": episodes, **more}}, list(metrics))


def test_rows_beyond_ten_per_cent_are_marked_and_others_are_not():
    rows = {row.part: row for row in comparison({"update": 1.0 / 1.2, "scoring": 1.0 / 1.05}).memory}
    assert rows["update"].difference == pytest.approx(0.2, abs=1e-6) and rows["update"].is_marked
    assert rows["scoring and advantages"].difference == pytest.approx(0.05, abs=1e-6)
    assert not rows["scoring and advantages"].is_marked and not rows["scoring and advantages"].cause
    assert "largest parts are activations" in rows["update"].cause


def test_shorter_episodes_are_named_as_the_cause_if_a_plan_for_them_fits():
    planned = comparison({"update": 1.0})
    short = {"count": 8, "tokens": 400, "prompt_tokens": 200, "longest": 50, "longest_prompt": 25}
    again = comparison({"update": 1.0}, episodes=short)
    memory = again.plan_as_run
    taken = sum(again.bytes_as_run["update"].values())
    share = taken / sum(planned.planned["bytes"]["update"].values())
    row = next(row for row in comparison({"update": share}, episodes=short).memory if row.part == "update")
    assert memory.settings.tokens_of_pass == 400
    assert row.is_marked and "episodes of 50 tokens on average and 50 at most; a plan for these says" in row.cause


def test_pages_that_an_earlier_phase_left_are_named_on_a_cpu():
    found = comparison({"update": 1.0, "saving": 1.0, "scoring": 1.0}, memory="resident")
    left = round(0.98 * found.measured["phases"]["update"]["peak_bytes"])
    found.measured["phases"]["saving"]["peak_bytes"] = left
    row = next(row for row in found.memory if row.part == "saving")
    assert row.is_marked and "only that phase can be compared" in row.cause


def test_halved_micro_batches_are_named():
    row = comparison({"update": 0.5}, [{"num_halved_micro_batches": 2.0}]).memory[2]
    assert "micro-batches were halved 2 times" in row.cause


def test_seconds_are_the_median_without_the_first_iteration_and_name_the_share_that_was_reached():
    expected = comparison({"update": 1.0}).planned["seconds"]["update"]
    metrics = [{"time/update_seconds": factor * expected} for factor in (90, 2, 4, 4)]
    row = next(row for row in comparison({"update": 1.0}, metrics).seconds if row.part == "update")
    assert row.measured == pytest.approx(4 * expected) and row.difference == pytest.approx(-0.75)
    assert row.cause == "the plan assumes mfu=0.4; with the run's lengths this run reached mfu=0.1."


def test_a_gpu_without_a_data_sheet_has_no_planned_seconds():
    found = comparison({"update": 1.0}, hardware=Hardware("gpu", "NVIDIA Z1", 79.2, 79.2))
    assert found.planned["seconds"] is None and "no data sheet of NVIDIA Z1" in found.planned["seconds_unknown"]
