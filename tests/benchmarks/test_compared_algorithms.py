"""The comparison of algorithms: the runs of a recipe, and the table of what they wrote."""

import json

from benchmarks.algorithms import Comparison


def test_all_methods_of_a_recipe_start_from_one_warm_up_and_only_distillation_has_a_teacher(tmp_path):
    comparison = Comparison("feedback", tmp_path, ["ppo", "rft"], ["training.num_train_iters=2"])
    ((warmup, _),) = comparison.warmups(1)
    runs = dict(comparison.runs(1))
    assert list(runs) == [tmp_path / "ppo-1", tmp_path / "rft-1"]
    for method, words in zip(("ppo", "rft"), runs.values(), strict=True):
        assert {str(warmup), f"training.algorithm={method}", "training.num_train_iters=2"} <= set(words)
    with_teacher = Comparison("feedback", tmp_path, ["distillation"])
    _, (teacher, words) = with_teacher.warmups(1)
    assert "sft.ask_easy=0" in words
    assert f"training.teacher={teacher}" in with_teacher.runs(1)[0][1]


def test_the_table_has_the_means_of_the_seeds_that_are_done(tmp_path):
    for seed, sampled in ((0, 0.5), (1, 0.75)):
        folder = tmp_path / f"rft-{seed}"
        folder.mkdir()
        summary = {"before.sampled.exact_match": 0.25, "after.sampled.exact_match": sampled, "seconds.rl": 60.0}
        (folder / "summary.json").write_text(json.dumps(summary))
        rows = [{"stage": "ppo", "entropy": entropy} for entropy in (0.5, 0.125)]
        (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)))
    *_, before, method = Comparison("feedback", tmp_path, ["rft"]).table([0, 1, 2]).splitlines()
    assert before.startswith("| after the warm-up | 0.250 |") and before.endswith("| 0.250, 0.250 |")
    assert method == "| `rft` | 0.625 | – | – | – | 0.125 | 60 | 0.500, 0.750 |"
