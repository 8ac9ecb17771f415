"""`midthought memory eval`: measures, files of questions, and the command."""

import csv
import json
import math

import numpy as np
import pytest

pytest.importorskip("lancedb", reason="the memory extra is not installed")

from midthought.errors import DataError, SettingsError
from midthought.memory.evaluation.evaluate import (
    all_at,
    evaluate,
    gains_of,
    ndcg_at,
    recall_at,
    reciprocal_rank,
    require_searchable,
)
from midthought.memory.evaluation.question_files import RetrievalQuestion, read_retrieval_questions
from midthought.memory.questions import write_questions
from midthought.memory.search import Hit
from midthought.types import Task


def test_measures_of_a_ranking_worked_by_hand():
    gains = [0, 1, 0, 1]  # two of three relevant items, at ranks 2 and 4
    assert (recall_at(gains, 3, 1), recall_at(gains, 3, 2), recall_at(gains, 3, 10)) == (0, 1 / 3, 2 / 3)
    assert (reciprocal_rank(gains, 10), reciprocal_rank(gains, 1), reciprocal_rank([], 10)) == (0.5, 0, 0)
    ideal = 1 + 1 / math.log2(3) + 1 / 2
    assert ndcg_at(gains, 3, 10) == pytest.approx((1 / math.log2(3) + 1 / math.log2(5)) / ideal)
    assert ndcg_at([1, 1, 0], 5, 2) == 1
    assert (all_at([1, 0, 1], 2, 3), all_at([1, 0, 1], 2, 2), all_at([2], 2, 1)) == (1, 0, 1)


def test_measures_equal_those_of_trec_eval():
    ir_measures = pytest.importorskip("ir_measures", reason="needs ir_measures: make test-all")
    rng = np.random.default_rng(0)
    for number in range(50):
        relevant = {f"d{one}" for one in rng.choice(30, size=rng.integers(1, 12), replace=False)}
        ranked = [f"d{one}" for one in rng.permutation(30)[: rng.integers(1, 25)]]
        gains = [int(name in relevant) for name in ranked]
        run = {"q": {name: float(-rank) for rank, name in enumerate(ranked)}}
        qrels = {"q": dict.fromkeys(relevant, 1)}
        measures = [ir_measures.nDCG @ 10, ir_measures.R @ 5, ir_measures.RR @ 10]
        expected = ir_measures.calc_aggregate(measures, qrels, run)
        assert expected[measures[0]] == pytest.approx(ndcg_at(gains, len(relevant), 10)), number
        assert expected[measures[1]] == pytest.approx(recall_at(gains, len(relevant), 5))
        assert expected[measures[2]] == pytest.approx(reciprocal_rank(gains, 10))


def hit(chunk_id, text=""):
    return Hit(chunk_id, "E", "Ann", text, "00:00:00", 1.0)


def test_a_hit_covers_a_passage_that_it_displays_and_each_passage_counts_once():
    question = RetrievalQuestion("?", ("Copper hand, café!", "no numerals", "  ?"), "passage")
    texts = ["A copper HAND", "the copper hand cafe and no numerals", "copper hand cafe", "no numeral"]
    assert gains_of([hit(f"a_{n}", text) for n, text in enumerate(texts)], question) == [0, 2, 0, 0]


def test_own_questions_are_read_from_every_form(tmp_path):
    rows = [
        {"question": "Which hand?", "chunk_ids": ["tide_0"], "kind": "quote", "episodes": ["The Tide Clock"]},
        {"question": "Which mitten?", "passages": ["a boy's mitten", "the beat"]},
        {"question": "Who sang?", "chunk_ids": []},
    ]
    expected = [
        RetrievalQuestion("Which hand?", ("tide_0",), "chunk", "quote", ("The Tide Clock",)),
        RetrievalQuestion("Which mitten?", ("a boy's mitten", "the beat"), "passage"),
        RetrievalQuestion("Who sang?", ()),
    ]
    (tmp_path / "q.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert read_retrieval_questions(tmp_path / "q.jsonl") == expected
    (tmp_path / "q.json").write_text(json.dumps(rows))
    assert read_retrieval_questions(tmp_path / "q.json", max_questions=2) == expected[:2]
    with (tmp_path / "q.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["question", "chunk_ids", "passages", "kind", "episodes"])
        writer.writerow(["Which hand?", "tide_0", "", "quote", "The Tide Clock"])
        writer.writerow(["Which mitten?", "", json.dumps(["a boy's mitten", "the beat"]), "", ""])
        writer.writerow(["Who sang?", "", "", "", ""])
    assert read_retrieval_questions(tmp_path / "q.csv") == expected
    made = Task(task_id="q:1", prompt="Who wound it?", answer="Bob", labels={"kind": "speaker"}, evidence=("tide_1",))
    write_questions([made], tmp_path / "made.jsonl")
    expected = [RetrievalQuestion("Who wound it?", ("tide_1",), "chunk", "speaker")]
    assert read_retrieval_questions(tmp_path / "made.jsonl") == expected


def test_a_file_of_another_form_or_for_another_memory_is_named_with_the_remedy(tmp_path, store):
    for line, words in (
        ("{", "q.jsonl, line 1: it is not JSON"),
        ('["x"]', "q.jsonl, line 1: it is not an object"),
        ('{"answer": "x"}', "q.jsonl, line 1: it has no question, only answer"),
        ('{"question": "x"}', 'q.jsonl, line 1: it has nothing that is relevant; write {"question"'),
        ('{"question": "x", "chunk_ids": ["a"], "passages": ["b"]}', "line 1: it has chunk_ids and passages"),
        ('{"question": "x", "chunk_ids": [1]}', "line 1: chunk_ids is [1], not a list of strings"),
        ('{"question": "x", "passages": "[1"}', "line 1: passages is not a JSON list"),
        ("", "it has no questions; write"),
    ):
        (tmp_path / "q.jsonl").write_text(line)
        with pytest.raises(DataError) as error:
            read_retrieval_questions(tmp_path / "q.jsonl")
        assert words in str(error.value) and "\n" not in str(error.value)
    lacks = r"the memory lacks 1 of the 2 chunks that are named, such as 'tide_77'; build it from"
    with pytest.raises(DataError, match=lacks):
        require_searchable(store, [RetrievalQuestion("x", ("tide_0", "tide_77"), "chunk")])


def test_questions_are_measured_by_kind_and_those_without_an_answer_are_left_out(store):
    questions = [
        RetrievalQuestion("a single copper hand", ("tide_0",), kind="quote"),
        RetrievalQuestion("herring scales", ("tide_0",), kind="wrong"),
        RetrievalQuestion("Who sang?", ()),
    ]
    found = evaluate(store, questions, (1, 10), "full_text")
    assert found.by_kind["quote"]["recall@1"] == found.by_kind["quote"]["nDCG@10"] == 1
    assert found.by_kind["wrong"]["recall@1"] == 0
    assert found.by_kind["all"]["recall@1"] == 0.5 and found.num_questions == {"quote": 1, "wrong": 1, "all": 2}
    assert found.num_without_answer == 1
    assert len(found.search_seconds) == 2 and not found.embed_seconds
    assert len(evaluate(store, questions, (1,)).embed_seconds) == 2
    for ks, asked in (((0,), questions), ((), questions), ((101,), questions), ((1,), questions[2:])):
        with pytest.raises(SettingsError):
            evaluate(store, asked, ks)


NO_ANSWER = {"question": "What does Bob say about hands?", "chunk_ids": ["tide_0"]}


def test_questions_without_an_answer_are_left_out_however_they_are_marked(
    tmp_path, store, monkeypatch, command, embedder
):
    monkeypatch.setattr("midthought.memory.connect.load_embedder", lambda *_, **__: embedder)
    rows = (
        {"question": "Which hand?", "chunk_ids": ["tide_0"], "kind": "quote"},
        NO_ANSWER | {"kind": "unanswerable"},
        NO_ANSWER | {"labels": {"kind": "unanswerable"}},
        NO_ANSWER | {"answer": "the memory does not say"},
    )
    (tmp_path / "q.jsonl").write_text("\n".join(map(json.dumps, rows)))
    code, said = command("memory", "eval", store.uri, tmp_path / "q.jsonl")
    assert code == 0 and "they have no answer in the memory: 3 questions" in said.out
    assert "unanswerable" not in said.out


def test_the_command_prints_a_table_or_json(tmp_path, store, monkeypatch, command, embedder):
    monkeypatch.setattr("midthought.memory.connect.load_embedder", lambda *_, **__: embedder)
    rows = {"question": "Which hand?", "passages": ["copper HAND"]}, {"question": "Who?", "passages": ["xyzzy"]}
    (tmp_path / "q.jsonl").write_text("\n".join(map(json.dumps, rows)))
    code, said = command("memory", "eval", store.uri, tmp_path / "q.jsonl", "--at", "1")
    assert code == 0 and "nDCG@1" in said.out and "MRR@1" in said.out and "search: p50" in said.out
    printed = json.loads(command("memory", "eval", store.uri, tmp_path / "q.jsonl", "--at", "1", "--json")[1].out)
    assert printed["kinds"]["questions"]["recall@1"] == 0.5
