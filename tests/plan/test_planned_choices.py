"""`auto` becomes values by hardware; what does not fit is refused with the settings that make it fit."""

import json
import sys
from dataclasses import replace
from itertools import product
from operator import attrgetter
from pathlib import Path

import pytest
from representatives import representatives

from benchmarks.plan import SMALLEST, make_trajectories, memory_of
from midthought.config import ConfigStore, RecipeConfig
from midthought.config.yaml_files import parse_assignments
from midthought.errors import MissingExtraError, SettingsError
from midthought.learning.batch import TokenBatch
from midthought.plan.choices import choose, resolve
from midthought.plan.hardware import GIB, Hardware, find_hardware
from midthought.plan.memory import Memory
from midthought.plan.shape import MODEL_CONFIGS, find_shape
from midthought.recipes import find_recipe

QWEN = "Qwen/Qwen3-1.7B"


def gpu(memory_gib: float | None) -> Hardware:
    return Hardware("gpu", "a GPU", memory_gib)


def auto(**sections) -> ConfigStore:
    """The settings of `own.yaml` that memory depends on."""
    training = {"batch_size": 64, "kl_coef": 0.02, "learning_rate": "auto", "micro_batch_tokens": "auto"}
    inference = {"max_tokens": 512, "max_num_seqs": "auto"}
    return ConfigStore().merged({"training": training, "inference": inference}).merged(sections)


def values(config: RecipeConfig) -> tuple[object, ...]:
    model, training = config.model, config.training
    return model.dtype, model.critic, model.lora_rank, training.gradient_checkpointing, training.learning_rate


@pytest.mark.parametrize(
    ("hardware", "expected"),
    [
        ({"on_gpu": True}, ("bfloat16", "shared", 32, True, 1e-5)),
        ({"on_gpu": False}, ("float32", "separate", 0, False, 1e-6)),
        ({"on_gpu": True, "is_given": False}, ("float32", "separate", 0, False, 2e-4)),
        ({"on_gpu": True, "by_verl": True}, ("bfloat16", "separate", 0, True, 1e-6)),
    ],
)
def test_auto_follows_the_hardware(hardware, expected):
    assert values(choose(auto(), **hardware)) == expected


def test_what_a_user_sets_stays_and_the_learning_rate_follows_it():
    config = auto(model={"lora_rank": 0, "critic": "separate"}, training={"gradient_checkpointing": False})
    assert values(choose(config, on_gpu=True)) == ("bfloat16", "separate", 0, False, 1e-6)
    assert values(choose(auto(model={"lora_rank": 4}), on_gpu=False))[-1] == 1e-5


def test_without_peft_the_weights_themselves_learn(monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    choice = resolve(auto(), gpu(80), source=QWEN)
    choice.require_possible()
    assert values(choice.config) == ("bfloat16", "shared", 0, False, 1e-6)
    assert any("peft is not installed" in line for line in choice.table())
    with pytest.raises(MissingExtraError, match=r"midthought\[lora\]"):
        resolve(auto(model={"lora_rank": 8}), gpu(80), source=QWEN).require_possible()


def test_a_teacher_counts_and_one_that_is_unknown_is_not_planned(tmp_path):
    config = auto(training={"teacher": str(tmp_path)}, model={"lora_rank": 0})
    assert "holds no policy" in resolve(config, gpu(80), source=QWEN).unknown
    (tmp_path / "config.json").write_text(json.dumps(MODEL_CONFIGS["Qwen/Qwen3-14B"]), "utf-8")
    choice = resolve(config, gpu(80), source=QWEN)
    assert choice.plan.teacher_shape == find_shape("Qwen/Qwen3-14B")
    assert choice.plan.needed > choice.plan.frozen[1] > 27e9
    assert resolve(config, gpu(80), source=QWEN, teacher_shape=None).plan.teacher_shape is None, "of supervised steps"


def test_a_critic_is_named_only_if_there_is_one():
    grpo = resolve(auto(training={"adv_estimator": "grpo"}), gpu(24), source=QWEN)
    assert not any("critic" in line for line in grpo.table())


def test_a_value_that_is_neither_a_number_nor_auto_is_refused_in_one_sentence():
    with pytest.raises(SettingsError, match=r"^model\.lora_rank='many': .*integer.*, or be auto$"):
        auto(model={"lora_rank": "many"})


# -- prompts that a group shares -----------------------------------------------------------------------------------------

CPU = Hardware("cpu", "a CPU", 256)
SHARED = {"adv_estimator": "grpo", "group_size": 8}


@pytest.mark.parametrize("num_prompt", [200, 1024, 4000])
def test_a_pass_holds_a_whole_group_with_the_longest_prompt(num_prompt):
    """The learner keeps such a group together at the chosen size, and not at one less."""
    config = auto(training=SHARED, inference={"max_tokens": 300 if num_prompt < 1000 else 512})
    choice = resolve(config, CPU, source="Qwen/Qwen3-0.6B", prompt_tokens=num_prompt)
    size, num_sampled = choice.config.training.micro_batch_tokens, config.inference.max_tokens
    sizes = f"num_sharing=8 batch_size=8 prompt_tokens={num_prompt} max_tokens={num_sampled}"
    batch = TokenBatch.from_trajectories(make_trajectories(memory_of(SMALLEST, sizes)))
    assert len(batch.micro_batch_rows(size, packed="shared")) == 1
    assert size == 4096 or len(batch.micro_batch_rows(size - 1, packed="shared")) == 2
    assert size > 4096 or num_prompt == 200
    assert choice.plan.samples_together == 8 and choice.plan.needed <= choice.plan.limit


@pytest.mark.parametrize(
    ("sections", "size", "num_samples"),
    [
        ({"training": SHARED}, 12_103, 8),
        ({"training": {**SHARED, "packing": True}}, 4096, 1),
        ({"training": SHARED, "inference": {"deterministic": True}}, 4096, 1),
        ({"training": SHARED, "inference": {"max_tokens": 60_000}}, 4096, 1),  # sharing saves less than a tenth
        ({"training": {}}, 4096, 1),  # one sample of each prompt
    ],
)
def test_passes_are_larger_only_if_samples_share_their_prompt(sections, size, num_samples):
    choice = resolve(auto(**sections), CPU, source="Qwen/Qwen3-0.6B", prompt_tokens=4000)
    assert (choice.config.training.micro_batch_tokens, choice.plan.samples_together) == (size, num_samples)


def test_a_group_is_divided_only_if_recomputed_layers_do_not_save_enough_memory():
    """Half a group costs 1.5 times the tokens of a whole one, and recomputed layers a third more."""
    found = []
    for memory_gib in (200, 64, 44):
        choice = resolve(auto(training=SHARED), replace(CPU, memory_gib=memory_gib), source=QWEN, prompt_tokens=4000)
        choice.require_possible()
        found.append((choice.config.training.gradient_checkpointing, choice.plan.samples_together))
    assert found == [(False, 8), (True, 8), (True, 4)]


SEPARATE = (
    "computed once per sample if layers see only a window or are not attention (the log says so), else once per group"
)
WINDOWS = {"sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 14}


@pytest.mark.parametrize(
    ("fixed", "more", "line"),
    [
        ({}, {}, "1,024 tokens at most (assumed), computed once per 8 of 8 samples"),
        ({"prompt_tokens": 4000}, {}, "4,000 tokens at most, computed once per 8 of 8 samples"),
        ({}, WINDOWS, f"1,024 tokens at most (assumed), {SEPARATE}"),
        ({}, {"model_type": "gemma3_text"}, SEPARATE),
    ],
)
def test_the_table_says_how_often_a_prompt_is_computed(fixed, more, line, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({**MODEL_CONFIGS[QWEN], **more}), "utf-8")
    choice = resolve(auto(training=SHARED), gpu(80), source=str(tmp_path), **fixed)
    assert f"Prompts: {line}" in list(choice.table())
    alone = resolve(auto(), gpu(80), source=QWEN)
    assert "Prompts: 1,024 tokens at most (assumed), computed once per sample" in list(alone.table())


def update_of(choice) -> tuple[bool, int]:
    training = choice.config.training
    return training.gradient_checkpointing, training.micro_batch_tokens


def loaded(memory_gib: float | None, model: dict[str, object] = MODEL_CONFIGS[QWEN], **training):
    """What is chosen for a loaded model in bfloat16, all of whose weights learn."""
    config = ConfigStore().merged({"model": {"lora_rank": 0}, "training": training})
    return resolve(config, gpu(memory_gib), source="", has_vllm=False, model=model, dtype="bfloat16")


@pytest.mark.parametrize(
    ("memory_gib", "training", "expected"),
    [
        (64, {}, (False, 8192, 512)),
        (80, {}, (False, 8192, 512)),
        (141, {}, (False, 16_384, 512)),
        (141, {"gradient_checkpointing": True}, (True, 16_384, 512)),
        (141, {"micro_batch_tokens": 2048, "logits_mib": 32}, (False, 2048, 32)),
    ],
)
def test_a_loaded_model_gets_the_sizes_that_its_gpu_has_memory_for(memory_gib, training, expected):
    choice = loaded(memory_gib, **training)
    assert (*update_of(choice), choice.config.training.logits_mib) == expected
    plan = choice.plan
    assert (plan.gradient_checkpointing, plan.micro_batch_tokens, plan.logits_mib) == expected
    assert choice.fits


@pytest.mark.parametrize(("memory_gib", "model"), [(None, {}), (141, {"model_type": "mamba2"})])
def test_a_loaded_model_that_cannot_be_planned_keeps_fixed_sizes(memory_gib, model):
    choice = loaded(memory_gib, model)
    assert choice.plan is None and choice.unknown
    assert (*update_of(choice), choice.config.training.logits_mib) == (True, 4096, 64)


def test_what_does_not_fit_is_refused_with_settings_that_make_it_fit():
    model = {"dtype": "float32", "critic": "separate", "lora_rank": 0}
    config = auto(model=model, training={"gradient_checkpointing": False})
    with pytest.raises(SettingsError, match=r"Qwen3-1\.7B does not fit: training needs .* it fits with ") as refused:
        resolve(config, gpu(24), source=QWEN).require_possible()
    changes = parse_assignments(str(refused.value).rpartition("fits with ")[2].split())
    resolve(config.merged(changes), gpu(24), source=QWEN).require_possible()


def test_a_run_that_cannot_be_planned_is_not_refused_and_says_why(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "mamba2"}', "utf-8")
    for hardware, sections, source, reason in (
        (gpu(None), {}, "Qwen/Qwen3-8B", "the memory of a GPU is not known"),
        (gpu(24), {"ray": {"num_learners": 2}}, "Qwen/Qwen3-8B", "ray.num_learners"),
        (gpu(24), {}, str(tmp_path), "model_type='mamba2' is not counted here"),
    ):
        choice = resolve(auto(**sections), hardware, source=source, has_vllm=True)
        choice.require_possible()
        assert any("not checked" in line and reason in line for line in choice.table())
        assert choice.config.model.dtype == "bfloat16"
        assert (choice.config.inference.backend, choice.config.model.attn_implementation) == ("local", "auto")


def test_this_machine_says_how_much_memory_it_has():
    found = find_hardware("cpu")
    assert found.kind == "cpu" and found.memory_gib > 0.1
    assert find_hardware("cuda:99").memory_gib is None


# -- `auto` fits if anything fits: checked against every assignment, each planned as a user's own values ---------------

SMALL = {"hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3}
SMALL |= {"intermediate_size": 1536, "vocab_size": 49_152, "tie_word_embeddings": True}
ONE_LAYER = {"hidden_size": 2048, "num_hidden_layers": 1, "num_attention_heads": 16, "num_key_value_heads": 8}
ONE_LAYER |= {"intermediate_size": 8192, "vocab_size": 4000}
SHAPES = {"one layer": ONE_LAYER, "large": MODEL_CONFIGS["Qwen/Qwen3-8B"]}
RUNS = (
    {},
    {"training": {"adv_estimator": "grpo", "mini_batch_size": 2}},
    {"model": {"lora_rank": 0}, "training": {"kl_coef": 0.0}, "inference": {"max_tokens": 2048}},
    {"model": {"critic": "separate", "dtype": "float32"}, "training": {"micro_batch_tokens": 4096}},
    {"training": {"gradient_checkpointing": False, "logits_mib": 64}, "inference": {"max_num_seqs": 64}},
)
"""Values that a user sets."""
VALUES = {
    "model.dtype": ("bfloat16",),
    "model.critic": ("separate", "shared"),
    "model.lora_rank": (32,),
    "training.gradient_checkpointing": (False, True, "offload"),
    "training.micro_batch_tokens": (4096, 2048, 1024),
    "training.logits_mib": (64, 16),
    "inference.max_num_seqs": (128, 8),
}


def most(config, source: str, kind: str, memory_gib: float) -> int:
    settled = choose(config, on_gpu=kind == "gpu", has_vllm=False)
    return Memory.of(find_shape(source), settled, Hardware(kind, "a machine", memory_gib)).needed


def assignments(config):
    names = [name for name in VALUES if attrgetter(name)(config) == "auto"]
    for values in product(*(VALUES[name] for name in names)):
        words = [f"{name}={value}" for name, value in zip(names, values, strict=True)]
        yield config.merged(parse_assignments(words))


@pytest.mark.parametrize(("shape", "kind"), representatives(product(SHAPES, ["cpu", "gpu"]), ("large", "gpu")))
def test_auto_fits_if_any_assignment_fits_and_leaves_what_is_set(shape, kind, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **SHAPES[shape]}), "utf-8")
    source = str(tmp_path)
    for run in RUNS:
        config = auto(inference={"max_tokens": 1024}).merged(run)
        every = list(assignments(config))
        least = min(most(each, source, kind, 24) for each in every) / GIB / 0.9
        for memory_gib in (0.97 * least, 1.0001 * least, 1.2 * least, 3 * least):
            hardware = Hardware(kind, "a machine", memory_gib)
            choice = resolve(config, hardware, source=source, has_vllm=False)
            limit = 0.9 * memory_gib * GIB
            if not choice.fits:
                fitting = [each for each in every if most(each, source, kind, memory_gib) <= limit]
                assert not fitting, (run, memory_gib, fitting[0].to_yaml())
                continue
            for name in VALUES:
                assert attrgetter(name)(config) in ("auto", attrgetter(name)(choice.config))
            assert most(choice.config, source, kind, memory_gib) <= limit
            assert choice.plan.needed == resolve(choice.config, hardware, source=source).plan.needed
            assert resolve(config, hardware, source=source, has_vllm=True).fits


def test_a_model_of_135_million_weights_trains_on_a_laptop(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **SMALL}), "utf-8")
    config, _ = find_recipe("podcast").begin(Path(), words=[f"model.local_path={tmp_path}"])
    found = []
    for memory_gib in (24, 16, 4):
        choice = resolve(config, Hardware("cpu", "a laptop", memory_gib), source=str(tmp_path))
        choice.require_possible()
        found.append((choice.config.training.gradient_checkpointing, choice.config.model.critic))
    assert found == [(False, "separate"), (True, "separate"), (True, "shared")]
