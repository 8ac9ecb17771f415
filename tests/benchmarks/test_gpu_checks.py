"""The checks of `python -m benchmarks gpu` run on a CPU with tiny shapes, and fail if what they check is wrong."""

import json
from pathlib import Path

import pytest
import torch

from benchmarks.__main__ import main
from benchmarks.gpu import agreement, command, fit, graphs, one_rank, published, runners
from benchmarks.gpu.command import TINY_MODELS, Worker
from benchmarks.gpu.findings import CHECKS, Check, Outcome, Report, Status, to_markdown, to_summary, to_text
from benchmarks.gpu.machine import Machine
from benchmarks.gpu.worker import run_check
from benchmarks.plan import memory_of
from midthought.engines.local import runner_selection as trial
from midthought.engines.local.engine import LocalEngine
from midthought.learning import passes
from midthought.learning.learner import Learner
from midthought.plan.memory import Memory
from midthought.types import Completion, Finish

QUICK = Check(1, "benchmarks.gpu.hardware", "versions", 1.0)


def tiny_machine() -> Machine:
    return Machine("cpu", is_tiny=True, model_names=TINY_MODELS)


def run(module: str) -> Outcome:
    """One check in this process."""
    outcome = Outcome(check=Check(1, module, "", 1.0))
    status, reason = run_check(outcome.check, tiny_machine(), Report(outcome.findings.append))
    outcome.end(status, reason, 0.0)
    return outcome


def failures(outcome: Outcome) -> list[str]:
    return [finding.name for finding in outcome.findings if finding.is_met is False]


def name_of(check: Check) -> str:
    return check.module.rpartition(".")[2]


LONG = ("agreement", "decoding", "fit", "grpo", "learning", "less_memory", "published")


@pytest.mark.parametrize(
    "check",
    [
        pytest.param(check, id=name_of(check), marks=[pytest.mark.slow] if name_of(check) in LONG else [])
        for check in CHECKS
    ],
)
def test_every_check_reports_figures_or_a_reason(check: Check) -> None:
    outcome = run(check.module)
    assert failures(outcome) == []
    assert outcome.status is Status.OK or (outcome.status is Status.NOT_RUN and outcome.reason)
    assert any(not finding.is_left_out for finding in outcome.findings)
    if check.number not in (1, 4, 12):  # on a CPU without vLLM: figures alone
        assert any(finding.is_met for finding in outcome.findings)


def test_a_slower_runner_fails_the_check_and_its_reason_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial.Decoder, "of", lambda policy, **_: None)
    monkeypatch.setattr(trial.Trial, "why_not", lambda self, cached: "a reason")
    outcome = run(runners.__name__)
    assert outcome.status is Status.FAILED
    assert "runner" in failures(outcome)
    assert any("a reason" in str(finding.value) for finding in outcome.findings)


@pytest.mark.slow
def test_an_engine_that_keeps_old_weights_fails_the_check_of_log_probabilities(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Learner, "update", lambda learner, batch: double_norm(learner) or {})
    monkeypatch.setattr(LocalEngine, "update_weights", lambda engine: None)
    outcome = run(agreement.__name__)
    assert outcome.status is Status.FAILED
    assert any("|sampled − recomputed| after" in name for name in failures(outcome))


def double_norm(learner: Learner) -> None:
    """Other weights in other tensors, of which the engine hears nothing."""
    norm = learner.policy.get_submodule(
        "base_model.model.model.norm" if hasattr(learner.policy, "peft_config") else "model.norm"
    )
    norm.weight = torch.nn.Parameter(2 * norm.weight.detach())


def test_a_rank_that_learns_something_else_fails_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        one_rank, "_learn_as_rank", lambda machine, name, settings, batch: other(machine, name, settings, batch)
    )

    def other(*arguments):
        before, after, norm = one_rank._learn_alone(*arguments)  # noqa: SLF001
        return before, after + 0.01, norm

    outcome = run(one_rank.__name__)
    assert failures(outcome) == ["largest difference of log-probabilities after an update"]


@pytest.mark.slow
def test_a_plan_that_is_off_by_half_fails_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = Memory.learner.func
    monkeypatch.setattr(Memory, "learner", property(lambda plan: learner(plan) // 2))
    monkeypatch.setattr(fit, "WAYS", {"": ""})
    outcome = run(fit.__name__)
    assert outcome.status is Status.FAILED
    assert "largest of these passes that the plan allows" in failures(outcome)


@pytest.mark.parametrize(("max_tokens", "has_memory"), [(64, True), (32, False)])
def test_a_pass_does_not_fit_if_the_learner_runs_out_of_memory(
    monkeypatch: pytest.MonkeyPatch, max_tokens: int, has_memory: bool
) -> None:
    forward = passes.token_outputs

    def limited(model, micro, *arguments, **options):
        if micro.num_tokens > max_tokens:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")
        return forward(model, micro, *arguments, **options)

    monkeypatch.setattr(passes, "token_outputs", limited)
    model = "hidden_size=16 num_layers=1 num_heads=2 vocab_size=64 dtype=float32"
    work = "batch_size=4 micro_batch_tokens=64 prompt_tokens=8 max_tokens=24"
    assert fit.fits(memory_of(model, work), torch.device("cpu")) == has_memory


@pytest.mark.parametrize(("peak_gib", "fails"), [(5.0, []), (6.0, ["peak memory of the update"])])
def test_published_figures_are_required_of_the_gpu_that_they_are_of(
    monkeypatch: pytest.MonkeyPatch, peak_gib: float, fails: list[str]
) -> None:
    """128 tokens in 2 s are 64 tokens/s. Floating-point operations: 6 per token and parameter, and 12 per layer, unit of the
    queries' 128, and position before the token. Each of the 2 layers has 24,576 parameters of attention, 24,576 of the MLP and
    192 of norms. The output layer has 32,768."""
    monkeypatch.setattr(Machine, "wall_seconds", lambda self, compute: (2.0, compute()))
    monkeypatch.setattr(Machine, "device_name", "NVIDIA H200")
    monkeypatch.setattr(Machine, "peak_bytes", int(peak_gib * 2**30))
    rates = (published.Published("RL", 30.0, 10, 2.0), published.Published("SFT", 60.0, 20, 1.1))
    shape = published.PublishedShape(published.Work("tiny", 0, 2, 20), 64, rates, 5.5)
    monkeypatch.setattr(published, "TINY_SHAPES", (shape,))
    outcome = run(published.__name__)
    figures = {finding.name: finding for finding in outcome.findings}
    assert failures(outcome) == ["update", *fails]
    assert (figures["update"].value, figures["update"].requirement) == (64.0, "≥ 2 × 30 (RL), 1.1 × 60 (SFT)")
    assert figures["scoring and update"].value == 32.0
    mfu = figures["MFU of the update, of 989 TFLOP/s (prime-rl, RL: 10 %; prime-rl, SFT: 20 %)"]
    assert mfu.value == pytest.approx(100 * 113_541_120 / 2.0 / 989e12)


def completion(token_ids: list[int], logprobs: list[float]) -> Completion:
    return Completion(token_ids=tuple(token_ids), sampled_logprobs=tuple(logprobs), finish=Finish.LENGTH)


def test_rows_are_compared_up_to_their_first_difference() -> None:
    """The second row differs at its second token, by 0.5 nats; what follows is not compared."""
    ones = [completion([1, 2, 3], [-1.0, -1.0, -1.0]), completion([1, 2, 3], [-1.0, -1.0, -9.0])]
    others = [completion([1, 2, 3], [-1.0, -1.25, -1.0]), completion([1, 4, 3], [-1.0, -1.5, -1.0])]
    compared = graphs.Comparison(ones, others)
    assert (compared.num_same_rows, compared.num_same_tokens, compared.num_tokens) == (1, 4, 6)
    assert compared.largest_difference == 0.25
    assert compared.largest_gap == 0.5


def test_the_summary_has_a_line_per_check_with_its_required_figures_and_details_are_not_printed() -> None:
    outcome, other = Outcome(check=QUICK._replace(number=2)), Outcome(check=QUICK)
    report = Report(outcome.findings.append)
    report.figure("tiny", "rate", 7.0)
    report.detail("tiny", "attention", 8.0, "µs")
    report.at_most("tiny", "error", 0.05, 0.1, "nats")
    report.at_most("tiny", "later error", 0.2, 0.1, "nats")
    report.left_out("large", "no time is left")
    outcome.end(Status.OK, "", 1.0)
    other.end(Status.NOT_RUN, "no time is left", 0.0)
    assert to_summary([outcome, other]).splitlines()[2:] == [
        "(1) not run (no time is left), 0.0 s",
        "(2) FAILED, 1.0 s; tiny: later error 0.2 nats (≤ 0.1: FAILED), error 0.05 nats (≤ 0.1); parts not run: 1",
        "0 ok, 1 FAILED, 0 error, 1 not run",
    ]
    assert "attention" not in to_text(outcome)
    assert "| attention | 8 µs |" in to_markdown([outcome])


@pytest.mark.slow
def test_a_check_that_hangs_or_dies_does_not_hide_the_next_one(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A check that is over its share, but not twice, loses nothing."""
    monkeypatch.setattr(command, "MIN_CHECK_SECONDS", 0.0)
    monkeypatch.setattr(command, "MIN_OVERRUN_SECONDS", 0.0)
    slow, hangs, dies = (Check(2, f"gpu_check_that_{does}", "", 1) for does in ("is_slow", "hangs", "dies"))
    checks = (QUICK, slow, hangs, dies, QUICK)
    first, late, hanging, dying, last = outcomes = [Outcome(check=check) for check in checks]
    with Worker("cpu", True, TINY_MODELS) as worker:
        for outcome, seconds in zip(outcomes, (100.0, 1.0, 1.0, 100.0, 100.0), strict=True):
            worker.run(outcome, seconds, on_finding=lambda: None)
    assert len(worker.start_seconds) == 3
    assert (late.status, [finding.name for finding in late.findings]) == (Status.OK, ["after its share"])
    assert (dying.status, dying.reason) == (Status.ERROR, "its process ended with exit code 7")
    assert (hanging.status, hanging.reason) == (Status.ERROR, command.TIMED_OUT)
    assert [finding.name for finding in dying.findings] == ["before the end"]
    assert [finding.name for finding in hanging.findings] == ["before the hang"]
    assert "gpu_check_that_hangs.py" in capfd.readouterr().err  # its stack
    assert [first.status, last.status] == [Status.OK, Status.OK]
    assert last.findings
    assert worker.device_name == "cpu"


@pytest.mark.slow
def test_the_command_writes_its_table_after_every_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["gpu", "--device", "cpu", "--tiny", "--checks", "2", "--out", str(tmp_path)])
    assert ended.value.code == 0
    found = json.loads((tmp_path / "gpu.json").read_text("utf-8"))
    assert [(check["number"], check["status"]) for check in found["checks"]] == [(2, "ok")]
    assert found["machine"]["device"] == "cpu"
    assert "| 2 | tiny float32 | runner |" in (tmp_path / "gpu.md").read_text("utf-8")
    assert "1 ok, 0 FAILED, 0 error, 0 not run" in capsys.readouterr().out


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_command_says_how_to_try_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["gpu"])
    assert "--device cpu --tiny" in capsys.readouterr().err
