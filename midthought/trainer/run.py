"""The run of a trainer or a recipe: console, and run folder (settings, metrics, trajectories, checkpoints, summary, report); and
its checks, which log what they find, end the run, and save episodes whose update was not finite."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from midthought.checks.examination import ITERATION, VALIDATION, Monitor, log_warnings
from midthought.checks.registry import Finding
from midthought.config import Change, RecipeConfig, require_allowed
from midthought.errors import CheckpointError, TrainingStoppedError
from midthought.files.output_folder import recover
from midthought.files.regular import THEN_RESUME, storage_errors
from midthought.learning.learned_tokens import LearnedTokens
from midthought.learning.stopping import StopRequest
from midthought.report.console import Console
from midthought.report.html import write_report
from midthought.report.recorded_episodes import TRAINING_ARM, token_values, trajectory_row
from midthought.report.run_folder import RunFolder
from midthought.rollout.resuming import Journal
from midthought.rollout.trajectory_json import save_trajectories
from midthought.tokenization import Renderer
from midthought.tools.call_formats.unread import UnreadCallReader
from midthought.trainer.checkpoint import SFT, CheckpointManager, RunProgress, what_is_saved
from midthought.trainer.prompt_record import PromptRecord
from midthought.trainer.sources import PromptBuilder
from midthought.types import StopReason, Trajectory

NUM_SHOWN = 8
"""Trajectories of an iteration or a validation that are written at most."""
NUM_SHOWN_OF_ARM = 60
"""The same of an arm of a recipe's evaluation."""
MAX_RECORDED_BYTES = 256 << 20
"""Size of `trajectories.jsonl` from which on no more tokens are recorded."""
NOT_FINITE = "not_finite"
"""Folder in a run folder with the episodes of iterations whose gradient was not finite."""


class Run:
    """The run of a trainer or a recipe. Without a folder it writes nothing; before `create` it only locks a folder that exists.

    `is_shared`: a recipe opened it: it writes the settings, the summary and the report, says what a stop has saved, and closes
    the run. Raises `CheckpointError` for a folder with a run without `resume`, `OutputPathError` for one with other files.
    """

    folder: RunFolder | None = None
    journal = Journal(None)
    """Of the episodes since the newest checkpoint."""
    newest: Path | None = None
    """The checkpoint that a resumed run continues from; None: it starts at iteration 0."""
    newest_sft: Path | None = None
    """The checkpoint that interrupted supervised steps continue from."""
    has_sft = False
    """Whether the supervised steps are done, in this process or an earlier one."""
    is_finished = False

    def __init__(
        self,
        path: str | Path | None,
        config: RecipeConfig,
        *,
        resume: bool = False,
        allow_changes: bool = False,
        console: Console | None = None,
        is_shared: bool = False,
    ) -> None:
        self._config, self.is_resumed, self.allows_changes = config, resume, allow_changes
        self.is_shared = is_shared
        self._is_recorded = False
        self._learned: LearnedTokens | None = None
        self.sft_rows: list[dict[str, float]] = []
        """The metrics of every supervised step."""
        self.console = console or Console()
        self._stop = StopRequest()
        self.path = None if path is None else Path(path)
        self.policy_path = None if self.path is None else self.path / "policy"
        """Folder of the trained policy."""
        self.sft_policy_path = None if self.path is None else self.path / SFT
        """Folder of the policy after the supervised steps."""
        if self.path is not None:
            with storage_errors(self.path):
                saved = config.checkpoint
                folder = RunFolder(self.path, trackers=saved.trackers, project=saved.tracker_project)
                self.folder = folder.begin(resume=resume)
            self.progress = RunProgress(self.folder)
            self.journal = Journal(self.folder.checkpoints_path / ITERATION / "journal")
            if resume and self.folder.config_path.is_file():
                try:
                    self.progress.load()
                except CheckpointError:
                    self.folder.unlock()
                    raise

    @property
    def stop(self) -> StopRequest:
        """Delays Ctrl-C during a stage. All stages of a recipe have the same one."""
        return self._stop if self.is_shared else StopRequest()

    def create(self) -> None:
        """Creates and locks the folder."""
        if self.folder is not None and not self._is_recorded:
            self.folder.create(resume=self.is_resumed)

    def find_checkpoints(self) -> None:
        """Finds what a trainer continues from, and drops what was logged later."""
        self.checkpoints, self.sft_checkpoints = (
            CheckpointManager(self.folder, stage, self._config.checkpoint) for stage in (ITERATION, "sft")
        )
        if self.folder is None or self.sft_policy_path is None or not self.is_resumed:
            return
        self.newest = self.checkpoints.newest()
        recover(self.sft_policy_path)
        self.has_sft = self.sft_policy_path.is_dir()
        self.newest_sft = None if self.has_sft else self.sft_checkpoints.newest()
        self.sft_rows = self.logged_sft_rows() if self.has_sft else []
        if self.newest is None and self.newest_sft is None:
            position = self.progress.log_position
            if self.has_sft and SFT not in self.progress.done:
                position = {"num_metric_lines": len(self.sft_rows), "num_trajectory_lines": 0}
            self.folder.forget_after(position)

    @property
    def tokenizer_path(self) -> Path | None:
        """Folder of the tokenizer of the run that is resumed; None if nothing was saved yet."""
        saved = self.newest or self.newest_sft
        return saved / "policy" if saved is not None else self.sft_policy_path if self.has_sft else None

    def require_same(self, config: RecipeConfig, record: PromptRecord | None = None) -> None:
        """Raises `SettingsError` if a resumed run started with other settings, or with another record, and changes are not
        allowed. Call it before a checkpoint is loaded."""
        if self._is_recorded:
            return
        self._config, self._record = config, record
        self._changes: list[Change] = []
        if self.folder is None or not self.is_resumed:
            return
        self._changes = self.folder.settings_changes(config)
        if record is not None:
            self._changes += record.changes(self.folder.path)
        require_allowed(self._changes, allow=self.allows_changes)

    def clear_journal(self) -> None:
        """Drops the journal if the run was resumed with changes that alter what it learns."""
        if not all(change.is_harmless for change in self._changes):
            self.journal.clear()

    def record_settings(self, stage: str, step: int) -> list[Change]:
        """Writes what `require_same` was given, once. Call it after every check. Returns what changed; `step`: when."""
        if self.folder is None or self._is_recorded:
            return []
        assert self._record is not None
        self.progress.save()
        if self.is_shared:  # otherwise a trainer has done it, before it loaded a checkpoint
            self.clear_journal()
        self.folder.record_settings(self._config, self._changes, stage, step)
        self._record.write(self.folder)
        self._is_recorded = True
        return self._changes

    @contextmanager
    def disk(self) -> Iterator[None]:
        """Raises errors of the disk as `StorageError`. If a signal stops the block, says what is saved, unless a recipe does."""
        try:
            with nullcontext() if self.path is None else storage_errors(self.path, THEN_RESUME):
                yield
        except KeyboardInterrupt:
            if self.path is not None and not self.is_shared:
                self.console.error(
                    f"Stopped. {what_is_saved(self.path)}. Continue with the same program and resume=True"
                )
            raise

    def rows(self) -> list[dict[str, Any]]:
        """Returns what was logged so far."""
        return [] if self.folder is None else [*self.folder.metrics.read()]

    def logged_sft_rows(self) -> list[dict[str, float]]:
        """Returns the metrics of the supervised steps as far as they are logged."""
        rows = (row for row in self.rows() if row["stage"] == "sft")
        return [{name: value for name, value in row.items() if name != "stage"} for row in rows]

    def log(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        """Logs metrics."""
        if self.folder is not None:
            self.folder.log(stage, step, metrics)

    def learned_tokens(self, trajectories: Sequence[Trajectory], iteration: int) -> LearnedTokens | None:
        """Returns what collects the values of tokens that `add_trajectories` then records; None: nothing is recorded."""
        settings = self._config.checkpoint
        is_recorded = self.folder is not None and settings.record_episodes
        self._learned = LearnedTokens(trajectories[: settings.record_episodes]) if is_recorded else None
        return self._learned

    def add_trajectories(
        self,
        stage: str,
        iteration: int,
        trajectories: Sequence[Trajectory],
        renderer: Renderer,
        is_right: Callable[[Trajectory], bool | None],
    ) -> None:
        """Appends the first few trajectories to `trajectories.jsonl`, with the tokens of as many as the settings say."""
        if self.folder is None:
            return
        is_training, settings, log = stage == ITERATION, self._config.checkpoint, self.folder.trajectories
        learned = self._learned if is_training else None
        num_shown = NUM_SHOWN if is_training or stage.startswith(VALIDATION) else NUM_SHOWN_OF_ARM
        is_recorded = (not is_training or learned is not None) and log.num_bytes < MAX_RECORDED_BYTES
        num_recorded = settings.record_episodes if is_recorded else 0
        arm, shown = TRAINING_ARM if is_training else stage, trajectories[: max(num_shown, num_recorded)]
        rows = [trajectory_row(t, renderer.decode, step=iteration, arm=arm, exact_match=is_right(t)) for t in shown]
        for row, each in zip(rows, trajectories[:num_recorded], strict=False):
            row.update(token_values(each, renderer, learned.of(each) if learned else ()))
        self.folder.add_trajectories(rows)
        if num_recorded and log.num_bytes >= MAX_RECORDED_BYTES:
            self.console.note(f"{log.path} has {MAX_RECORDED_BYTES >> 20} MiB: no more tokens are recorded")

    def finish(self, metrics_history: Sequence[Mapping[str, float]]) -> None:
        """Writes summary and report, unless a recipe does."""
        if self.folder is None or self.is_shared:
            return
        validations = [row for row in self.rows() if row["stage"] == "validation"]
        last = {f"validation/{name}": value for name, value in (validations or [{}])[-1].items() if name != "stage"}
        seconds = math.fsum(metrics.get("time/seconds", 0.0) for metrics in metrics_history)
        summary = {"seed": self._config.training.seed, "seconds": seconds}
        self.folder.write_summary({**summary, **(metrics_history[-1] if metrics_history else {}), **last})
        self.folder.close()
        self.is_finished = True
        self.report()

    def report(self) -> None:
        """Writes `report.html` from what the folder holds now."""
        if self.path is not None:
            write_report(self.path)

    def close(self) -> None:
        """Closes and unlocks the folder."""
        if self.folder is not None:
            self.folder.close()
            self.folder.unlock()


class RunChecks:
    """The checks of one run. All methods raise `TrainingStoppedError` for a finding with the policy `stop`."""

    def __init__(self, config: RecipeConfig, renderer: Renderer, prompts: PromptBuilder, run: Run) -> None:
        """Raises `SettingsError` for an unknown check in `checks.policies`."""
        self._reader = UnreadCallReader(renderer, prompts.call_format, prompts.registry)
        self._run = run
        self.restart(config)

    def restart(self, config: RecipeConfig, rows: Iterable[Mapping[str, Any]] = ()) -> None:
        """Forgets everything. `rows`: what the run has logged before; what was wrong then is not reported again."""
        self._monitor = Monitor(config.to_dict())
        for row in rows:
            self._monitor.add(row)

    def before_update(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Judges the metrics of scoring, before any weight changes. If they stop the run, logs them under `iteration`."""
        try:
            self._tell(self._monitor.before_update(metrics))
        except TrainingStoppedError:
            self._run.log(ITERATION, iteration, metrics)
            raise

    def after_iteration(
        self, iteration: int, metrics: Mapping[str, float], trajectories: Sequence[Trajectory] = ()
    ) -> None:
        """Judges an iteration. Call it after its metrics are logged, before anything is saved."""
        row = {"stage": ITERATION, "step": iteration, **metrics}
        if metrics.get("num_skipped_steps", 0) > 0:
            self.save_episodes(iteration, trajectories)
        errors = Counter(t.error for t in trajectories if t.stop_reason is StopReason.FAILED)
        error = errors.most_common(1)[0][0] if errors else None
        self._tell(self._monitor.add(row, error=error, unread=self._reader.read(trajectories)))

    def after_validation(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Judges a validation."""
        self._tell(self._monitor.add({"stage": VALIDATION, "step": iteration, **metrics}))

    def save_episodes(self, iteration: int, trajectories: Sequence[Trajectory]) -> None:
        """Writes the complete records of an iteration to `not_finite/` in the run folder, if there is one."""
        if self._run.path is not None and trajectories:
            save_trajectories(self._run.path / NOT_FINITE / f"{iteration:06}.jsonl", trajectories)

    def _tell(self, findings: Sequence[Finding]) -> None:
        if self._run.folder is not None:
            self._run.folder.findings.append(finding.to_dict() for finding in findings)
        log_warnings(findings)
        for finding in findings:
            if finding.policy == "stop":
                raise TrainingStoppedError(f"{finding} (check {finding.check}; checks.policies sets what it does)")
