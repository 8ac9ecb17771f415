import math
import re

from midthought.report.console import duration
from midthought.report.html import arms_table, control_arms_table, more_metrics, signed, verdict
from midthought.report.run_folder import RunFolder
from midthought.report.run_record import before_and_after, read_run

AFTER = {"before.exact_match": 0.304, "after.exact_match": 0.861, "after.constant_guess": 0.055}


def words(html: str) -> str:
    return " ".join(re.sub(r"<[^>]*>", " ", html).split())


def test_the_verdict_says_before_after_and_gain() -> None:
    sentence, _ = verdict({**AFTER, "num_questions": 1412})
    assert words(sentence) == "Exact match on 1,412 held-out questions: 0.304 → 0.861 +0.557"
    assert "down" in verdict({**AFTER, "after.exact_match": 0.2})[0]
    assert "down" not in verdict({**AFTER, "before.exact_match": 0.2, "after.exact_match": 0.2})[0]


def test_the_verdict_is_about_sampled_answers_where_they_were_measured() -> None:
    sampled = {"before.sampled.exact_match": 0.5, "after.sampled.exact_match": 0.75}
    sentence, _ = verdict({"before.exact_match": 0.9, "after.exact_match": 0.875, **sampled})
    assert words(sentence) == "Sampled exact match: 0.500 → 0.750 +0.250"


def test_the_verdict_names_the_scores_without_the_tools_results() -> None:
    _, support = verdict({**AFTER, "after.tool_off.exact_match": 0.10, "after.shuffled.exact_match": 0.02})
    assert support == (
        "Without the tool's results: 0.100 with the tool off, 0.020 with shuffled results, 0.055 by a constant guess."
    )


def test_a_run_without_evaluation_says_so() -> None:
    assert "not been evaluated yet" in verdict({})[0]
    assert arms_table({}) == more_metrics({}) == ""


def test_the_table_leaves_out_arms_that_were_not_run() -> None:
    table = words(arms_table({**AFTER, "after.tool_off.exact_match": None}))
    assert "Exact match, greedy" in table and "Constant guess" in table
    assert "Tool off" not in table and "95 % interval" not in table


def test_intervals_get_a_column() -> None:
    summary = {**AFTER, "after.exact_match.low": 0.824, "after.exact_match.high": 0.893}
    assert "95 % interval" in arms_table(summary) and "0.824–0.893" in arms_table(summary)
    assert more_metrics(summary) == ""


def test_all_other_figures_stand_in_the_folded_table() -> None:
    table = more_metrics({**AFTER, "retrieval.recall@1": 0.87234, "note": "<b>", "factors": [1, 0.5]})
    assert words(table).endswith("retrieval.recall@1 0.8723 note &lt;b&gt; factors 1, 0.5")


def test_durations_and_changes_read_well() -> None:
    assert [duration(s) for s in (0.24, 42.4, 571.3, 3599.8, 7500)] == [
        "0.2 s",
        "42 s",
        "9 min 31 s",
        "1 h 00 min",
        "2 h 05 min",
    ]
    assert (signed(0.5), signed(-0.02)) == ("+0.500", "−0.020")


def test_a_run_without_arms_is_told_by_the_reward_of_its_held_out_episodes():
    summary = {"reward/mean": 0.5, "validation/reward/mean": 1.25, "iteration": 40}
    assert verdict(summary)[0] == "Reward of held-out episodes, greedy: <b>1.250</b>"
    assert words(more_metrics(summary)).endswith("iteration 40")


def test_without_held_out_episodes_the_last_iteration_stands_for_them_and_that_is_said():
    sentence, support = verdict({"reward/mean": 0.5})
    assert sentence == "Reward of the last iteration: <b>0.500</b>" and "No held-out episodes were evaluated" in support


def test_the_last_iteration_counts_also_if_all_of_its_episodes_failed():
    ppo = {"reward/mean": [(1, 0.5)], "episode/failed": [(1, 0.0), (2, 1.0)]}
    validation = {"exact_match": [(0, 0.25), (2, 0.5)], "episode/count": [(0, 8.0), (2, 8.0)]}
    found = before_and_after({"ppo": ppo, "validation": validation})
    assert found == {"num_questions": 8.0, "before.exact_match": 0.25, "after.exact_match": 0.5}


def test_a_metric_that_the_last_validation_lacks_is_not_taken_from_an_earlier_one(tmp_path):
    with RunFolder(tmp_path / "run").create() as run:
        for step, reward in ((10, 0.75), (20, math.nan)):
            run.log("ppo", step, {"reward/mean": 0.5})
            run.log("validation", step, {"reward/mean": reward, "episode/failed": float(step == 20)})
        run.write_summary({"reward/mean": 0.5, "validation/step": 10, "validation/reward/mean": 0.75})
    summary = read_run(tmp_path / "run").summary
    assert {key: value for key, value in summary.items() if key.startswith("validation/")} == {
        "validation/step": 20,
        "validation/reward/mean": None,
        "validation/episode/failed": 1.0,
    }


def test_control_arms_stand_beside_the_run_with_links_to_their_reports() -> None:
    assert control_arms_table(AFTER) == ""
    summary = {
        **AFTER,
        "train_seconds": 100.0,
        "arms.rft.exact_match": 0.5,
        "arms.rft.sampled.exact_match": 0.25,
        "arms.rft.train_seconds": 61.0,
        "arms.clean.exact_match": 0.9,
    }
    table = control_arms_table(summary, ["rft"])
    assert table.count("href") == 1 and 'href="arms/rft/report.html"' in table
    assert "Exact match, greedy held-out questions that need the tool 0.861 0.500 0.900" in words(table)
    assert "Sampled as in training; in a recipe at temperature 1 – 0.250 –" in words(table)
    assert words(table).endswith("Training without evaluation and checkpoints 1 min 40 s 1 min 01 s –")
    assert "Constant guess" not in table
