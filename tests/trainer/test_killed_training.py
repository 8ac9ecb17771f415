"""Kills of a run at random moments: every group is trained on once in the history of the weights that survive, and with
`training.max_staleness` nothing that was finished is played again. So it is with agents."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from command_process import FORKS
from killed_training import GROUP_SIZE, HELD, MAX_STALENESS, listening, train

from midthought.rollout.trajectory_json import load_trajectories

REPEATED = ("reward/mean", "loss", "weight_change", "entropy", "batch/ess", "batch/num_episodes", "staleness/mean")


def rows_of(file: Path) -> list[dict]:
    """The complete lines, none if there is no such file."""
    lines = file.read_bytes().splitlines(keepends=True) if file.exists() else []
    return [json.loads(line) for line in lines if line.endswith(b"\n")]


class KilledRun:
    """A run, and what was on the disk at each kill."""

    def __init__(
        self, folder: Path, num_iters: int, *, overlap=False, agents=False, max_staleness: int = MAX_STALENESS
    ) -> None:
        self.folder, self.run, self.scored = folder, folder / "run", folder / "scored"
        self._num_iters, self._max_staleness, self._draw = num_iters, max_staleness, random.Random(0)
        self._overlap, self._agents = overlap, agents
        self._finished: list[tuple[int, set[int]]] = []
        """Number of scored episodes at a kill, and the groups that were finished then."""
        self._metrics: dict[int, dict] = {}
        self.processes: list[int] = []

    def live(self, num_kills: int, *, kills_child: bool = False) -> int:
        """One process, until it is killed or the run is done. Returns the number of kills, of it and of its learner, each at a
        random moment after at most 12 episodes."""
        process = self.start()
        for number in range(1, num_kills + 1):
            target = self.num_scored + self._draw.randint(0, 12)
            while process.exitcode is None and self.num_scored < target:
                process.join(0.005)
            process.join(self._draw.uniform(0, 0.3))
            if process.exitcode is not None:  # 1: the learner was lost before a checkpoint, or twice in an iteration
                assert process.exitcode in (0, 1)
                self.look()
                return number - 1
            child = self.child_of(process.pid)
            self.processes += [child] if child else []
            victim = child if kills_child and child and self._draw.random() < 0.7 else process.pid
            with suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
            if victim == process.pid:
                process.join()
            self.look()
            if victim == process.pid:
                return number
        process.join(300)
        self.look()
        assert process.exitcode == 0 or (num_kills and process.exitcode == 1)
        return num_kills

    def start(self) -> Any:
        started = FORKS.Event()
        options = (self._overlap, self._max_staleness, self._agents)
        process = FORKS.Process(target=train, args=(str(self.folder), self._num_iters, *options, started))
        process.start()
        self.processes.append(process.pid)
        assert started.wait(120)
        return process

    @property
    def num_scored(self) -> int:
        return self.scored.read_bytes().count(b"\n") if self.scored.exists() else 0

    @staticmethod
    def child_of(process_id: int) -> int | None:
        with suppress(OSError):
            for child in Path(f"/proc/{process_id}/task/{process_id}/children").read_text().split():
                if b"midthought.cluster.child" in Path(f"/proc/{child}/cmdline").read_bytes():
                    return int(child)
        return None

    def look(self) -> None:
        """Notes what is finished and trained now, and that updates which were repeated had the same results."""
        if not self._max_staleness:  # iterations are played again, in other batches of the engine
            return
        stage, finished = self.run / "checkpoints/ppo", set()
        for file in [*stage.glob("journal/*.jsonl"), *stage.glob("checkpoints/step_*/state.json")]:
            with suppress(FileNotFoundError):
                if file.suffix == ".json":
                    groups = json.loads(file.read_text())["stream"]["groups"]
                    finished |= {g["position"] for g in groups if all(e["reward"] for e in g["episodes"])}
                else:
                    finished |= {row["position"] for row in rows_of(file) if "episodes" in row}
        self._finished.append((self.num_scored, finished))
        for row in rows_of(self.run / "metrics.jsonl"):
            values = {name: row.get(name) for name in REPEATED}
            known = self._metrics.setdefault(row["step"], values)
            assert known == values, (row["step"], known, values)

    def check(self) -> None:
        scored = [int(line.split()[1]) for line in self.scored.read_text().splitlines()]
        for number, finished in self._finished:
            assert not finished.intersection(scored[number:])
        rows = rows_of(self.run / "metrics.jsonl")
        assert [row["step"] for row in rows] == list(range(1, self._num_iters + 1))
        for row in rows:  # trained or counted
            num_left = row["batch/num_flat_groups"] + row.get("batch/num_surplus_groups", 0)
            assert row["batch/num_episodes"] + GROUP_SIZE * num_left == row["episode/count"]
        files = self.folder.glob("episodes/*.jsonl")
        members = Counter((each.group, each.seed) for file in files for each in load_trajectories(file))
        assert set(members.values()) == {1} and len(members) == sum(row["episode/count"] for row in rows)
        if self._max_staleness:
            assert 0 < max(row["staleness/max"] for row in rows) <= self._max_staleness
            assert sum(row["staleness/num_dropped"] for row in rows) == 0
            groups = Counter(group for group, _ in members)
            assert sorted(groups) == list(range(len(groups))) and set(groups.values()) == {GROUP_SIZE}
        self.check_nothing_is_left()

    def check_nothing_is_left(self) -> None:
        """Neither a process nor memory, which the learner releases if its parent was killed; if both were, the next one does."""
        deadline = time.monotonic() + 30
        while any(Path(f"/proc/{number}").exists() for number in self.processes) and time.monotonic() < deadline:
            time.sleep(0.1)
        left = [number for number in self.processes if Path(f"/proc/{number}").exists()]
        left += [file for number in self.processes for file in Path("/dev/shm").glob(f"midthought-learning-{number}-*")]
        assert left == []
        sockets = (self.folder / "sockets").read_text().split() if self._agents else []
        assert set(listening().values()).isdisjoint(sockets), "its agents are still served"


@pytest.mark.parametrize(
    "options",
    [{}, {"agents": True}, pytest.param({"agents": True, "max_staleness": 0}, marks=pytest.mark.slow)],
    ids=["episodes", "agents", "agents, synchronous"],
)
def test_three_kills_lose_no_finished_group(options, tmp_path):
    run = KilledRun(tmp_path, 8, **options)
    assert sum(run.live(1) for _ in range(3)) == 3
    run.live(0)
    run.check()


@pytest.mark.slow
@pytest.mark.parametrize("agents", [False, True], ids=["episodes", "agents"])
@pytest.mark.parametrize("overlap", [False, True], ids=["in turns", "overlapping"])
def test_50_kills_of_the_run_and_of_its_learner_lose_no_finished_group(overlap, agents, tmp_path):
    run, num_kills = KilledRun(tmp_path, 300, overlap=overlap, agents=agents), 0  # a process plays up to 50 episodes
    while num_kills < 50:
        found = run.live(50 - num_kills, kills_child=overlap)
        assert found, "the run ended before it was killed 50 times"
        num_kills += found
    run.live(0)
    run.check()


BOTH = [signal.SIGTERM, signal.SIGINT]


@pytest.mark.parametrize("signals", [BOTH[:1], pytest.param(BOTH, marks=pytest.mark.slow)], ids=["one", "two"])
def test_a_signal_ends_a_run_that_waits_for_an_episode_and_leaves_its_checkpoint_alone(signals, tmp_path):
    run = KilledRun(tmp_path, 6, overlap=True)
    (tmp_path / "hold").touch()
    process, log = run.start(), run.run / "metrics.jsonl"
    while not rows_of(log):  # a later batch waits for the group
        assert process.exitcode is None
        process.join(0.05)
    child = run.child_of(process.pid)
    assert child is not None
    run.processes.append(child)
    process.join(2)
    for number in signals:
        os.kill(process.pid, number)
    process.join(60)
    assert process.exitcode == 1
    run.check_nothing_is_left()
    if len(signals) == 1:
        state = json.loads(max(run.run.glob("checkpoints/ppo/checkpoints/*/state.json")).read_text())
        assert state["iteration"] == len(rows_of(log))
        held = [group["episodes"] for group in state["stream"]["groups"] if group["position"] == HELD]
        assert [episode["reward"] for episodes in held for episode in episodes] == [None] * GROUP_SIZE
        return
    (tmp_path / "hold").unlink()
    run.look()
    run.live(0)
    run.check()
