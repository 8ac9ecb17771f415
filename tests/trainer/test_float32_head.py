"""`model.float32_head`: the logits of a bfloat16 policy in float32, where it samples and where it learns."""

import copy

import pytest
import torch
from small_environments import QUESTIONS, settings

from midthought import RayPPOTrainer, SettingsError
from midthought.engines.local.decoder import Decoder
from midthought.engines.local.runner_selection import make_runner
from midthought.learning.batch import TokenBatch
from midthought.learning.model import token_outputs
from midthought.models.pretrained import Float32Linear, use_float32_head
from midthought.models.small_model import make_policy
from midthought.types import Task, Trajectory


@pytest.fixture(scope="module")
def policy(tokenizer):
    """Random weights and one layer, so that much of the difference is the rounding of the logits."""
    made = make_policy(tokenizer, hidden_size=64, num_layers=1, num_heads=2, max_length=256, seed=0)
    with torch.no_grad():
        made.get_output_embeddings().weight.mul_(2)
    return made.bfloat16()


@pytest.fixture
def batch(renderer) -> TokenBatch:
    trajectory = Trajectory(Task(task_id="t", prompt="?", answer="!"), renderer.foreign("Say a colour"))
    trajectory.add_demonstrated(renderer.foreign("red blue green, first second third"))
    return TokenBatch.from_trajectories([trajectory], demonstrations=True)


def test_the_setting_reaches_the_policy_that_samples_and_learns(policy, tokenizer):
    config = settings("grpo", num_train_iters=1, kl_coef=0.0)
    config.model.float32_head = True
    given = {"model": copy.deepcopy(policy), "tokenizer": tokenizer, "dataset": QUESTIONS}
    with RayPPOTrainer(config, reward_fn=lambda trajectory: float(trajectory.seed % 2), **given) as trainer:
        assert isinstance(trainer.model.lm_head, Float32Linear)
        metrics = trainer.fit()[0]
    assert metrics["num_skipped_steps"] == 0 and metrics["logprob_difference_max"] > 0


@pytest.mark.filterwarnings("error")
def test_the_fused_decoder_computes_its_logits_in_float32(policy):
    wide = copy.deepcopy(policy)
    use_float32_head(wide)
    decoder = Decoder.of(wide)
    assert decoder is not None
    make_runner(wide)  # warns if it does not use the decoder
    hidden = torch.randn(3, 64).bfloat16()
    weight = wide.lm_head.weight
    expected = hidden.float() @ weight.float().T
    torch.testing.assert_close(wide.lm_head(hidden), expected)
    assert (policy.lm_head(hidden).float() - expected).abs().max() > 1e-3
    assert weight is wide.get_input_embeddings().weight and weight.dtype is torch.bfloat16
    assert isinstance(copy.deepcopy(wide).lm_head, Float32Linear)


def test_blocks_of_logits_are_computed_in_float32_too(policy, batch):
    def found(logits_mib):
        wide = copy.deepcopy(policy)
        use_float32_head(wide)
        outputs = token_outputs(wide, batch, entropy=True, logits_mib=logits_mib)
        (outputs.logprobs.sum() - outputs.entropy.sum()).backward()
        return outputs.logprobs.detach(), wide.lm_head.weight.grad.float()

    (whole, gradient), (blocks, its_gradient) = found(None), found(400 * 4 * 3 / 2**20)
    torch.testing.assert_close(blocks, whole, atol=1e-5, rtol=0)
    assert float((its_gradient - gradient).norm() / gradient.norm()) < 1e-2


def test_another_output_layer_is_an_error(policy):
    other = copy.deepcopy(policy)
    other.lm_head = torch.nn.Sequential(other.lm_head)
    with pytest.raises(SettingsError, match=r"is a Sequential, not an nn\.Linear"):
        use_float32_head(other)
