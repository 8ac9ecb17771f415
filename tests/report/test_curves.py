import re

import pytest

from midthought.report.curves import curves, nice_ticks, plan_charts, smoothed, thinned, timeline


def test_ticks_are_round_and_lie_within() -> None:
    assert nice_ticks(0.0, 1.0, 5) == (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    assert nice_ticks(-0.013, 0.012, 5) == (-0.01, -0.005, 0.0, 0.005, 0.01)
    assert nice_ticks(1, 600, 6) == (100.0, 200.0, 300.0, 400.0, 500.0, 600.0)
    assert nice_ticks(1, 3, 6, whole=True) == (1.0, 2.0, 3.0)


def test_smoothing_keeps_a_constant_and_a_slope_and_calms_noise() -> None:
    assert smoothed([2.0] * 30) == pytest.approx([2.0] * 30)
    slope = [float(step) for step in range(120)]
    assert smoothed(slope)[10:-10] == pytest.approx(slope[10:-10])
    noise = [float((-1) ** step) for step in range(200)]
    assert max(abs(value) for value in smoothed(noise)[10:-10]) < 0.01


def test_thinning_takes_means_of_neighbours() -> None:
    points = [(1, 1.0), (2, 3.0), (3, 5.0), (4, 7.0), (5, 9.0)]
    assert thinned(points, 3) == [(2, 2.0), (4, 6.0), (5, 9.0)]
    assert thinned(points, 5) is points


def test_every_metric_gets_exactly_one_place() -> None:
    keys = ["policy_loss", "reward/mean", "entropy", "kl_reference", "time/seconds", "grad_norm", "reward/correct"]
    main, rest = plan_charts({key: [(1, 0.5)] for key in keys})
    assert [(chart.title, list(chart.lines)) for chart in main] == [
        ("Reward", ["mean"]),
        ("Reward by part", ["correct"]),
        ("KL to the reference model", ["kl reference"]),
        ("Entropy", ["entropy"]),
        ("Loss", ["policy loss"]),
        ("Gradient norm", ["grad norm"]),
    ]
    assert [chart.title for chart in rest] == ["time/seconds"]


def test_the_title_of_a_chart_says_what_its_metrics_count() -> None:
    names = ["episode/calls", "episode/invalid_calls", "episode/repeated_calls", "tool/look/failures"]
    main, _ = plan_charts({name: [(1, 0.5)] for name in names})
    assert [(chart.title, list(chart.lines)) for chart in main] == [
        ("Calls per episode", ["calls", "invalid calls"]),
        ("Calls that fail or repeat an earlier one, share of the calls", ["repeated calls", "failures"]),
    ]


@pytest.mark.parametrize(
    "points",
    [[(1, 0.0)], [(1, 3e-4)] * 3, [(5, -2.0), (5, -2.0)], [(1, 1e30), (2, -1e30)], [(i, 3e-4) for i in range(900)]],
)
def test_odd_series_still_give_a_chart_inside_its_frame(points: list[tuple[int, float]]) -> None:
    html, data = curves({"ppo": {"reward/mean": points}})
    assert html.count("<figure") == len(data) == 1
    places = [float(x) for pair in re.findall(r'points="([^"]*)"', html) for x in re.split("[ ,]", pair)]
    assert all(-1e6 < place < 1e6 for place in places)


def test_overlap_are_told_apart_and_charts_numbered_through() -> None:
    html, data = curves({"sft": {"loss": [(1, 2.0), (2, 1.0)]}, "ppo": {"reward/mean": [(1, 0.2)], "lr": [(1, 0.1)]}})
    assert re.findall(r"<h3>(.*?) <small>(.*?)</small>", html) == [
        ("Warm-up (SFT)", "up to step 2"),
        ("Reinforcement learning", "up to step 1"),
    ]
    assert re.findall(r'data-chart="(\d+)"', html) == ["0", "1", "2"] and len(data) == 3
    assert 'aria-label="Loss, steps 1 to 2: loss from 2 to 1"' in html


def test_the_timeline_has_a_bar_per_iteration_and_kind_of_work_where_it_was() -> None:
    series = {
        "time/wall": [(1, 4.0), (2, 6.0)],
        "time/idle_engine": [(1, 1.0), (2, 2.0)],
        "time/idle_learner": [(1, 3.0), (2, 4.0)],
        "time/weight_update_seconds": [(2, 1.0)],  # the first had nothing to train on
        "time/waiting": [(1, 0.0), (2, 0.5)],
    }
    html = timeline(series)
    assert "the last 2 iterations, 10 s" in html
    assert "Shares of 10 seconds: sampling 70%, learning 30%, new weights 10%, waiting 5%" in html
    bars = re.findall(r'<rect class="s(\d)" x="([\d.]+)" y="\d+" width="([\d.]+)"', html)
    in_seconds = [(int(lane), (float(x) - 130) / 76, float(width) / 76) for lane, x, width in bars]
    assert in_seconds == [
        (lane, pytest.approx(start, abs=2e-3), pytest.approx(seconds, abs=2e-3))
        for lane, start, seconds in [
            *((0, 0, 3), (1, 3, 1), (2, 4, 0), (3, 3, 0)),
            *((0, 4, 4), (1, 7, 2), (2, 9, 1), (3, 6.5, 0.5)),
        ]
    ]
    assert "<title>iteration 2: learning 2 of 6 s</title>" in html


def test_only_asynchronous_training_has_a_timeline_and_of_a_long_run_its_last_iterations() -> None:
    assert timeline({"time/seconds": [(1, 4.0)]}) == ""
    html = timeline({"time/wall": [(step, 1.0) for step in range(1, 501)]})
    assert "the last 40 iterations" in html and html.count("<rect") == 160
    assert re.findall(r'y="105">(\d+)</text>', html) == ["461", "466", "471", "476", "481", "486", "491", "496"]
    stages, _ = curves({"sft": {"loss": [(1, 2.0)]}, "ppo": {"time/wall": [(1, 2.0)]}})
    assert stages.count('class="chart lanes"') == 1
