"""One table from our settings to verl's keys; what verl cannot do is refused."""

from typing import Any

import pytest

from midthought.cluster.verl.bundle import hydra_override
from midthought.cluster.verl.overrides import TABLE, overrides_of
from midthought.cluster.verl.settings import DerivedValues, VerlConfig
from midthought.config import RecipeConfig
from midthought.errors import SettingsError

GRPO = {"adv_estimator": "grpo", "group_size": 8, "batch_size": 64, "mini_batch_size": 16}
ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
ABSENT = "no such key"
DECAYS = {"weight_decay": 0.1, "betas": [0.9, 0.95]}


def derived(num_tasks: int = 100, verl: dict[str, Any] | None = None, **sections: Any) -> DerivedValues:
    common = {"model": {"local_path": "some/model"}, "inference": {"max_tokens": 300}}
    config = RecipeConfig().merged(common).merged(sections)
    return DerivedValues(config, VerlConfig(**(verl or {})), "test", num_tasks)


def test_no_key_stands_twice_and_every_one_of_ours_is_a_setting() -> None:
    assert len({row.key for row in TABLE}) == len(TABLE)
    known = RecipeConfig(), VerlConfig()
    for row in TABLE:
        section, _, name = row.ours.partition(".")
        if name.isidentifier() and section in (*RecipeConfig.model_fields, "verl"):
            assert hasattr(known[1] if section == "verl" else getattr(known[0], section), name), row


STEPS = {"batch_size": 32, "mini_batch_size": 32}
"""Of 100 tasks: three steps an epoch, four tasks left over."""
LIMITS = {"kl_coef": 0.0, "kl_loss_coef": 0.1, "kl_loss_kind": "k2", "clip_ratio_high": 0.28}
OFFLOADED = [f"{model}.enable_activation_offload" for model in ("actor_rollout_ref.model", "critic.model")]
THINKING = "+data.apply_chat_template_kwargs.enable_thinking"


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        ({"training": GRPO}, {"data.train_batch_size": 8, f"{ACTOR}.ppo_mini_batch_size": 2, f"{ROLLOUT}.n": 8}),
        ({"training": GRPO}, {"algorithm.adv_estimator": "grpo", "critic.": ABSENT}),
        ({"training": STEPS | {"num_train_iters": 7}}, {"trainer.total_epochs": 3, "trainer.total_training_steps": 7}),
        ({"training": STEPS | {"num_epochs": 5}}, {"trainer.total_epochs": 5, "trainer.total_training_steps": None}),
        ({"training": LIMITS}, {"algorithm.use_kl_in_reward": False, f"{ACTOR}.use_kl_loss": True}),
        ({"training": LIMITS}, {f"{ACTOR}.kl_loss_type": "mse", f"{ACTOR}.clip_ratio_low": 0.2}),
        ({"training": LIMITS}, {f"{ACTOR}.clip_ratio_high": 0.28, f"{ACTOR}.clip_ratio_c": 1e6}),  # no dual clip
        (
            {"training": {"rollout_correction": "sequence_truncated", "policy_loss": "gspo"}},
            {"algorithm.rollout_correction.rollout_is": "sequence", f"{ACTOR}.policy_loss.loss_mode": "gspo"},
        ),
        ({"training": {"loss_agg": "seq-mean-token-sum-norm"}}, {f"{ACTOR}.loss_scale_factor": 300}),
        (
            {"training": {"weight_decay": 0.1, "adam_beta2": 0.95}},
            {f"{of}.optim.{key}": each for of in (ACTOR, "critic") for key, each in DECAYS.items()},
        ),
        ({"training": {"gradient_checkpointing": True}}, dict.fromkeys(OFFLOADED, ABSENT)),
        ({"training": {"gradient_checkpointing": "offload"}}, dict.fromkeys(OFFLOADED, True)),
        ({"model": {"chat_template_kwargs": {"enable_thinking": False}}}, {THINKING: False}),
        ({}, {"+data.apply_chat_template_kwargs": ABSENT, f"{ACTOR}.use_dynamic_bsz": True}),
        ({}, {f"{ACTOR}.ppo_max_token_len_per_gpu": 2 * (1024 + 128 + 300)}),
        (
            {"verl": {"rows_per_gpu": 2}},
            {
                "critic.ppo_micro_batch_size_per_gpu": 2,
                f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": 2,
                f"{ACTOR}.ppo_max_token_len_per_gpu": ABSENT,
            },
        ),
    ],
)
def test_settings_are_said_in_verls_words_and_units(sections: dict[str, Any], expected: dict[str, Any]) -> None:
    """`ABSENT`: no key begins so."""
    found = overrides_of(derived(**sections))
    assert {key: found.get(key, ABSENT) for key in expected} == expected
    assert not [key for key in found for none in expected if expected[none] == ABSENT and key.startswith(none)]


@pytest.mark.parametrize(
    "theirs", [{f"{plus}trainer.save_freq": 50} for plus in ("", "+")] + [{"trainer": {"save_freq": 50}}]
)
def test_verls_own_keys_win(theirs: dict[str, Any]) -> None:
    found = overrides_of(derived(verl={"overrides": theirs}))
    assert {key.lstrip("+"): value for key, value in found.items()}["trainer.save_freq"] == 50
    assert len([key for key in found if key.endswith("trainer.save_freq")]) == 1


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"model": {"local_path": ""}}, "model.local_path is empty"),
        ({"model": {"critic": "shared"}}, "set model.critic=separate"),
        (
            {"training": GRPO | {"adv_estimator": "grpo_turns"}},
            "'grpo_turns': verl does not have it. Did you mean 'grpo'",
        ),
        ({"training": GRPO | {"mini_batch_size": 12}}, "mini_batch_size=12 is not a multiple of group_size=8"),
        ({"training": {"batch_size": 48}}, "batch_size=48 is not a multiple of mini_batch_size=64"),
        ({"training": {"batch_size": 128}}, "100 training tasks do not fill one batch of 128 prompts"),
        ({"training": {"lr_schedule": "linear"}}, "constant and cosine"),
        ({"training": {"rollout_correction": "masked"}}, "verl.overrides"),
        ({"training": {"rollout_correction": "sequence_masked"}}, "verl.overrides"),
        ({"training": {"overlong_buffer_tokens": 10}}, "overlong"),
        ({"inference": {"keep_thoughts": False}}, "several segments"),
        ({"training": {"optimizer": "adamw_8bit"}}, "optimizer_impl"),
        ({"training": {"offload": "optimizer"}}, "offload='optimizer': set it to none and use verl.offload"),
        ({"training": {"max_staleness": 2}}, "trainer.v1.trainer_mode"),
        ({"training": {"mask_truncated_episodes": True}}, "mask_truncated_episodes=true .* set it to false"),
        ({"model": {"float32_head": True}}, "float32_head=true .* set it to false"),
        ({"model": {"tensor_parallel_size": 4}}, "tensor_parallel_size=4: set it to 1 and use verl.tensor_parallel"),
        ({"inference": {"gpu_memory_utilization": 0.7}}, "=0.7: set it to auto and use verl.gpu_memory_utilization"),
        ({"inference": {"deterministic": True}}, "deterministic=true: set it to false and use .*full_determinism"),
    ],
)
def test_what_verl_cannot_do_is_refused(sections: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        overrides_of(derived(**sections))


@pytest.mark.parametrize(
    ("value", "word"),
    [
        (None, "null"),
        (True, "true"),
        (1e-6, "1e-06"),
        ("deepseek-ai/DeepSeek-R1", "deepseek-ai/DeepSeek-R1"),
        ("null", "'null'"),
        ("it's", "'it\\'s'"),
        (["a", 1, False], "[a,1,false]"),
        ({"a": {"b": "x y"}}, "{a:{b:'x y'}}"),
    ],
)
def test_values_are_written_as_hydra_reads_them(value: Any, word: str) -> None:
    assert hydra_override("key", value) == f"key={word}"
