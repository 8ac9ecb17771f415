"""The result of `Trainer.fit` is the list of metrics, and shows itself."""

from small_environments import QUESTIONS, settings

from midthought import RayPPOTrainer
from midthought.trainer.result import MAX_SHOWN_ROWS, SupervisedResult, TrainingResult


def rows(*rewards):
    return [{"iteration": number, "reward/mean": reward} for number, reward in enumerate(rewards, start=1)]


def test_fit_returns_the_metrics_as_a_list_with_the_path_of_the_policy(talker, tmp_path):
    with RayPPOTrainer(settings(), dataset=QUESTIONS, run_path=tmp_path / "run", **talker) as trainer:
        result = trainer.fit()
        assert result == trainer.metrics_history and isinstance(result, list)
    assert result.metrics == result[-1]
    assert result.policy_path == tmp_path / "run" / "policy"
    assert (result.policy_path / "config.json").is_file()


def test_a_long_run_is_shown_from_its_first_to_its_last_iteration(capsys):
    TrainingResult(rows(*range(95))).show()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == MAX_SHOWN_ROWS + 1
    assert (lines[1].split(), lines[-1].split()) == (["1", "0.000"], ["95", "94.000"])


def test_a_value_that_rounds_to_zero_has_no_sign_and_a_learning_rate_is_not_zero(capsys):
    TrainingResult(rows(-1e-9)).show()
    assert "-0.000" not in capsys.readouterr().out
    SupervisedResult([{"step": 1, "loss": 2.5, "learning_rate": 2e-5}]).show()
    assert capsys.readouterr().out.split()[3:] == ["1", "2.500", "2.00e-05"]


def test_the_table_shows_the_entropy_because_the_loss_of_groups_is_zero_on_average(capsys):
    TrainingResult([{"iteration": 1, "total_loss": 0.0}, {"iteration": 2, "total_loss": 0.0, "entropy": 0.5}]).show()
    assert capsys.readouterr().out.split() == ["iteration", "entropy", "1", "–", "2", "0.500"], (
        "1: all groups were flat"
    )


def test_an_empty_result_says_so(capsys):
    TrainingResult().show()
    assert capsys.readouterr().out == "no iteration was trained\n"
    assert TrainingResult().metrics == {}
