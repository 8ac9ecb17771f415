"""`python -m benchmarks same REV [JOB …]`: whether REV and this checkout compute the same, to the bit.

Runs the jobs of `jobs.py` in both, each with one thread, at the same time, and compares what their run folders hold: every
metric, the summary, the tokens of every recorded episode, and the weights. Exits with 1 if anything differs.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
MAY_DIFFER = re.compile(
    r"[ ./](time/|seconds|peak_rss_mib$)|_seconds$"
    # only removed guards read these:
    r"|episode/(same_prompt|same_text|reward_by_length|right_by_chance|nearly_right|top_reward)"
    r"|episode/(right|reward_if_right|reward_if_wrong)$"
    r"|tool/.*/(other_results|without_result)$"
    # they repeated arms.clean.*, and differences of other values:
    r"|\bcontrol\.(exact_match|num_steps)$|\bgain\.(over_|first_try_)\w+$"
)
"""Names of metrics and keys of summaries that depend on the machine. A name here that is not a time needs a reason beside it."""
MAX_SHOWN = 8
EPISODE = ("arm", "step", "task_id", "stop_reason", "reward", "segments")
"""What is compared of a recorded episode."""


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks same", description=__doc__)
    parser.add_argument("rev", help="the commit to compare with")
    parser.add_argument("jobs", nargs="*", help="jobs of benchmarks/same/jobs.py; default: all")
    options = parser.parse_args(words)
    with tempfile.TemporaryDirectory(prefix="midthought-same-") as folder:
        tree, outs = Path(folder, "tree"), [Path(folder, "then"), Path(folder, "now")]
        _git("worktree", "add", "--quiet", "--detach", str(tree), options.rev)
        try:
            runs = [_start(each, out, options.jobs) for each, out in zip((tree, ROOT), outs, strict=True)]
            codes = [run.wait() for run in runs]
        finally:
            _git("worktree", "remove", "--force", str(tree))
        if any(codes):
            for out in outs:
                print((out / "output.txt").read_text("utf-8")[-2000:])
            return 1
        return _report(*outs)


def _git(*words: str) -> None:
    subprocess.run(["git", *words], cwd=ROOT, check=True)


def _start(tree: Path, out: Path, jobs: Sequence[str]) -> subprocess.Popen[bytes]:
    out.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    program = Path(__file__).parent / "jobs.py"
    with (out / "output.txt").open("wb") as output:
        return subprocess.Popen(
            [sys.executable, str(program), str(out), *jobs],
            cwd=out,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
        )


def _report(then: Path, now: Path) -> int:
    runs = sorted(path.parent.relative_to(then) for path in then.glob("*/metrics.jsonl"))
    num_different = 0
    for run in runs:
        found = list(differences(then / run, now / run))
        num_different += bool(found)
        print(f"{run}: {f'{len(found)} differences' if found else 'equal'}")
        for difference in found[:MAX_SHOWN]:
            print(f"  {difference}")
    print(f"{len(runs) - num_different} of {len(runs)} runs are equal")
    return int(num_different > 0 or not runs)


def differences(then: Path, now: Path) -> Iterator[str]:
    """Yields a line for everything that differs between two run folders, times left out."""
    ours, theirs = _contents(now), _contents(then)
    for name in sorted({*ours, *theirs}):
        if MAY_DIFFER.search(name):
            continue
        if name not in ours or name not in theirs:
            yield f"{name}: only {'now' if name in ours else 'then'}"
        elif ours[name] != theirs[name]:
            yield f"{name}: {str(theirs[name])[:80]} then, {str(ours[name])[:80]} now"


def _contents(run: Path) -> dict[str, Any]:
    """Returns everything in the run folder that is compared, by name."""
    found: dict[str, Any] = {}
    for line in (run / "metrics.jsonl").read_text("utf-8").splitlines():
        row = json.loads(line)
        found |= {f"{row['stage']} {row['step']}: {name}": repr(value) for name, value in row.items()}
    found |= {f"summary: {name}": repr(value) for name, value in _flat(json.loads((run / "summary.json").read_text()))}
    numbers: Counter[str] = Counter()
    for row in _recorded(run):
        place = f"{row['arm']} {row['step']}"
        numbers[place] += 1
        found |= {f"{place}, episode {numbers[place]}: {name}": row.get(name) for name in EPISODE}
    return found | {f"weights: {path.relative_to(run)}": path.read_bytes() for path in run.glob("*/*.safetensors")}


def _recorded(run: Path) -> Iterator[dict[str, Any]]:
    """Yields the episodes with tokens: rows of `trajectories.jsonl`, in runs of earlier commits of `recording/`."""
    for path in [run / "trajectories.jsonl", *sorted((run / "recording").glob("*.gz"))]:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as lines:
            yield from (row for row in map(json.loads, lines) if "segments" in row)


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(inner, f"{name}.{key}" if name else key)
    else:
        yield name, value
