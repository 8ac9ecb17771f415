"""`auto` fits if anything fits: checked against every assignment, each planned as a user's own values."""

import json
from itertools import product
from pathlib import Path

import pytest
from representatives import representatives

from midthought.config import ConfigStore
from midthought.config.yaml_files import parse_assignments
from midthought.plan.choices import choose, resolve
from midthought.plan.hardware import GIB, Hardware
from midthought.plan.memory import Memory
from midthought.plan.shape import find_shape
from midthought.recipes import find_recipe

SMALL = {"hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3}
SMALL |= {"intermediate_size": 1536, "vocab_size": 49_152, "tie_word_embeddings": True}
ONE_LAYER = {"hidden_size": 2048, "num_hidden_layers": 1, "num_attention_heads": 16, "num_key_value_heads": 8}
ONE_LAYER |= {"intermediate_size": 8192, "vocab_size": 4000}
LARGE = {"hidden_size": 4096, "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8}
LARGE |= {"intermediate_size": 12_288, "vocab_size": 151_936}
SHAPES = {"one layer": ONE_LAYER, "large": LARGE}
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


def own(run) -> ConfigStore:
    training = {"batch_size": 64, "kl_coef": 0.02, "learning_rate": "auto", "micro_batch_tokens": "auto"}
    inference = {"max_tokens": 1024, "max_num_seqs": "auto"}
    return ConfigStore().merged({"training": training, "inference": inference}).merged(run)


def value(config, name: str):
    section, _, key = name.partition(".")
    return getattr(getattr(config, section), key)


def most(config, source: str, kind: str, memory_gib: float) -> int:
    settled = choose(config, on_gpu=kind == "gpu", has_vllm=False)
    return Memory.of(find_shape(source), settled, Hardware(kind, "a machine", memory_gib)).needed


def assignments(config):
    names = [name for name in VALUES if value(config, name) == "auto"]
    for values in product(*(VALUES[name] for name in names)):
        words = [f"{name}={value}" for name, value in zip(names, values, strict=True)]
        yield config.merged(parse_assignments(words))


@pytest.mark.parametrize(("shape", "kind"), representatives(product(SHAPES, ["cpu", "gpu"]), ("large", "gpu")))
def test_auto_fits_if_any_assignment_fits_and_leaves_what_is_set(shape, kind, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **SHAPES[shape]}), "utf-8")
    source = str(tmp_path)
    for run in RUNS:
        config = own(run)
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
                assert value(config, name) in ("auto", value(choice.config, name))
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
