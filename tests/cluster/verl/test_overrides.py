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


def derived(num_tasks: int = 100, verl: dict[str, Any] | None = None, **sections: Any) -> DerivedValues:
    config = (
        RecipeConfig()
        .merged({"model": {"local_path": "some/model"}, "inference": {"max_tokens": 300}})
        .merged(sections)
    )
    return DerivedValues(config, VerlConfig(**(verl or {})), "test", num_tasks)


def test_no_key_stands_twice_and_every_one_of_ours_is_a_setting() -> None:
    assert len({row.key for row in TABLE}) == len(TABLE)
    known = RecipeConfig(), VerlConfig()
    for row in TABLE:
        section, _, name = row.ours.partition(".")
        if name.isidentifier() and section in (*RecipeConfig.model_fields, "verl"):
            assert hasattr(known[1] if section == "verl" else getattr(known[0], section), name), row


def test_episodes_become_prompts_and_a_group_is_n() -> None:
    found = overrides_of(derived(training=GRPO))
    assert found["data.train_batch_size"] == 8
    assert found[f"{ACTOR}.ppo_mini_batch_size"] == 2
    assert found[f"{ROLLOUT}.n"] == 8
    assert found["algorithm.adv_estimator"] == "grpo"
    assert not any(key.startswith("critic.") for key in found)


def test_steps_become_enough_epochs() -> None:
    # 100 tasks in batches of 32: three steps an epoch, four tasks left over; seven steps need three epochs
    found = overrides_of(derived(training={"batch_size": 32, "mini_batch_size": 32, "num_train_iters": 7}))
    assert (found["trainer.total_epochs"], found["trainer.total_training_steps"]) == (3, 7)
    found = overrides_of(derived(training={"batch_size": 32, "mini_batch_size": 32, "num_epochs": 5}))
    assert (found["trainer.total_epochs"], found["trainer.total_training_steps"]) == (5, None)


def test_kl_clip_and_correction_are_said_in_verls_words() -> None:
    ours = {"kl_coef": 0.0, "kl_loss_coef": 0.1, "kl_loss_kind": "k2", "clip_ratio_high": 0.28, "policy_loss": "gspo"}
    ours |= {"rollout_correction": "sequence_truncated", "loss_agg": "seq-mean-token-sum-norm"}
    found = overrides_of(derived(training=ours))
    assert found["algorithm.use_kl_in_reward"] is False
    assert (found[f"{ACTOR}.use_kl_loss"], found[f"{ACTOR}.kl_loss_type"]) == (True, "mse")
    assert (found[f"{ACTOR}.clip_ratio_low"], found[f"{ACTOR}.clip_ratio_high"]) == (0.2, 0.28)
    assert found[f"{ACTOR}.clip_ratio_c"] == 1e6  # no dual clip
    assert found["algorithm.rollout_correction.rollout_is"] == "sequence"
    assert found[f"{ACTOR}.loss_scale_factor"] == 300
    assert found[f"{ACTOR}.policy_loss.loss_mode"] == "gspo"


def test_weight_decay_and_the_second_moment_are_those_of_the_settings_for_policy_and_critic() -> None:
    found = overrides_of(derived(training={"weight_decay": 0.1, "adam_beta2": 0.95}))
    for optimizer in (f"{ACTOR}.optim", "critic.optim"):
        assert (found[f"{optimizer}.weight_decay"], found[f"{optimizer}.betas"]) == (0.1, [0.9, 0.95])


def test_layer_inputs_are_offloaded_by_verls_own_key_if_they_are_here() -> None:
    keys = ("actor_rollout_ref.model.enable_activation_offload", "critic.model.enable_activation_offload")
    plain, offloaded = (
        overrides_of(derived(training={"gradient_checkpointing": value})) for value in (True, "offload")
    )
    assert not any(key in plain for key in keys)
    assert [offloaded[key] for key in keys] == [True, True]


def test_arguments_of_the_chat_template_are_new_keys_of_verls() -> None:
    found = overrides_of(derived(model={"chat_template_kwargs": {"enable_thinking": False}}))
    assert found["+data.apply_chat_template_kwargs.enable_thinking"] is False
    assert not any("apply_chat_template_kwargs" in key for key in overrides_of(derived()))


def test_micro_batches_are_packed_by_tokens_or_padded_by_rows() -> None:
    packed = overrides_of(derived())
    assert packed[f"{ACTOR}.use_dynamic_bsz"] is True
    assert packed[f"{ACTOR}.ppo_max_token_len_per_gpu"] == 2 * (1024 + 128 + 300)
    padded = overrides_of(derived(verl={"rows_per_gpu": 2}))
    assert padded["critic.ppo_micro_batch_size_per_gpu"] == padded[f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu"] == 2
    assert f"{ACTOR}.ppo_max_token_len_per_gpu" not in padded


@pytest.mark.parametrize(
    "theirs", [{"trainer.save_freq": 50}, {"trainer": {"save_freq": 50}}, {"+trainer.save_freq": 50}]
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
