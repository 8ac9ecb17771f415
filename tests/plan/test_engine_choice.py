"""`inference.backend=auto` and the engine's share of memory, for described hardware."""

from types import SimpleNamespace

import pytest
from transformers import Qwen3Config
from typer.testing import CliRunner

from midthought.cli import app
from midthought.config import ConfigStore
from midthought.engines.policy_engine import check_backend
from midthought.errors import SettingsError
from midthought.plan.choices import KNOWN_VLLM, as_recorded, choose, resolve, vllm_problem
from midthought.plan.hardware import GIB, Hardware, device_problem
from midthought.trainer.initial_policy import choose_settings

QWEN = "Qwen/Qwen3-1.7B"


def gpu(memory_gib: float, total_gib: float | None = None) -> Hardware:
    return Hardware("gpu", "a GPU", memory_gib, total_gib)


def auto(**sections) -> ConfigStore:
    training = {"batch_size": 64, "learning_rate": "auto", "micro_batch_tokens": "auto", "logits_mib": "auto"}
    inference = {"max_tokens": 512, "max_num_seqs": "auto", "backend": "auto"}
    return ConfigStore().merged({"training": training, "inference": inference}).merged(sections)


@pytest.mark.parametrize(
    ("on_gpu", "has_vllm", "sections", "expected"),
    [
        (True, True, {}, ("vllm", True)),
        (True, False, {}, ("local", False)),
        (False, True, {}, ("local", False)),
        (True, True, {"ray": {"use_ray": True}}, ("local", False)),
        (True, True, {"inference": {"deterministic": True}}, ("local", False)),
        (False, False, {"inference": {"in_process": True}}, ("vllm", True)),
        (True, True, {"inference": {"base_url": ["http://host:8000"]}}, ("vllm", False)),
    ],
)
def test_vllm_samples_in_this_process_on_a_gpu_that_has_it_unless_other_settings_need_another(
    on_gpu, has_vllm, sections, expected
):
    for config in (auto(**sections), ConfigStore().merged(sections)):  # the default is auto
        inference = choose(config, on_gpu=on_gpu, has_vllm=has_vllm).inference
        assert (inference.backend, inference.in_process) == expected


@pytest.mark.parametrize(
    "inference",
    [{"in_process": True, "deterministic": True}, {"base_url": ["http://host:8000"], "deterministic": True}],
)
def test_settings_that_ask_for_vllm_are_checked_before_the_choice(inference):
    with pytest.raises(SettingsError, match="bit-identical repetition"):
        check_backend(auto(inference=inference).inference)


@pytest.mark.parametrize("is_small", [True, False])
def test_a_model_object_or_a_small_model_is_sampled_by_local(is_small, monkeypatch):
    """No folder: its memory is not planned, so vLLM's share of it is unknown."""
    monkeypatch.setattr("midthought.plan.choices.installed_vllm", lambda: KNOWN_VLLM)
    weight = SimpleNamespace(device=SimpleNamespace(type="cuda"), dtype="torch.bfloat16", requires_grad=True)
    on_gpu = SimpleNamespace(parameters=lambda: iter([weight]), config=SimpleNamespace(to_dict=dict))
    config = choose(auto(), on_gpu=True, is_given=False) if is_small else choose_settings(auto(), on_gpu).config
    assert (config.inference.backend, config.inference.in_process) == ("local", False)


def test_on_a_cpu_auto_is_what_runs_by_default():
    config, default = choose(auto(), on_gpu=False, has_vllm=True), ConfigStore()
    assert config.inference.backend == "local"
    for key in ("in_process", "max_num_seqs"):
        assert getattr(config.inference, key) == getattr(default.inference, key), key
    assert (config.training.logits_mib, config.training.micro_batch_tokens) == (64, 4096)
    assert (default.training.max_logits_mib, default.training.max_micro_batch_tokens) == (64, 4096)


def test_the_engine_gets_what_is_free_while_the_learner_waits():
    """Of 48 GiB, 43.2 can be used. Weights of 3.2 GiB stay, adapters with gradients and moments, and two buckets of 128 MiB."""
    choice = resolve(auto(), gpu(48), source=QWEN, has_vllm=True)
    plan, share = choice.plan, choice.config.inference.gpu_memory_utilization
    assert share * 48 * GIB <= 0.9 * 48 * GIB - plan.held - 2**28 < (share + 0.011) * 48 * GIB
    assert plan.phases["sampling"] <= plan.limit
    given = resolve(auto(inference={"gpu_memory_utilization": 0.3}), gpu(48), source=QWEN, has_vllm=True)
    assert given.config.inference.gpu_memory_utilization == 0.3 == given.plan.share


@pytest.mark.parametrize("rank", [0, 32])
def test_the_base_model_under_adapters_takes_cpu_memory_while_the_learner_works(rank):
    choice = resolve(auto(model={"lora_rank": rank}), gpu(80), source=QWEN, has_vllm=True)
    lines = [line for line in choice.table() if "CPU memory" in line]
    assert lines == (["While the learner works, vLLM keeps the base model in CPU memory: 3.2 GiB"] if rank else [])


def test_the_share_is_of_all_memory_if_another_process_holds_a_part():
    whole = resolve(auto(), gpu(24), source=QWEN, has_vllm=True).config.inference.gpu_memory_utilization
    half = resolve(auto(), gpu(24, 48), source=QWEN, has_vllm=True).config.inference.gpu_memory_utilization
    assert half == pytest.approx(whole / 2)


def test_local_samples_if_vllms_copy_of_the_weights_does_not_fit():
    choice = resolve(auto(), gpu(24), source="Qwen/Qwen3-8B", has_vllm=True)
    choice.require_possible()
    assert choice.config.inference.backend == "local"


def test_a_resumed_run_keeps_its_engine(tmp_path):
    chosen = resolve(auto(), gpu(48), source=QWEN, has_vllm=True).config
    (tmp_path / "config.yaml").write_text(chosen.to_yaml(), "utf-8")
    again = choose(as_recorded(auto(), tmp_path / "config.yaml"), on_gpu=False)
    assert again.inference == chosen.inference and chosen.inference.in_process
    (tmp_path / "config.yaml").write_text("inference: {backend: local}\n", "utf-8")
    again = choose(as_recorded(auto(), tmp_path / "config.yaml"), on_gpu=True, has_vllm=True)
    assert (again.inference.backend, again.inference.in_process) == ("local", False)


def test_the_table_says_what_is_missing_for_a_better_value():
    rows = {line.partition("=")[0]: line for line in resolve(auto(), gpu(24), source="Qwen/Qwen3-8B").table()}
    assert "pip install 'vllm" in rows["inference.backend"] and "inference.in_process" not in rows
    choice = resolve(auto(), gpu(48), source=QWEN, has_vllm=True)
    rows = {line.partition("=")[0]: line for line in choice.table()}
    assert rows["inference.backend"] == "inference.backend=vllm" and "inference.gpu_memory_utilization" in rows
    assert "sdpa" in rows["model.attn_implementation"] and "logits_mib=512" in rows["training.logits_mib"]


# -- bad input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "words"), [(None, "not installed"), ("0.11.2", "vLLM 0.11.2 is installed, and 0.32"), ("0.32.1", "")]
)
def test_a_missing_or_another_vllm_is_reported_with_the_remedy(version, words):
    problem = vllm_problem(version)
    assert words in problem and bool(problem) == ("pip install" in problem)


OLD_DRIVER = "The NVIDIA driver on your system is too old (found 11040)"


@pytest.mark.parametrize(
    ("device", "num_gpus", "cuda_build", "warning", "words"),
    [
        ("cuda", 0, None, "", "built without CUDA"),
        ("cuda:0", 0, "12.8", "", "no GPU is found here; check nvidia-smi"),
        ("cuda:3", 2, "12.8", "", "there are 2 GPUs here; set model.device to cuda:0 … cuda:1"),
        ("auto", 0, "12.8", OLD_DRIVER, "install a newer driver"),
        *((device, num, "12.8", "", "") for device, num in (("auto", 0), ("cpu", 0), ("cuda", 1), ("cuda:1", 2))),
    ],
)
def test_a_device_that_cannot_be_used_is_reported_with_the_remedy(device, num_gpus, cuda_build, warning, words):
    problem = device_problem(device, num_gpus=num_gpus, cuda_build=cuda_build, warning=warning)
    assert words in problem and bool(words) == bool(problem)


IN_PROCESS = {"backend": "vllm", "in_process": True}


@pytest.mark.parametrize(
    ("inference", "hardware", "size", "remedy"),
    [
        ({}, gpu(4, 80), "8B", r"other processes hold 76\.0 of 80\.0 GiB .*nvidia-smi"),
        ({}, gpu(8), "8B", "no setting makes it fit; take a smaller model"),
        (IN_PROCESS, gpu(24), "8B", r"it fits with .*inference\.backend=local"),
        ({**IN_PROCESS, "gpu_memory_utilization": 0.89}, gpu(48), "4B", r"inference\.gpu_memory_utilization=auto"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_remedy(inference, hardware, size, remedy):
    choice = resolve(auto(inference=inference), hardware, source=f"Qwen/Qwen3-{size}")
    with pytest.raises(SettingsError, match=remedy):
        choice.require_possible()


def test_a_gpu_counts_as_occupied_if_others_hold_much_of_it():
    assert gpu(4, 80).occupied and not gpu(79, 80).occupied and not gpu(24).occupied


# -- the command -------------------------------------------------------------------------------------------------------


def dry_run(*words: str):
    return CliRunner().invoke(app, ["train", "podcast", "--dry-run", *words])


def test_a_dry_run_prints_the_choice_for_a_described_gpu_and_writes_nothing(tmp_path):
    run = tmp_path / "run"
    result = dry_run("--gpu-gib", "24", "--run", str(run), f"model.local_path={QWEN}")
    assert result.exit_code == 0, result.output
    assert "model.dtype=bfloat16" in result.output and "21.6 GiB can be used" in result.output
    assert not run.exists()


def test_a_dry_run_plans_for_the_policy_of_the_run_that_it_starts_from(tmp_path):
    Qwen3Config(num_hidden_layers=2).save_pretrained(tmp_path / "run" / "policy")
    result = dry_run("--gpu-gib", "24", "--stage", "rl", "--from", str(tmp_path / "run"))
    assert "21.6 GiB can be used" in result.output and "Memory is not checked" not in result.output


def test_a_dry_run_refuses_what_does_not_fit():
    result = dry_run("--gpu-gib", "8", "model.local_path=Qwen/Qwen3-8B")
    assert isinstance(result.exception, SettingsError) and "does not fit" in str(result.exception)
    with pytest.raises(SettingsError, match=r"no GPU is found|built without CUDA"):
        raise dry_run(f"model.local_path={QWEN}", "model.device=cuda:0").exception


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"inference": {"backend": "local"}}, "none"),
        ({"inference": {"backend": "vllm"}}, "truncated"),
        ({"inference": {"backend": "sglang"}}, "truncated"),
        ({"inference": {"backend": "auto", "in_process": True}}, "truncated"),
        ({"inference": {"backend": "vllm"}, "training": {"rollout_correction": "none"}}, "none"),
        ({"inference": {"backend": "vllm"}, "training": {"rollout_correction": "masked"}}, "masked"),
        ({"inference": {"backend": "vllm"}, "training": {"algorithm": "grpo"}}, "truncated"),
        ({"inference": {"backend": "vllm"}, "training": {"algorithm": "dppo_tv"}}, "none"),
    ],
)
def test_the_loss_is_corrected_if_another_engine_samples_and_the_loss_does_not_do_it(changes, expected, tmp_path):
    chosen = choose(auto().merged(changes), on_gpu=False, has_vllm=False)
    assert chosen.training.rollout_correction == expected
    (tmp_path / "config.yaml").write_text(chosen.to_yaml(), "utf-8")
    assert as_recorded(auto().merged(changes), tmp_path / "config.yaml").training.rollout_correction == expected
    assert choose(auto(), on_gpu=True, by_verl=True).training.rollout_correction == "truncated"
