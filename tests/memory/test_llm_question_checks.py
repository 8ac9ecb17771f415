"""What a model's questions have to pass: kinds, two episodes, other words, the rubric, measured difficulty, bad replies."""

import json
import re
from collections import Counter

import pytest

pytest.importorskip("lancedb", reason="the memory extra is not installed")
pytest.importorskip("httpx", reason="needs httpx")

from scholar import chat, model_at

from midthought.data.abstention import NO_ANSWER, UNANSWERABLE, abstains
from midthought.errors import NoReplyError, SettingsError
from midthought.memory.llm_questions.episodes import GenerationPlan
from midthought.memory.llm_questions.generate import generate_questions
from midthought.memory.llm_questions.prompts import ACROSS_KINDS, EPISODE_KINDS, RUBRIC


def generated(scholar, talks, embedder, tmp_path, plan: GenerationPlan, **limits):
    return generate_questions(talks, model_at(scholar), embedder, tmp_path / "q.jsonl", plan, **limits)


def problems_of(report) -> set[str]:
    return {task.labels["verdict"]["problem"] for task in report.refused}


def test_kinds_are_balanced_and_some_questions_have_no_answer(scholar, talks, embedder, tmp_path):
    report = generated(scholar, talks, embedder, tmp_path, GenerationPlan(num_pairs=5))
    kinds = Counter(task.labels["kind"] for task in report.accepted)
    assert kinds == {**dict.fromkeys(EPISODE_KINDS, 2), UNANSWERABLE: 2}
    for task in report.accepted:
        is_unanswerable = task.labels["kind"] == UNANSWERABLE
        assert abstains(task.answer) == is_unanswerable and ("I don't know." in task.aliases) == is_unanswerable
    few = generated(scholar, talks, embedder, tmp_path, GenerationPlan(num_pairs=2, kinds=("reason", UNANSWERABLE)))
    assert Counter(task.labels["kind"] for task in few.accepted) == {"reason": 2, UNANSWERABLE: 2}


def test_questions_across_episodes_have_evidence_in_both_and_need_both(scholar, talks, embedder, tmp_path):
    plan = GenerationPlan(num_pairs=0, num_across=8, num_samples=0)
    report = generated(scholar, talks, embedder, tmp_path, plan)
    assert Counter(task.labels["kind"] for task in report.accepted) == dict.fromkeys((*ACROSS_KINDS, UNANSWERABLE), 2)
    for task in report.accepted:
        assert {chunk_id.rpartition("_")[0] for chunk_id in task.evidence} == {"tide", "bell"}
        assert task.labels["episode"] == "bell+tide"
        assert task.labels["verdict"]["with_one_episode"] is (None if task.labels["kind"] == UNANSWERABLE else False)
    again = generated(scholar, talks, embedder, tmp_path, plan)
    assert [task.prompt for task in again.accepted] == [task.prompt for task in report.accepted]
    # an answer that one episode gives, or evidence in one episode, does not need both
    plan = GenerationPlan(num_pairs=0, num_across=1, num_samples=0, num_rounds=1)
    scholar.changes = {"answer": "bronze"}
    assert problems_of(generated(scholar, talks, embedder, tmp_path, plan)) == {"it can be answered from one episode"}
    scholar.changes = {"evidence": [0, 1]}
    assert problems_of(generated(scholar, talks, embedder, tmp_path, plan)) == {"its evidence is in one episode"}


def test_a_memory_of_one_episode_has_no_questions_across_episodes(scholar, talks, embedder, tmp_path):
    with pytest.raises(SettingsError, match="questions across episodes need two episodes, not 1"):
        generated(scholar, talks, embedder, tmp_path, GenerationPlan(num_pairs=1, num_across=1), only="tide")


def test_a_question_in_the_words_of_its_passage_is_worded_again_or_refused(scholar, talks, embedder, tmp_path):
    plan = GenerationPlan(num_pairs=1, num_rounds=1, num_samples=0)
    scholar.changes = {"question": "Why has the clock one copper hand only?"}
    scholar.rewordings = ["Why does the clock have one copper hand?", "What is odd about the pointer?"]
    report = generated(scholar, talks, embedder, tmp_path, plan, only="tide")
    assert [task.prompt for task in report.accepted] == ["What is odd about the pointer?"]
    avoid = [json.loads(body["messages"][1]["content"]).get("avoid") for body in scholar.requests]
    assert avoid.count(["clock copper hand"]) == 2  # of the question, and of the first attempt
    scholar.rewordings = ["Why has the clock one copper hand?"] * 2
    report = generated(scholar, talks, embedder, tmp_path, plan, only="tide")
    assert report.refusals == {"it repeats its passages": 1} and not report.accepted


def test_the_rubric_decides_and_is_recorded(scholar, talks, embedder, tmp_path):
    plan = GenerationPlan(num_pairs=1, num_rounds=1)
    report = generated(scholar, talks, embedder, tmp_path, plan)
    verdict = report.accepted[0].labels["verdict"]
    assert verdict["rubric"] == dict.fromkeys(RUBRIC, True) and verdict["rubric_reason"] == "It reads well."
    written = json.loads((tmp_path / "q.report.json").read_text())
    assert written["rubric"] == dict(RUBRIC) and written["judged"]["sensible"] == 1.0 and written["model"] == "m"
    scholar.fails = "sensible"
    report = generated(scholar, talks, embedder, tmp_path, plan)
    assert problems_of(report) == {"the judge says it is not sensible"} and report.share_passed("sensible") == 0.0
    assert report.share_passed("fluent") == 1.0


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
        ({"num_pairs": -1}, "num_pairs must be at least 0"),
        ({"num_pairs": 0}, "nothing is to be asked"),
        ({"num_pairs": 1, "kinds": ("chang",)}, "unknown kind of question 'chang'. Did you mean 'change'"),
        ({"num_pairs": 1, "kinds": ("bridge",)}, "num_pairs is 1, but kinds has none of relation"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(values, message):
    with pytest.raises(SettingsError, match=re.escape(message)):
        GenerationPlan(**values)
