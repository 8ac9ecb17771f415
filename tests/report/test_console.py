import io

import pytest

from midthought.report.console import Console, Progress, printable


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_rate_and_time_left_are_those_since_the_start() -> None:
    clock = Clock()
    progress = Progress("x", total=100, clock=clock)
    assert progress.counts() == "0/100 steps"
    clock.now += 35.0
    progress.advance(70, reward=1.0, num_calls=3)
    assert progress.counts() == "70/100 steps · 2/s · 15 s left" and progress.metrics() == "reward 1 · num calls 3"
    progress.start_at(50)  # a resumed stage: earlier steps do not count for the rate
    clock.now += 10.0
    progress.follow(55, 100)  # of work that reports its own counts
    assert progress.counts() == "55/100 steps · 2 s each · 1 min 30 s left"


def test_plain_lines_are_few_and_hold_everything() -> None:
    clock, out = Clock(), io.StringIO()
    console = Console(out=out, num_stages=6, clock=clock)
    with console.stage("Reading", total=2, unit="files"):
        pass
    with console.stage("Warm-up (SFT)", total=600) as progress:
        for step in range(600):
            clock.now += 0.125
            progress.advance(loss=1 - step / 1000)
    lines = out.getvalue().splitlines()
    assert lines[:4] == [
        "  [1/6] Reading (2 files)",
        "✓ [1/6] Reading  0/2 files · 0.0 s",
        "  [2/6] Warm-up (SFT) (600 steps)",
        "  [2/6] Warm-up (SFT)  40/600 steps · 8/s · 1 min 10 s left · loss 0.961",
    ]
    assert len(lines) == 3 + 14 + 1
    assert lines[-1] == "✓ [2/6] Warm-up (SFT)  600 steps · 1 min 15 s · loss 0.401"


def test_a_stage_that_breaks_says_how_far_it_came() -> None:
    out = io.StringIO()
    console = Console(out=out)
    with pytest.raises(KeyboardInterrupt), console.stage("PPO", total=9) as progress:
        progress.advance(2)
        raise KeyboardInterrupt
    with pytest.raises(ValueError), console.stage("Report"):
        raise ValueError
    assert "– [1] PPO  2/9 steps · 0.0 s" in out.getvalue() and "✗ [2] Report  0.0 s" in out.getvalue()


def test_quiet_says_tables_and_errors_only() -> None:
    out, err = io.StringIO(), io.StringIO()
    console = Console(quiet=True, out=out, err=err)
    console.note("by the way")
    with console.stage("PPO", total=1) as progress:
        progress.advance(reward=1.0)
    assert out.getvalue() == ""
    console.error("no such file: x.md")
    console.table(
        "Before and after", ["arm", "before", "after"], [["exact match", 0.3041, 0.861], ["tool off", None, 0.06]]
    )
    assert err.getvalue() == "no such file: x.md\n"
    assert out.getvalue().splitlines() == [
        "",
        "Before and after",
        "arm          before  after",
        "-----------  ------  -----",
        "exact match   0.304  0.861",
        "tool off          –  0.060",
        "",
    ]


def test_a_terminal_gets_a_bar_with_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "110")
    out = Terminal()
    console = Console(out=out, num_stages=3)
    assert not console.plain
    with console.stage("PPO", total=4) as progress:
        progress.advance(1, reward=0.5)
        progress.advance(1, reward=0.75)
        console.note("checkpoint [bold]written[/bold]")
    console.table("End", ["arm", "after"], [["exact [match]", 0.5]])
    text = out.getvalue()
    assert "[1/3] PPO" in text and "━" in text and "2/4 steps" in text and "reward 0.75" in text
    assert "checkpoint [bold]written[/bold]" in text and "exact [match]" in text


def test_no_terminal_and_a_dumb_one_are_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Console(out=io.StringIO()).plain
    monkeypatch.setenv("TERM", "dumb")
    assert Console(out=Terminal()).plain
    assert not Console(out=Terminal(), plain=False).plain


def test_foreign_words_cannot_move_the_cursor() -> None:
    assert printable("a\x1b[2Jb\rc\u202ed\te\u00a0f\n") == "a[2Jbcd\te\u00a0f\n"


def test_a_stream_that_knows_no_unicode_is_no_reason_to_stop() -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    console = Console(out=out)
    with console.stage("PPO", total=2) as progress:
        progress.advance(1, reward=0.1)
        progress.advance(1, reward=0.2)
    out.seek(0)
    assert "[1] PPO  2 steps" in out.read()
