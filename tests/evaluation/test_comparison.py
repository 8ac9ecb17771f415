"""`midthought compare` on run folders whose answers and curves are known."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from midthought.cli import app
from midthought.config import ConfigStore
from midthought.errors import CheckpointError, OutputPathError, SettingsError
from midthought.evaluation.comparison.comparison import Comparison, compare
from midthought.evaluation.comparison.output import render_comparison, to_dict, write_page
from midthought.report.run_folder import RunFolder

HOSTILE = "</script><script>document.title='taken'</script><img src=x onerror=alert(1)>"


def write_run(
    path: Path,
    right: Sequence[bool | None],
    *,
    seed: int = 0,
    settings: Mapping[str, Any] | None = None,
    arm: str = "after",
    rewards: Sequence[float] = (0.1, 0.5),
    ids: str = "q",
    is_finished: bool = True,
) -> Path:
    """A run with one held-out answer per value of `right`, and one training iteration per value of `rewards`."""
    config = ConfigStore()
    config.training.seed = seed
    for name, value in (settings or {}).items():
        setattr(config.training, name, value)
    with RunFolder(path).create() as run:
        run.write_config(config.to_yaml())
        for step, reward in enumerate(rewards, start=1):
            run.log("ppo", step, {"reward/mean": reward, "reward/std": 0.2, "episode/count": 16.0})
        run.add_trajectories(
            {
                "step": 0,
                "arm": arm,
                "task_id": f"{ids}{number}",
                "question": f"Question {number}? {HOSTILE}",
                "answer": f"truth {number}",
                "exact_match": value,
                "reward": {"total": float(value or 0) - 0.1 * number, "parts": {}},
                "num_calls": number % 3,
                "spans": [
                    {"kind": "prompt", "text": "Q", "num_tokens": 9},
                    {"kind": "policy", "text": f"{path.name} says {value} {HOSTILE}", "num_tokens": 5 + number},
                ],
            }
            for number, value in enumerate(right)
        )
        if is_finished:
            judged = [value for value in right if value is not None]
            summary = {f"{arm}.exact_match": sum(judged) / len(judged)} if judged else {}
            run.write_summary({"num_questions": len(right), "seed": seed, **summary})
    return path


def pair_of(comparison: Comparison) -> dict[str, Any]:
    (pair,) = to_dict(comparison)["comparisons"]
    return pair


def test_two_runs_are_compared_by_question_with_mcnemar(tmp_path: Path) -> None:
    first = write_run(tmp_path / "small", [True] * 2 + [False] * 10, rewards=[0.1] * 9 + [0.2])
    second = write_run(
        tmp_path / "large", [False] + [True] * 9 + [False] * 2, settings={"learning_rate": 3e-5}, rewards=[0.2] * 10
    )
    comparison = compare([first, second])
    pair = pair_of(comparison)
    assert comparison.settings == {"training.learning_rate": [ConfigStore().training.learning_rate, 3e-5]}
    assert (pair["baseline"], pair["other"], pair["arm"], pair["num_questions"]) == ("small", "large", "after", 12)
    answers = pair["answers"]
    counts = [answers[key] for key in ("wrong_to_right", "right_to_wrong", "both_right", "both_wrong")]
    assert counts == [8, 1, 1, 2]
    (lost,) = answers["examples"]["right_to_wrong"]
    assert lost["task_id"] == "q0" and lost["expected"] == "truth 0" and lost["baseline"].startswith("small says True")
    test = pair["measures"]["exact_match"]["test"]
    assert test["name"] == "exact McNemar test" and test["num_pairs"] == 12 and test["statistic"] == 8
    assert test["p_value"] == pytest.approx(2 * (1 + 9) / 512)
    assert pair["verdict"]["difference_shown"] and pair["verdict"]["measure"] == "exact_match"
    text = pair["verdict"]["text"]
    assert text.startswith(
        "large is better. Exact match (after): 0.167 → 0.750. Exact McNemar test by question, n = 12"
    )
    assert "p = 0.039" in text and "95 % interval" in text and "other seeds may differ" in text
    assert pair["measures"]["reward"]["test"]["name"] == "paired bootstrap"
    assert pair["measures"]["calls"]["test"]["p_value"] == 1.0 and pair["measures"]["policy_tokens"]["other"] == 10.5
    assert pair["measures"]["logged_exact_match"] == {"baseline": 2 / 12, "other": 9 / 12, "test": None}
    assert pair["measures"]["training_reward"] == {"baseline": 0.2, "other": 0.2, "test": None}


def test_few_changed_answers_show_no_difference_and_the_verdict_says_what_is_needed(tmp_path: Path) -> None:
    first = write_run(tmp_path / "a", [False] * 9)
    verdict = pair_of(compare([first, write_run(tmp_path / "b", [True] * 4 + [False] * 5)]))["verdict"]
    assert not verdict["difference_shown"] and verdict["text"].startswith("No difference shown. ")
    assert verdict["p_value"] == pytest.approx(0.125)
    assert "Changed answers: 4; this test needs 6" in verdict["text"]


def seeds(folder: Path, name: str, shares: Sequence[int], first_seed: int = 1, **settings: Any) -> list[Path]:
    return [
        write_run(
            folder / f"{name}-seed-{seed}",
            [True] * num + [False] * (10 - num),
            seed=seed,
            settings=settings,
            rewards=[0.1 * num, 0.1 * num + 0.05],
        )
        for seed, num in enumerate(shares, start=first_seed)
    ]


def test_runs_that_differ_in_their_seed_are_one_configuration_paired_by_seed(tmp_path: Path) -> None:
    base, changed = seeds(tmp_path, "base", [3, 4, 5]), seeds(tmp_path, "clip", [6, 8, 8], clip_ratio=0.3)
    comparison = compare([base[0], changed[2], base[1], changed[0], base[2], changed[1]])
    assert [one.name for one in comparison.configurations] == ["base (3 seeds)", "clip (3 seeds)"]
    assert list(comparison.settings) == ["training.clip_ratio"]
    pair = pair_of(comparison)
    test = pair["measures"]["exact_match"]["test"]  # differences 0.3, 0.4, 0.3: mean 1/3, s = 0.1 / √3, t = 10
    assert (test["unit"], test["num_pairs"], test["name"]) == ("seed", 3, "paired t test")
    assert test["statistic"] == pytest.approx(10.0) and test["p_value"] == pytest.approx(1 - 10 / 102**0.5)
    assert pair["verdict"]["difference_shown"] and pair["verdict"]["text"].startswith("clip (3 seeds) is better.")
    assert pair["answers"]["wrong_to_right"] == 10  # 3 + 4 + 3
    line = to_dict(comparison)["curves"]["ppo"]["reward/mean"]["base (3 seeds)"]
    assert line["points"] == [[1, pytest.approx(0.4)], [2, pytest.approx(0.45)]]
    assert line["band"][0] == [
        1,
        pytest.approx(0.4 - 4.3027 * 0.1 / 3**0.5, abs=1e-4),
        pytest.approx(0.4 + 0.2484, abs=1e-4),
    ]


def test_seeds_of_one_configuration_and_repeated_runs_are_compared_with_each_other(tmp_path: Path) -> None:
    runs = seeds(tmp_path, "base", [3, 4])
    assert [one.name for one in compare(runs).configurations] == ["base-seed-1", "base-seed-2"]
    again = compare([*runs, *seeds(tmp_path / "again", "base", [3, 4])])
    assert [len(one.runs) for one in again.configurations] == [2, 2] and "again" in again.configurations[1].name
    assert not pair_of(again)["verdict"]["difference_shown"]
    assert any("the same settings" in note for note in again.notes)


def test_several_comparisons_are_adjusted(tmp_path: Path) -> None:
    paths = [write_run(tmp_path / "base", [False] * 12)]
    for number, num_right in enumerate((6, 12)):
        right = [True] * num_right + [False] * (12 - num_right)
        paths.append(write_run(tmp_path / f"other{number}", right, settings={"clip_ratio": 0.3 + number / 10}))
    few, many = to_dict(compare(paths))["comparisons"]
    assert few["measures"]["exact_match"]["test"]["p_value"] == pytest.approx(2 / 2**6)
    assert few["verdict"]["p_value"] == pytest.approx(2 / 2**6) and few["verdict"]["difference_shown"]
    assert (
        many["verdict"]["p_value"] == pytest.approx(2 * 2 / 2**12) and "2 comparisons (Holm)" in many["verdict"]["text"]
    )


def test_only_shared_questions_count_and_what_is_missing_is_named(tmp_path: Path) -> None:
    first = write_run(tmp_path / "a", [True] * 8)
    other = write_run(tmp_path / "b", [True] * 8, ids="z", is_finished=False, settings={"clip_ratio": 0.4})
    comparison = compare([first, other])
    pair = pair_of(comparison)
    assert pair["arm"] is None and pair["answers"] is None and not pair["verdict"]["difference_shown"]
    assert pair["verdict"]["text"].startswith("Nothing was tested. Training reward")
    assert any(f"{other} is unfinished (iteration 2)" in note for note in comparison.notes)
    (first / "config.yaml").write_text("recipe:\n  a: 1\n", encoding="utf-8")
    assert any("different recipes" in note for note in compare([first, other]).notes)


def test_a_running_run_is_named(tmp_path: Path) -> None:
    first = write_run(tmp_path / "a", [True] * 3)
    with RunFolder(write_run(tmp_path / "b", [False] * 3)).create(resume=True):
        assert any("b is running (iteration 2)" in note for note in compare([first, tmp_path / "b"]).notes)


def test_wrong_runs_are_refused_with_their_path(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", [True])
    with pytest.raises(SettingsError, match="1 run given; give two or more"):
        compare([run])
    with pytest.raises(SettingsError, match="a is given twice"):
        compare([run, tmp_path / "." / "a"])
    with pytest.raises(CheckpointError, match="nowhere is not a folder"):
        compare([run, tmp_path / "nowhere"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match="empty is not a run folder"):
        compare([run, tmp_path / "empty"])
    other = write_run(tmp_path / "b", [True])
    with pytest.raises(SettingsError, match=r"no run has answers of the arm 'sampled'.*Known: after"):
        compare([run, other], arm="sampled")
    (other / "config.yaml").write_text("training: [", encoding="utf-8")
    with pytest.raises(SettingsError, match=r"config\.yaml cannot be read"):
        compare([run, other])
    (other / "config.yaml").unlink()
    (other / "summary.json").write_text("{", encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"summary\.json: not JSON"):
        compare([run, other])


def test_the_page_is_self_contained_and_texts_stay_text(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / "a", [True, False] * 4), write_run(tmp_path / "b", [False, True] * 4)]
    comparison = compare(runs)
    page = write_page(comparison, tmp_path / "page.html")
    html = page.read_text("utf-8")
    assert html == render_comparison(comparison) and html.count("<script") == 2 and "<img" not in html
    assert (
        "No difference shown" in html and "Exact McNemar test by question, n = 8" in html and html.count("band s1") == 1
    )
    assert "default-src 'none'" in html and "http" not in html.replace("http-equiv", "")
    write_page(comparison, page)
    (tmp_path / "mine.html").write_text("<html>mine</html>", encoding="utf-8")
    with pytest.raises(OutputPathError, match=r"mine\.html exists"):
        write_page(comparison, tmp_path / "mine.html")


def test_the_command_prints_tables_or_json(tmp_path: Path) -> None:
    runs = [str(write_run(tmp_path / "a", [True, False] * 4)), str(write_run(tmp_path / "b", [False, True] * 4))]
    shown = CliRunner().invoke(app, ["compare", *runs, "--html", str(tmp_path / "page.html")])
    assert shown.exit_code == 0 and "Answers: 4 wrong→right, 4 right→wrong" in shown.stdout
    assert "Verdict: No difference shown." in shown.stdout and (tmp_path / "page.html").is_file()
    as_json = CliRunner().invoke(app, ["compare", *runs, "--json"])
    assert json.loads(as_json.stdout)["comparisons"][0]["answers"]["wrong_to_right"] == 4


def test_a_recording_with_more_questions_is_used(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name, [True, False]) for name in ("a", "b")]
    for path in runs:
        spans, texts = [["prompt", 1], ["policy", 2]], ["Q", "o", "k"]
        rows = [
            {"arm": "after", "step": 0, "task_id": f"r{number}", "question": "?", "exact_match": path.name == "b"}
            | {"segments": [{"spans": spans, "texts": texts}]}
            for number in range(7)
        ]
        with RunFolder(path).create(resume=True) as run:
            run.recording.add("after", 0, rows, max_bytes=2**20)
    pair = pair_of(compare(runs))
    assert pair["num_questions"] == pair["answers"]["wrong_to_right"] == 7
    assert pair["measures"]["policy_tokens"]["other"] == 2 and pair["verdict"]["difference_shown"]
    assert pair["answers"]["examples"]["wrong_to_right"][0]["other"] == "ok"


def test_questions_need_to_be_the_same_within_a_seed_only(tmp_path: Path) -> None:
    """Recipes choose their held-out questions by the seed."""
    groups = [
        [
            write_run(
                tmp_path / f"{name}-{seed}",
                [True] * num + [False] * (8 - num),
                seed=seed,
                ids=f"s{seed}-",
                settings=own,
            )
            for seed, num in shares.items()
        ]
        for name, own, shares in (("base", {}, {1: 2, 2: 3, 9: 8}), ("clip", {"clip_ratio": 0.3}, {1: 6, 2: 6}))
    ]
    comparison = compare([*groups[0], *groups[1]])
    pair = pair_of(comparison)
    test = pair["measures"]["exact_match"]["test"]  # differences 4/8 and 3/8: t = (7/16) / (1/16)
    assert (test["num_pairs"], test["unit"]) == (2, "seed") and test["statistic"] == pytest.approx(7.0)
    assert pair["num_questions"] == 16 and pair["answers"]["wrong_to_right"] == 7
    assert any("without base-9" in note for note in comparison.notes)
    one_shared = pair_of(compare([groups[0][0], groups[0][2], groups[1][0]]))
    assert one_shared["num_questions"] == 8 and one_shared["measures"]["exact_match"]["test"]["unit"] == "question"
    other_seeds = pair_of(compare([groups[0][2], groups[1][0]]))
    assert other_seeds["arm"] is None and "choose questions by training.seed" in other_seeds["verdict"]["text"]


def test_the_report_of_a_run_has_bands_over_the_seeds_of_other_runs(tmp_path: Path) -> None:
    runs = [
        str(write_run(tmp_path / f"run-{seed}", [True], seed=seed, rewards=[0.1 * seed, 0.5 + 0.1 * seed]))
        for seed in range(3)
    ]
    result = CliRunner().invoke(app, ["report", *runs])
    assert result.exit_code == 0, result.output
    page = (tmp_path / "run-0" / "report.html").read_text()
    assert "Means of 3 runs that differ only in the seed (0, 1, 2)" in page
    (reward,) = [figure for figure in page.split("<figure")[1:] if "<b>Reward</b>" in figure]
    assert '<polygon class="band s0"' in reward and "mean from 0.1 to 0.6" in reward
    other = write_run(tmp_path / "other", [True], seed=4, settings={"learning_rate": 3e-5})
    for wrong, words in (
        ([runs[0], str(other)], "differs from .* in more than the seed"),
        ([runs[0]] * 2, "the seeds"),
    ):
        with pytest.raises(SettingsError, match=words):
            CliRunner().invoke(app, ["report", *wrong], catch_exceptions=False)
