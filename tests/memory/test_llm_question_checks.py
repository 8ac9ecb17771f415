"""What a model's questions have to pass: kinds, measured difficulty, bad replies."""

import re
from collections import Counter

import pytest

pytest.importorskip("lancedb", reason="the memory extra is not installed")
pytest.importorskip("httpx", reason="needs httpx")

from chat_server import chat
from scholar import model_at

from midthought.data.abstention import NO_ANSWER, UNANSWERABLE, abstains
from midthought.errors import NoReplyError, SettingsError
from midthought.memory.llm_questions.episodes import GenerationPlan
from midthought.memory.llm_questions.generate import generate_questions
from midthought.memory.llm_questions.prompts import KINDS


def generated(scholar, talks, embedder, tmp_path, plan: GenerationPlan, **limits):
    return generate_questions(talks, model_at(scholar), embedder, tmp_path / "q.jsonl", plan, **limits)


def problems_of(report) -> set[str]:
    return {task.labels["verdict"]["problem"] for task in report.refused}


def test_kinds_are_balanced_and_some_questions_have_no_answer(scholar, talks, embedder, tmp_path):
    report = generated(scholar, talks, embedder, tmp_path, GenerationPlan(num_pairs=5))
    kinds = Counter(task.labels["kind"] for task in report.accepted)
    assert kinds == dict.fromkeys(KINDS, 2)
    for task in report.accepted:
        is_unanswerable = task.labels["kind"] == UNANSWERABLE
        assert abstains(task.answer) == is_unanswerable and ("I don't know." in task.aliases) == is_unanswerable
    few = generated(scholar, talks, embedder, tmp_path, GenerationPlan(num_pairs=2, kinds=("reason", UNANSWERABLE)))
    assert Counter(task.labels["kind"] for task in few.accepted) == {"reason": 2, UNANSWERABLE: 2}


def test_difficulty_is_measured_with_and_without_the_memory(scholar, talks, embedder, tmp_path):
    plan = GenerationPlan(num_pairs=1, num_rounds=1, num_samples=2)
    scholar.changes = {"question": "Copper hand: who wound it?"}  # a search for it finds both parts
    report = generated(scholar, talks, embedder, tmp_path, plan, only="tide")
    assert report.to_dict()["questions"]["relation"] == {
        "num_questions": 1, "right_with_memory": 1.0, "right_without_memory": 0.0,
    }  # fmt: skip
    scholar.guesses_blind = True
    report = generated(scholar, talks, embedder, tmp_path, plan)
    assert problems_of(report) == {"it is often answered right without any memory"}
    assert {task.labels["verdict"]["right_without_memory"] for task in report.refused} == {1.0}


def test_bad_pairs_and_bad_replies_are_counted_by_reason(scholar, talks, embedder, tmp_path):
    plan = GenerationPlan(num_pairs=1, num_rounds=1)
    for changes, reason in (
        ({"kind": "gossip"}, "its kind was not requested"),
        ({"evidence": [-1, 99]}, "it names fewer than two parts of the talk"),
        ({"answer": NO_ANSWER}, "its answer does not fit its kind"),
        ({"kind": ""}, None),  # the next kind that was requested
    ):
        scholar.changes = changes
        report = generated(scholar, talks, embedder, tmp_path, plan, only="tide")
        assert report.refusals == ({reason: 1} if reason else {})
    scholar.changes = {}
    scholar.upsets = [chat("I would rather not."), chat('{"qa_pairs": 3}')]
    report = generated(scholar, talks, embedder, tmp_path, plan, only="tide")
    assert report.bad_replies == {"holds no JSON object": 1, "does not fit": 1} and len(report.accepted) == 1
    scholar.upsets = [chat('{"qa_', "length")] * 3
    with pytest.raises(NoReplyError, match="no question was generated; tide: 3 replies were invalid"):
        generated(scholar, talks, embedder, tmp_path, plan, only="tide")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_pairs": 0}, "num_pairs must be at least 1"),
        ({"num_pairs": 1, "kinds": ("chang",)}, "unknown kind of question 'chang'. Did you mean 'change'"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(values, message):
    with pytest.raises(SettingsError, match=re.escape(message)):
        GenerationPlan(**values)
