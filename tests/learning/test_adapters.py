"""LoRA: adapters alone learn, merge into the weights they stand beside, and come back from a checkpoint."""

import copy
from unittest.mock import Mock

import pytest
import torch
import transformers
from peft import LoraConfig
from training_settings import training
from transformers import FalconConfig, FalconForCausalLM

from midthought.config import ConfigStore
from midthought.errors import CheckpointError
from midthought.learning.checkpoint_folder import load_checkpoint, save_checkpoint
from midthought.learning.iteration import improve
from midthought.learning.learner import Learner
from midthought.learning.model import Models, add_adapters, has_adapters
from midthought.learning.passes import LearnerPasses
from midthought.models.peft_folders import save_adapters, save_merged
from midthought.models.peft_weights import unadaptable_layers
from midthought.models.pretrained import load_model

IDS = torch.tensor([[3, 4, 5, 6]])


def lora_learner(policy):
    training = {"learning_rate": 1e-2, "warmup_steps": 0, "kl_coef": 0.01}
    config = ConfigStore().merged({"model": {"lora_rank": 4}, "training": training})
    return Learner(*Models.from_config(policy, config)[:3], config.training)


def test_fresh_adapters_change_nothing_and_only_they_learn(make_policy, batch):
    policy = make_policy()
    before = policy(input_ids=IDS).logits
    learner = lora_learner(policy)
    assert has_adapters(learner.policy) and torch.equal(policy(input_ids=IDS).logits, before)
    weights = {name: tensor.clone() for name, tensor in learner.policy.named_parameters()}
    improve(learner, batch)
    changed = {name for name, tensor in learner.policy.named_parameters() if not torch.equal(tensor, weights[name])}
    assert changed and all("lora_" in name for name in changed)
    assert not torch.equal(policy(input_ids=IDS).logits, before)


def test_the_reference_is_the_policy_without_its_adapters(make_policy, batch):
    policy = make_policy()
    twin = copy.deepcopy(policy)
    learner = lora_learner(policy)
    improve(learner, batch)
    scored, _ = learner.score(batch)
    plain, _ = lora_learner(twin).score(batch)
    assert torch.equal(scored.reference_logprobs, plain.old_logprobs)
    assert not torch.equal(scored.old_logprobs, plain.old_logprobs)


def test_adapters_that_are_frozen_stay_so_after_the_reference_was_computed(make_policy, batch, monkeypatch):
    learner = lora_learner(make_policy())
    named = dict(learner.policy.named_parameters())
    for name, tensor in named.items():
        tensor.requires_grad_("lora_B" in name)
    learner.score(batch)
    assert all(tensor.requires_grad == ("lora_B" in name) for name, tensor in named.items())
    monkeypatch.setattr(LearnerPasses, "logprobs", Mock(side_effect=torch.OutOfMemoryError))
    with pytest.raises(torch.OutOfMemoryError):
        learner.score(batch)
    assert all(tensor.requires_grad == ("lora_B" in name) for name, tensor in named.items())


def with_own_adapters(policy):
    """A learner of adapters that transformers added: they change the layers of a model and leave its class."""
    policy.add_adapter(LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False))
    return Learner(*Models.from_config(policy, ConfigStore())[:3], training(learning_rate=1e-2))


@pytest.mark.parametrize("learner_of", [lora_learner, with_own_adapters])
def test_a_checkpoint_brings_the_adapters_back_bit_by_bit_and_its_policy_loads_with_its_base(
    learner_of, make_policy, batch, tmp_path
):
    policy = make_policy()
    policy.save_pretrained(tmp_path / "base")
    policy.name_or_path = str(tmp_path / "base")
    twin = copy.deepcopy(policy)
    learner = learner_of(policy)
    improve(learner, batch)
    saved = load_checkpoint(save_checkpoint(tmp_path / "step", learner))
    other = learner_of(twin)
    saved.restore(other)
    then = policy(input_ids=IDS).logits
    assert torch.equal(twin(input_ids=IDS).logits, then)
    first, second = improve(learner, batch), improve(other, batch)
    assert first == second
    assert torch.equal(twin(input_ids=IDS).logits, policy(input_ids=IDS).logits)
    whole = load_model(saved.policy_path)
    assert not any("lora_" in name for name in whole.state_dict())
    assert torch.allclose(whole(input_ids=IDS).logits, then, atol=1e-5)
    assert not list(saved.path.rglob("model*.safetensors"))  # adapters alone


def test_a_checkpoint_of_another_base_or_without_these_adapters_is_refused(make_policy, tmp_path):
    config = ConfigStore(training={"learning_rate": 1e-5})
    plain = Learner(*Models.from_config(make_policy(), config)[:3], config.training)
    another = r"another base model.*give the model that the run started with"
    for number, (saved, other, message) in enumerate(
        (
            (lora_learner(make_policy()), lora_learner(make_policy(seed=1)), another),
            (plain, lora_learner(make_policy()), "holds no adapters, unlike this run"),
            (lora_learner(make_policy()), plain, "holds adapters, unlike this run"),
        )
    ):
        checkpoint = load_checkpoint(save_checkpoint(tmp_path / str(number), saved))
        with pytest.raises(CheckpointError, match=message):
            checkpoint.restore(other)


MAMBA = {"num_heads": 8, "head_dim": 8, "n_groups": 1, "state_size": 8, "chunk_size": 8}
HYBRID = {"mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16, "num_attention_heads": 4, "num_key_value_heads": 2}


ATTENTION_AND_MLP = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}


@pytest.mark.parametrize(
    ("name", "options", "others"),
    [("Mamba", {}, {"x_proj"}), ("Mamba2", MAMBA, set()), ("FalconH1", HYBRID, ATTENTION_AND_MLP)],
)
def test_mamba_layers_get_adapters_where_they_take_effect(name, options, others):
    config_class = getattr(transformers, f"{name}Config")
    config = config_class(
        vocab_size=61, hidden_size=32, num_hidden_layers=2, pad_token_id=None, eos_token_id=None, **options
    )
    adapted = add_adapters(transformers.AutoModelForCausalLM.from_config(config), rank=2, alpha=4)
    found = {
        each.rpartition(".lora_A")[0].rpartition(".")[2] for each, _ in adapted.named_parameters() if "lora_A" in each
    }
    assert found == {"in_proj"} | others


EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16, "num_local_experts": 4, "router_jitter_noise": 0.0}
LATENT = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 12}
LATENT |= {
    "head_dim": 8,
    "num_key_value_heads": 2,
    "n_routed_experts": 4,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("Qwen3Moe", {**EXPERTS, "num_experts": 4}),
        ("DeepseekV3", {**EXPERTS, **LATENT}),
        ("Phimoe", EXPERTS),
        ("Mamba", {"state_size": 4, "num_hidden_layers": 2}),
    ],
)
def test_adapters_of_experts_and_mamba_layers_load_with_their_base_and_merged(name, options, make_policy, tmp_path):
    policy = make_policy(name, **options)
    policy.save_pretrained(tmp_path / "base")
    adapted = add_adapters(load_model(tmp_path / "base"), rank=2, alpha=4)
    for tensor in (each for key, each in adapted.named_parameters() if "lora_B" in key):
        torch.nn.init.normal_(tensor, std=0.2)
    expected = adapted(input_ids=IDS).logits
    assert not torch.allclose(expected, policy(input_ids=IDS).logits, atol=1e-2)
    save_adapters(adapted, tmp_path / "adapters")
    save_merged(adapted, tmp_path / "merged")
    for folder in ("adapters", "merged"):
        torch.testing.assert_close(load_model(tmp_path / folder)(input_ids=IDS).logits, expected, atol=1e-4, rtol=0)


def test_routers_are_found_without_drawing_random_numbers(make_policy):
    """Phi-3.5-MoE's router multiplies its input by noise in training."""
    policy = make_policy("Phimoe", **EXPERTS | {"router_jitter_noise": 0.1}).train()
    before = torch.get_rng_state()
    assert unadaptable_layers(policy) == [f"model.layers.{number}.mlp.router" for number in range(2)]
    assert torch.equal(torch.get_rng_state(), before)
    falcon = FalconForCausalLM(FalconConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, vocab_size=9))
    assert unadaptable_layers(falcon) == [], "its own class of linear layers is a product"


def test_the_seed_alone_decides_how_adapters_start(make_policy):
    def drawn(seed):
        policy = make_policy()
        state = torch.get_rng_state()
        adapted = add_adapters(policy, rank=2, alpha=4, seed=seed)
        assert torch.equal(torch.get_rng_state(), state)
        return torch.cat([value.flatten() for name, value in adapted.named_parameters() if "lora_A" in name])

    first = drawn(3)
    torch.manual_seed(99)  # other draws in between
    assert torch.equal(drawn(3), first)
    assert not torch.equal(drawn(4), first)
