"""The podcast recipe: memory, questions, demonstrations, control arms, and the arms of the evaluation with their metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

from midthought.checks.registry import Finding
from midthought.env.rewards import correct
from midthought.errors import SettingsError
from midthought.memory.search import SearchMode
from midthought.memory.transcripts import Transcript
from midthought.recipes.control_arms import RFT_ARMS, clean_arm
from midthought.recipes.evaluation import (
    EvaluationArm,
    Proofs,
    balanced_accuracy,
    call_rate,
    constant_guess,
    exact_match,
    factors,
    shuffled,
    with_interval,
)
from midthought.recipes.podcast.demonstrations import SHARES_OF_MADE_MODELS, Demonstrator, make_small_policy
from midthought.recipes.podcast.settings import PodcastConfig
from midthought.recipes.podcast.tasks import (
    PodcastData,
    PodcastTasks,
    instruction,
    prepare_data,
    read_recipe_transcripts,
)
from midthought.recipes.run import RecipeRun
from midthought.rollout.episode_source import EpisodeSource
from midthought.trainer.validation import ToolOff
from midthought.types import Trajectory

AFTER_ONLY = ("tool_off", "shuffled")
"""Arms that are not evaluated before training."""
RECALL_DEPTHS = (1, 3, 10)


@dataclass
class PodcastRun(RecipeRun):
    """One run of the podcast recipe."""

    config: PodcastConfig
    transcripts: tuple[Transcript, ...] = field(init=False)
    data: PodcastData = field(init=False)
    tasks: PodcastTasks = field(init=False)
    arms: list[EvaluationArm] = field(init=False)
    """The arms of the evaluation after training."""

    sft_section = "warmup"
    num_data_stages = 1
    control_arms = (*RFT_ARMS, clean_arm("warmup", {"habits": "clean"}))

    def prepare(self) -> None:
        if self.stage == "rl" and self.from_path is None and not self.resume:
            raise SettingsError("--stage rl needs a finished warm-up: give --from with a run folder or a checkpoint")
        self.transcripts = read_recipe_transcripts(self.config)
        self.data = prepare_data(self.config, self.transcripts, self.path)
        if self.stage != "sft":
            sampled, seed = self.config.evaluation.sampled, self.config.training.seed
            self.arms, left_out = arms(self.data, sampled=sampled, seed=seed)
            for reason in left_out:
                self.console.note(f"  Left out of the evaluation: {reason}")

    def make_tasks(self, config: PodcastConfig) -> PodcastTasks:  # type: ignore[override]
        return PodcastTasks(config, self.data)

    def build_data(self) -> None:
        with self.progress.timed("memory"), self.console.stage("Memory and questions", unit="texts embedded") as bar:
            report = self.data.build(self.path, bar.follow)
        self.folder.findings.append(
            Finding(
                "; ".join(each.doubts),
                "look at it with 'midthought memory inspect'",
                subject=str(each.path),
                check="doubtful transcript",
            ).to_dict()
            for each in self.transcripts
            if each.is_doubtful
        )
        tasks = self.data.tasks
        self.console.note(
            f"  {sum(map(len, self.data.chunks.values())):,} chunks of the episodes "
            f"({report.num_added:,} new); questions: {len(tasks['train']):,} for training, "
            f"{len(tasks['test']):,} that need the memory and {len(tasks['test_no_memory']):,} that do not for the test"
        )

    def make_policy(self) -> tuple[Any, Any]:
        return make_small_policy(self.config, self.data.chunks["train"], may_abstain=self.data.may_abstain)

    def demonstrations(self, config: PodcastConfig) -> Demonstrator:  # type: ignore[override]
        shares: dict[str, Any] = {} if self.is_given else SHARES_OF_MADE_MODELS
        return Demonstrator(
            chunks=self.data.chunks["train"],
            renderer=self.tasks.renderer,
            plan=self.data.plan,
            settings=config.warmup,
            num_results=config.memory.k,
            max_result_tokens=config.inference.max_result_tokens,
            instruction=instruction(config, may_abstain=self.data.may_abstain),
            own=self.data.with_evidence(self.data.tasks["train"]) if config.questions.path else (),
            names=self.data.names,
            seed=config.training.seed,
            **shares,
        )

    def evaluate(self, when: str, source: EpisodeSource) -> dict[str, Any]:
        chosen = [arm for arm in self.arms if when != "before" or arm.name not in AFTER_ONLY]
        is_first = when == "before" or self.stage == "evaluate"
        proofs = [self.data.proof(task) for arm in chosen if arm.name == "oracle" for task in arm.tasks]
        limit = self.config.inference.max_result_tokens
        if is_first and (num_cut := sum(self.tasks.renderer.truncate(proof, limit) != proof for proof in proofs)):
            what = f"is longer than inference.max_result_tokens={limit}; raise it, or the oracle shows only a part"
            self.console.note(f"  The evidence of {num_cut} of {len(proofs)} test questions {what}")
        return self.run_arms(when, source, chosen, arm_metrics) | (task_metrics(self.data) if is_first else {})


# -- evaluation ----------------------------------------------------------------------------------------------------


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


def arm_metrics(arm: EvaluationArm, done: Sequence[Trajectory]) -> dict[str, float]:
    """Returns exact match with its interval, under dotted keys without `before.` or `after.`; for the main arm and the arm
    without need, also the call rates and the factors."""
    metrics = with_interval(f"{arm.name}.exact_match".lstrip("."), exact_match(done, correct), len(done))
    if arm.name == "":
        calls = sum(trajectory.num_calls for trajectory in done)
        metrics |= {"call_rate_needed": call_rate(done), "calls_per_question": calls / len(done)}
        metrics |= {f"factors.{name}": value for name, value in factors(done, correct).items()}
        metrics |= balanced_accuracy(done, correct)
        for kind in sorted({str(t.task.labels["kind"]) for t in done if "kind" in t.task.labels}):
            of_kind = [t for t in done if t.task.labels.get("kind") == kind]
            metrics[f"exact_match_of.{kind}"] = exact_match(of_kind, correct)
    if arm.name == "sampled":
        metrics["sampled.call_rate_needed"] = call_rate(done)
    if arm.name == "no_memory":
        metrics["call_rate_needless"] = call_rate(done)
    return metrics


def task_metrics(data: PodcastData) -> dict[str, float]:
    """Returns metrics of the questions: accuracy of a constant guess, and how often a search for the quote finds the evidence."""
    tasks = data.tasks["test"]
    metrics: dict[str, float] = {"num_questions": len(tasks), "after.constant_guess": constant_guess(tasks)}
    quoted = [task for task in tasks if "quote" in task.labels and task.evidence]
    for mode in get_args(SearchMode) if quoted else ():
        searches = (data.store.search(str(task.labels["quote"]), max(RECALL_DEPTHS), mode) for task in quoted)
        found = [[hit.chunk_id for hit in hits] for hits in searches]
        for depth in RECALL_DEPTHS:
            hits = sum(not set(ids[:depth]).isdisjoint(task.evidence) for ids, task in zip(found, quoted, strict=True))
            metrics[f"retrieval.{mode}.recall@{depth}"] = hits / len(quoted)
    return metrics
