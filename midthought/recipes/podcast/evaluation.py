"""Arms of the recipe's evaluation before and after training, and their metrics in `summary.json`."""

from __future__ import annotations

from collections.abc import Sequence

from midthought.memory.search import SearchMode
from midthought.recipes.arms import EvaluationArm, Proofs, shuffled
from midthought.recipes.metrics import (
    IsRight,
    balanced_accuracy,
    call_rate,
    calls_per_question,
    constant_guess,
    exact_match,
    factors,
    wilson_interval,
)
from midthought.recipes.podcast.tasks import PodcastData
from midthought.trainer.held_out import ToolOff
from midthought.types import Trajectory

AFTER_ONLY = ("tool_off", "shuffled")
"""Arms that are not evaluated before training."""
RECALL_DEPTHS = (1, 3, 10)
SEARCH_MODES: tuple[SearchMode, ...] = ("full_text", "vector", "hybrid")


def arms(data: PodcastData, *, sampled: bool, seed: int) -> tuple[list[EvaluationArm], list[str]]:
    """Returns the arms that the questions allow, and the reason for each missing arm.

    `oracle` and `shuffled` need a proof in the memory for every test question. `shuffled` also needs another question (from test,
    else from training or validation) with another answer.
    """
    tasks, left_out = data.tasks["test"], list[str]()
    found = [EvaluationArm("", tasks)]
    if sampled:
        found.append(EvaluationArm("sampled", tasks, temperature=1.0))
    if has_proofs := data.can_prove(tasks):
        found.append(EvaluationArm("oracle", tasks, Proofs(data.registry, data.proof)))
    else:
        left_out.append(
            "oracle and shuffled: not every test question names a chunk of this memory, with the words that it was made from, as "
            "its evidence; make the questions from this memory"
        )
    found.append(EvaluationArm("tool_off", tasks, ToolOff(data.registry)))
    if has_proofs:
        more = [task for part in ("train", "validation") for task in data.tasks[part] if data.can_prove([task])]
        try:
            instead = shuffled(tasks, data.proof, seed, more=more)
            found.append(EvaluationArm("shuffled", tasks, Proofs(data.registry, data.proof, instead)))
        except ValueError as error:
            left_out.append(f"shuffled: {error}")
    found.append(EvaluationArm("no_memory", data.tasks["test_no_memory"]))
    return found, left_out


def arm_metrics(arm: EvaluationArm, done: Sequence[Trajectory], is_right: IsRight) -> dict[str, float]:
    """Returns exact match with its interval, under dotted keys without `before.` or `after.`; for the main arm and the arm
    without need, also the call rates and the factors."""
    share = exact_match(done, is_right)
    low, high = wilson_interval(share, len(done))
    key = "sampled_exact_match" if arm.name == "sampled" else f"{arm.name}.exact_match".lstrip(".")
    metrics = {key: share, f"{key}.low": low, f"{key}.high": high}
    if arm.name == "":
        metrics |= {"call_rate_needed": call_rate(done), "calls_per_question": calls_per_question(done)}
        metrics |= {f"factors.{name}": value for name, value in factors(done, is_right).items()}
        metrics |= balanced_accuracy(done, is_right)
        for kind in sorted({str(t.task.labels["kind"]) for t in done if "kind" in t.task.labels}):
            of_kind = [t for t in done if t.task.labels.get("kind") == kind]
            metrics[f"exact_match_of.{kind}"] = exact_match(of_kind, is_right)
    if arm.name == "sampled":
        metrics["sampled_call_rate_needed"] = call_rate(done)
    if arm.name == "no_memory":
        metrics["call_rate_needless"] = call_rate(done)
    return metrics


def task_metrics(data: PodcastData) -> dict[str, float]:
    """Returns metrics of the questions: accuracy of a constant guess, and how often a search for the quote finds the evidence."""
    tasks = data.tasks["test"]
    metrics: dict[str, float] = {"num_questions": len(tasks), "after.constant_guess": constant_guess(tasks)}
    quoted = [task for task in tasks if "quote" in task.labels and task.evidence]
    for mode in SEARCH_MODES if quoted else ():
        found = [
            [hit.chunk_id for hit in data.store.search(str(task.labels["quote"]), max(RECALL_DEPTHS), mode)]
            for task in quoted
        ]
        for depth in RECALL_DEPTHS:
            hits = sum(not set(ids[:depth]).isdisjoint(task.evidence) for ids, task in zip(found, quoted, strict=True))
            metrics[f"retrieval.{mode}.recall@{depth}"] = hits / len(quoted)
    return metrics
