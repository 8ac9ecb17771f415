"""On-policy distillation in the training loop: from a model folder and from a run, resumed, and unusable teachers."""

import copy

import pytest
from small_environments import PAID, QUESTIONS, assert_answers_resume_exactly, settings

from midthought import RayPPOTrainer, SettingsError
from midthought.learning.small_model import make_policy, make_tokenizer
from midthought.pretrained import save_model

DISTILLED = {"algorithm": "distillation", "batch_size": 16, "mini_batch_size": 16, "learning_rate": 3e-3}


def said(trajectory):
    return PAID.get(trajectory.actions[0].removeprefix("</think>"), 0.0)


@pytest.fixture(scope="module")
def run(_talker, tokenizer, tmp_path_factory):
    """The run folder of a policy that was trained towards red. How far does not matter: the tests compare with this policy."""
    path = tmp_path_factory.mktemp("runs") / "teacher"
    rft = {"policy_loss": "nll", "group_size": 4, "kl_coef": 0.0, "entropy_coef": 0.0, "learning_rate": 3e-3}
    config = settings("keep_best", num_train_iters=10, batch_size=16, mini_batch_size=16, **rft)
    with RayPPOTrainer(
        config, dataset=QUESTIONS, reward_fn=said, model=copy.deepcopy(_talker), tokenizer=tokenizer, run_path=path
    ) as trainer:
        trainer.fit()
    return path


def test_the_policy_comes_closer_to_the_policy_of_a_run(run, talker):
    config = settings("zero", num_train_iters=15, teacher=str(run), **DISTILLED)
    with RayPPOTrainer(config, dataset=QUESTIONS, reward_fn=lambda trajectory: 0.0, **talker) as trainer:
        history = trainer.fit()
    assert history[-1]["kl_teacher"] < history[0]["kl_teacher"], "rewards were equal: learned from the teacher alone"


def test_a_resumed_run_continues_exactly(run, talker, tmp_path):
    assert_answers_resume_exactly(talker, said, tmp_path, 4, teacher=str(run / "policy"), **DISTILLED)


def test_with_an_estimator_of_rewards_no_group_is_dropped(run, talker):
    config = settings("grpo", num_train_iters=1, group_size=4, teacher=str(run), teacher_coef=0.1, kl_coef=0.0)
    with RayPPOTrainer(config, dataset=QUESTIONS, reward_fn=lambda trajectory: 1.0, **talker) as trainer:
        (metrics,) = trainer.fit()
    assert metrics["batch/num_flat_groups"] == 0 and metrics["grad_norm"] > 0


def test_unusable_teachers_are_errors(run, talker, tmp_path):
    other = make_tokenizer(["other words entirely"] * 20, 300)
    save_model(
        make_policy(other, hidden_size=32, num_layers=1, num_heads=2, max_length=64, seed=0), other, tmp_path / "other"
    )

    def trainer(teacher, **changes):
        config = settings("zero", **{**DISTILLED, "teacher": teacher, **changes})
        return RayPPOTrainer(config, dataset=QUESTIONS, reward_fn=said, **talker)

    with pytest.raises(SettingsError, match="has another tokenizer than the policy"):
        trainer(str(tmp_path / "other"))
    with pytest.raises(SettingsError, match="without a teacher"):
        trainer("")
    with pytest.raises(Exception, match="holds no policy"):
        trainer(str(tmp_path))
    with pytest.raises(SettingsError, match="which selects episodes"):
        settings("keep_best", group_size=2, teacher=str(run))
