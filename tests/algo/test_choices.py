"""What the settings offer is what there is: names, near names, agreements, and what users add."""

import copy
from typing import get_args

import pytest
import torch

from midthought.algo.advantage_estimator import ESTIMATORS, CreditInputs, advantage_estimator
from midthought.algo.advantages import AdvantageEstimator, compute_advantage
from midthought.algo.losses import compute_policy_loss
from midthought.algo.policy_losses import POLICY_LOSSES, PolicyLossInputs, TokenLosses, policy_loss
from midthought.algo.shaping import KLKind
from midthought.config import TrainingConfig
from midthought.errors import SettingsError


@pytest.fixture(autouse=True)
def _forget_what_a_test_registers(monkeypatch):
    monkeypatch.setattr(TrainingConfig, "estimator_needs", dict(TrainingConfig.estimator_needs))
    monkeypatch.setattr(TrainingConfig, "policy_losses", list(TrainingConfig.policy_losses))
    monkeypatch.setattr("midthought.algo.advantage_estimator.ESTIMATORS", copy.deepcopy(ESTIMATORS))
    losses = copy.deepcopy(POLICY_LOSSES)
    for module in ("policy_losses", "losses"):
        monkeypatch.setattr(f"midthought.algo.{module}.POLICY_LOSSES", losses)


def shipped(registry) -> set[str]:
    """Names whose functions stand in this library; another test may have registered more."""
    return {name for name, function in registry.items() if (function.__module__ or "").startswith("midthought.")}


def choices(field: str) -> set[str]:
    return set(get_args(TrainingConfig.model_fields[field].annotation))


def test_every_choice_of_the_settings_is_one_that_is_built_in():
    assert shipped(ESTIMATORS) == set(AdvantageEstimator)
    assert set(TrainingConfig.estimator_needs) == set(ESTIMATORS)
    built_in = shipped(POLICY_LOSSES)
    assert built_in == {"ppo", "gspo", "cispo", "sapo", "gmpo", "dppo_tv", "dppo_kl", "nll"}
    assert set(TrainingConfig.policy_losses) == set(POLICY_LOSSES)
    assert choices("kl_loss_kind") == set(KLKind)


def test_the_settings_know_what_each_estimator_needs_without_loading_it():
    """`TrainingConfig` says it for settings that are read without torch; the decorators say it again."""
    written = TrainingConfig.estimator_needs
    for name in AdvantageEstimator:
        given = {"values": torch.zeros(2, 2), "index": torch.zeros(2)}
        given |= {steps: torch.zeros(2, 2, dtype=torch.int64) for steps in ("turns", "calls")}
        names = {need: {"groups": "index"}.get(need, need) for need in written[name]}
        for need in names:
            missing = {key: tensor for key, tensor in given.items() if key != names[need]}
            with pytest.raises(ValueError, match=f"needs {need}"):
                compute_advantage(name, torch.zeros(2, 2), torch.ones(2, 2), **missing)
        compute_advantage(name, torch.zeros(2, 2), torch.ones(2, 2), **{key: given[key] for key in names.values()})


def test_a_users_estimator_is_chosen_by_its_name():
    @advantage_estimator("above_median", needs={"groups"})
    def above_median(inputs: CreditInputs) -> tuple[torch.Tensor, torch.Tensor]:
        advantages = inputs.over_tokens(inputs.scores - inputs.scores.median())
        return advantages, advantages

    rewards, mask = torch.tensor([[1.0, 9.0], [2.0, 0.0], [5.0, 0.0]]), torch.tensor([[True, False]] * 3)
    advantages, _ = compute_advantage("above_median", rewards, mask, index=torch.zeros(3))
    assert advantages.tolist() == [[-1.0, 0.0], [0.0, 0.0], [3.0, 0.0]]
    assert TrainingConfig(adv_estimator="above_median", group_size=2).adv_estimator == "above_median"
    with pytest.raises(SettingsError, match=r"group_size=1 with adv_estimator='above_median'.*2 or more"):
        TrainingConfig(adv_estimator="above_median", group_size=1)
    with pytest.raises(ValueError, match="'above_median' needs groups"):
        compute_advantage("above_median", rewards, mask)


def test_a_users_loss_is_chosen_by_its_name_has_options_and_is_averaged_like_any_other():
    @policy_loss("reinforce")
    def reinforce(inputs: PolicyLossInputs, *, scale: float = 2.0) -> TokenLosses:
        return -scale * inputs.advantages * inputs.logprobs, {"advantage": inputs.advantages}

    mask = torch.tensor([[True, False], [True, True]])
    logprobs = torch.tensor([[-1.0, -50.0], [-2.0, -3.0]])
    loss, metrics = compute_policy_loss(
        logprobs, logprobs, torch.ones(2, 2), mask, kind="reinforce", options={"scale": 3.0}
    )
    assert float(loss) == pytest.approx(6.0) and float(metrics["advantage"]) == pytest.approx(1.0)
    assert TrainingConfig(policy_loss="reinforce").policy_loss == "reinforce"


def test_a_notebooks_cell_may_register_its_function_again():
    for worth in (1.0, 2.0):

        @advantage_estimator("constant")
        def constant(inputs: CreditInputs, worth: float = worth) -> tuple[torch.Tensor, torch.Tensor]:
            return inputs.over_tokens(torch.full_like(inputs.scores, worth)), inputs.rewards

    assert compute_advantage("constant", torch.zeros(1, 1), torch.ones(1, 1))[0].item() == 2.0


@pytest.mark.parametrize(("decorator", "name"), [(advantage_estimator, "grpo"), (policy_loss, "ppo")])
def test_a_name_that_ships_cannot_be_taken(decorator, name):
    with pytest.raises(ValueError, match=rf"{name!r} is built in; choose another name"):
        decorator(name)(lambda inputs: (inputs, {}))
    assert compute_advantage("grpo", torch.zeros(2, 1), torch.ones(2, 1), index=torch.zeros(2))[0].shape == (2, 1)


@pytest.mark.parametrize("decorator", [advantage_estimator, policy_loss])
def test_a_decorator_without_its_name_says_how_it_is_written(decorator):
    with pytest.raises(TypeError, match=r"the decorator takes a name, as in @…\('name'\), not function"):
        decorator(lambda inputs: inputs)(lambda inputs: inputs)
    with pytest.raises(ValueError, match="the name is empty: ' '"):
        decorator(" ")(lambda inputs: inputs)


def test_an_unknown_need_is_refused():
    with pytest.raises(ValueError, match=r"'mine' cannot need \['group'\]; possible needs: .*'groups'"):
        advantage_estimator("mine", needs={"group"})


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"adv_estimator": "rlo"}, r"adv_estimator='rlo': Did you mean 'rloo'"),
        ({"policy_loss": "gpso"}, r"policy_loss='gpso': Did you mean 'gspo'.*once its module is imported"),
        ({"adv_estimator": "rloo", "group_size": 1}, r"group_size=1 with adv_estimator='rloo'"),
        ({"dual_clip": 0.5}, r"dual_clip=0\.5.*greater than 1"),
        ({"dual_clip": 3.0, "policy_loss": "sapo"}, r"dual_clip=3\.0 with policy_loss='sapo'.* set it to null"),
        ({"target_kl": 0.1, "kl_coef": 0.0}, r"target_kl=0\.1 cannot adapt kl_coef=0"),
        ({"loss_agg": "token-men"}, r"loss_agg='token-men': Did you mean 'token-mean'"),
        ({"kl_loss_kind": "k4"}, r"kl_loss_kind='k4'.*Known: abs, k1, k2, k3"),
    ],
)
def test_settings_that_do_not_go_together_are_told_with_the_remedy(wrong, message):
    with pytest.raises(SettingsError, match=message):
        TrainingConfig(**wrong)
