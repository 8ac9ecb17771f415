"""`midthought memory eval`: measures, own questions, published sets in small files of the same form, and the command."""

import csv
import json
import math

import numpy as np
import pytest

pytest.importorskip("lancedb", reason="the memory extra is not installed")

from midthought.errors import DataError, MemoryStoreError, SettingsError
from midthought.memory.evaluation.evaluate import (
    all_at,
    evaluate,
    gains_of,
    ndcg_at,
    recall_at,
    reciprocal_rank,
    require_searchable,
)
from midthought.memory.evaluation.published_sets import read_question_set
from midthought.memory.evaluation.question_files import RetrievalQuestion
from midthought.memory.questions import write_questions
from midthought.memory.search import Hit
from midthought.memory.splitting import Chunking
from midthought.memory.store import MemoryStore
from midthought.types import Task


def session(prefix, *texts):
    return [{"speaker": "Ann" if number % 2 else "Bob", "dia_id": f"{prefix}:{number}", "text": text}
            for number, text in enumerate(texts, 1)]  # fmt: skip


LOCOMO = [
    {
        "sample_id": f"conv-{number}",
        "conversation": {
            "speaker_a": "Ann", "speaker_b": "Bob",
            "session_1_date_time": "1:56 pm on 8 May, 2023",
            "session_1": session("D1", "My heron has a copper beak.", f"Ours at the {place} has none."),
            "session_2_date_time": "2:00 pm on 9 May, 2023",
            "session_2": [*session("D2", "The mill lost its wheel."),
                          {"speaker": "Bob", "dia_id": "D2:2", "text": "Look.", "img_url": ["x"], "blip_caption": "a millstone"}],
        },
        "qa": [
            {"question": f"What has none at the {place}?", "answer": "the heron", "evidence": ["D1:2"], "category": 4},
            {"question": "Which millstone did Bob share?", "answer": "this", "evidence": ["D2:2; D1:2"], "category": 1},
            {"question": "Who sang?", "adversarial_answer": "Ann", "evidence": ["D1:1"], "category": 5},
        ],
    }
    for number, place in ((26, "quay"), (30, "weir"))
]  # fmt: skip


def turn(role, content, **more):
    return {"role": role, "content": content} | more


LONGMEMEVAL = [
    {
        "question_id": "e47b", "question_type": "single-session-user", "question": "Where did I buy the brass bell?",
        "answer": "Ghent", "question_date": "2023/05/30 (Tue) 10:00",
        "haystack_dates": ["2023/05/20 (Sat) 02:21"] * 2, "haystack_session_ids": ["answer_1", "sharegpt_2"],
        "haystack_sessions": [[turn("user", "I bought a brass bell in Ghent.", has_answer=True), turn("assistant", "Lovely.")],
                              [turn("user", "How long do I boil an egg?"), turn("assistant", "Six minutes.")]],
        "answer_session_ids": ["answer_1"],
    },
    {
        "question_id": "e48_abs", "question_type": "multi-session", "question": "Where did I buy the gong?", "answer": "nowhere",
        "question_date": "2023/05/30 (Tue) 10:00", "haystack_dates": ["2023/05/20 (Sat) 02:21"],
        "haystack_session_ids": ["sharegpt_2"], "answer_session_ids": ["sharegpt_2"],
        "haystack_sessions": [[turn("user", "Other words under the same id.")]],
    },
]  # fmt: skip


def document(docid, text):
    return {"docid": docid, "text": text, "url": f"https://example.org/{docid}"}


BROWSECOMP_PLUS = [
    {
        "query_id": "7", "query": "Which lighthouse keeper wrote a cookbook?", "answer": "Ida",
        "gold_docs": [document("11", "Ida kept the lighthouse and wrote a cookbook.\n\nIt sold well.")],
        "evidence_docs": [document("11", "Ida kept the lighthouse and wrote a cookbook.\n\nIt sold well."),
                          document("12", "Ida was born in Ostend.")],
        "negative_docs": [document("13", "A cookbook of eels."), document("14", " ")],
    }
]  # fmt: skip
SETS = {"LoCoMo": (LOCOMO, "locomo10.json"), "LongMemEval": (LONGMEMEVAL, "longmemeval_s.json"),
        "BrowseComp-Plus": (BROWSECOMP_PLUS, "browsecomp_plus_decrypted.jsonl")}  # fmt: skip


def written(folder, name):
    rows, file_name = SETS[name]
    path = folder / file_name
    lines = (json.dumps(row) for row in rows)
    path.write_text("\n".join(lines) if path.suffix == ".jsonl" else json.dumps(rows))
    return path


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


def test_hits_of_one_transcript_are_one_rank():
    question = RetrievalQuestion("?", ("a_1", "b"), "transcript")
    hits = [hit("c_0"), hit("c_1"), hit("a_1_0"), hit("a_1_4"), hit("b_9"), hit("b_1_9")]
    assert gains_of(hits, question) == [0, 1, 1, 0]


def test_own_questions_are_read_from_every_form(tmp_path):
    rows = [
        {"question": "Which hand?", "chunk_ids": ["tide_0"], "kind": "quote", "episodes": ["The Tide Clock"]},
        {"question": "Which mitten?", "passages": ["a boy's mitten", "the beat"]},
        {"question": "Who sang?", "chunk_ids": []},
    ]
    expected = (
        RetrievalQuestion("Which hand?", ("tide_0",), "chunk", "quote", ("The Tide Clock",)),
        RetrievalQuestion("Which mitten?", ("a boy's mitten", "the beat"), "passage"),
        RetrievalQuestion("Who sang?", ()),
    )
    (tmp_path / "q.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert read_question_set(tmp_path / "q.jsonl").questions == expected
    (tmp_path / "q.json").write_text(json.dumps(rows))
    assert read_question_set(tmp_path / "q.json", max_questions=2).questions == expected[:2]
    with (tmp_path / "q.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["question", "chunk_ids", "passages", "kind", "episodes"])
        writer.writerow(["Which hand?", "tide_0", "", "quote", "The Tide Clock"])
        writer.writerow(["Which mitten?", "", json.dumps(["a boy's mitten", "the beat"]), "", ""])
        writer.writerow(["Who sang?", "", "", "", ""])
    assert read_question_set(tmp_path / "q.csv").questions == expected
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as parquet

    parquet.write_table(
        pa.Table.from_pylist([{"passages": None, "kind": None} | row for row in rows]), tmp_path / "q.parquet"
    )
    assert read_question_set(tmp_path / "q.parquet").questions[0] == expected[0]
    made = Task(task_id="q:1", prompt="Who wound it?", answer="Bob", labels={"kind": "speaker"}, evidence=("tide_1",))
    write_questions([made], tmp_path / "made.jsonl")
    expected = (RetrievalQuestion("Who wound it?", ("tide_1",), "chunk", "speaker"),)
    assert read_question_set(tmp_path / "made.jsonl").questions == expected


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "q.jsonl, line 1: it is not JSON"),
        ('["x"]', "q.jsonl, line 1: it is not an object"),
        ('{"answer": "x"}', "q.jsonl, line 1: it has no question, only answer"),
        ('{"question": "x"}', 'q.jsonl, line 1: it has nothing that is relevant; write {"question"'),
        ('{"question": "x", "chunk_ids": ["a"], "passages": ["b"]}', "line 1: it has chunk_ids and passages"),
        ('{"question": "x", "chunk_ids": [1]}', "line 1: chunk_ids is [1], not a list of strings"),
        ('{"question": "x", "passages": "[1"}', "line 1: passages is not a JSON list"),
        ('{"conversation": {}, "qa": []}', "line 1: it is not a row of LoCoMo (KeyError: 'sample_id'); give the published"),
        ('{"question": "x", "haystack_sessions": 3, "haystack_session_ids": [1]}', "it is not a row of LongMemEval"),
        ('{"query": "x", "evidence_docs": ["x"]}', "it is not a row of BrowseComp-Plus"),
        ('{"query": "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVo=", "evidence_docs": ["x"]}', "decrypt it with decrypt_dataset.py"),
        ("", "it has no questions; write"),
    ],
)  # fmt: skip
def test_a_file_of_another_form_is_named_with_the_row_and_the_remedy(tmp_path, line, words):
    (tmp_path / "q.jsonl").write_text(line)
    with pytest.raises(DataError) as error:
        read_question_set(tmp_path / "q.jsonl")
    assert words in str(error.value) and "\n" not in str(error.value)


def test_locomo_is_read_by_session_and_by_turn(tmp_path):
    read = read_question_set(written(tmp_path, "LoCoMo"))
    assert [each.stem for each in read.transcripts] == ["conv-26:D1", "conv-26:D2", "conv-30:D1", "conv-30:D2"]
    first, second, third = read.questions[:3]
    episodes = ("conv-26, session 1, 1:56 pm on 8 May, 2023", "conv-26, session 2, 2:00 pm on 9 May, 2023")
    assert first == RetrievalQuestion(
        "What has none at the quay?", ("conv-26:D1",), "transcript", "single-hop", episodes
    )
    assert (second.relevant, second.kind, third.relevant) == (("conv-26:D2", "conv-26:D1"), "multi-hop", ())
    by_turn = read_question_set(tmp_path / "locomo10.json", "turn")
    assert by_turn.questions[1].relevant == ("conv-26:D2:2", "conv-26:D1:2")
    spoken = {each.stem: each.turns[0] for each in by_turn.transcripts}
    assert (spoken["conv-26:D2:2"].speaker, spoken["conv-26:D2:2"].text) == ("Bob", "Look. [shares a millstone]")
    with pytest.raises(SettingsError, match="level 'turns' is not known"):
        read_question_set(tmp_path / "locomo10.json", "turns")


def test_longmemeval_is_read_by_session_and_by_turn(tmp_path):
    read = read_question_set(written(tmp_path, "LongMemEval"))
    assert [each.stem for each in read.transcripts] == ["answer_1", "sharegpt_2", "sharegpt_2~1"]
    first, abstention = read.questions
    assert (first.relevant, first.kind, first.episodes) == (
        ("answer_1",),
        "single-session-user",
        ("answer_1", "sharegpt_2"),
    )
    assert (abstention.relevant, abstention.episodes) == ((), ("sharegpt_2~1",))
    by_turn = read_question_set(tmp_path / "longmemeval_s.json", "turn")
    assert by_turn.questions[0].relevant == ("answer_1_1",) and len(by_turn.transcripts) == 5


def test_browsecomp_plus_is_read_with_all_documents_of_the_file(tmp_path):
    read = read_question_set(written(tmp_path, "BrowseComp-Plus"))
    assert [each.stem for each in read.transcripts] == ["11", "12", "13"]  # an empty document has no chunk
    assert read.questions == (RetrievalQuestion(BROWSECOMP_PLUS[0]["query"], ("11", "12"), "transcript"),)
    assert read.transcripts[0].turns[0].text.endswith("cookbook. It sold well.")


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


def test_chunks_that_the_memory_lacks_are_named(tmp_path, store):
    (tmp_path / "q.jsonl").write_text('{"question": "x", "chunk_ids": ["tide_0", "tide_77"]}')
    with pytest.raises(
        DataError, match=r"the memory lacks 1 of the 2 chunks that are named, such as 'tide_77'; build it from"
    ):
        require_searchable(store, read_question_set(tmp_path / "q.jsonl"), Chunking())
    with pytest.raises(MemoryStoreError, match=r"LoCoMo: the memory lacks 4 of the 4 .* give the path of a new memory"):
        require_searchable(store, read_question_set(written(tmp_path, "LoCoMo")), Chunking())


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("level", ["session", "turn"])
def test_the_command_builds_the_memory_of_a_published_set_and_prints_its_figures(
    tmp_path, monkeypatch, command, embedder, name, level
):
    monkeypatch.setattr("midthought.memory.connect.load_embedder", lambda *_, **__: embedder)
    for _ in range(2):  # built, then found
        code, said = command("memory", "eval", tmp_path / "memory", written(tmp_path, name), "--level", level, "--json")
        assert code == 0
    printed = json.loads(said.out)
    assert printed["set"] == name and printed["num_without_answer"] == {"LoCoMo": 2, "LongMemEval": 1}.get(name, 0)
    figures = list(printed["kinds"].values())[-1]
    assert figures["recall@10"] == 1 and figures["nDCG@10"] > 0.6 and 0 < figures["MRR@10"] <= 1
    assert 0 < printed["search_ms"]["p50"] <= printed["search_ms"]["p95"] and printed["embed_ms"]["p50"] > 0
    assert len(MemoryStore.open(tmp_path / "memory")) > 0


def test_the_command_prints_a_table_for_own_questions(tmp_path, store, monkeypatch, command, embedder):
    monkeypatch.setattr("midthought.memory.connect.load_embedder", lambda *_, **__: embedder)
    (tmp_path / "q.csv").write_text("question,passages\nWhich hand?,single copper hand\n")
    code, said = command("memory", "eval", store.uri, tmp_path / "q.csv", "--at", "1,5")
    assert code == 0 and "nDCG@5" in said.out and "MRR@5" in said.out and "search: p50" in said.out
    code, said = command("memory", "eval", store.uri, tmp_path / "q.csv", "--at", "one")
    assert code == 2 and "--at 'one': write ranks from 1 to 100" in said.err


NO_ANSWER = {"question": "What does Bob say about hands?", "chunk_ids": ["tide_0"]}


@pytest.mark.parametrize(
    "without_answer",
    [
        NO_ANSWER | {"kind": "unanswerable"},
        NO_ANSWER | {"labels": {"kind": "unanswerable"}},
        NO_ANSWER | {"answer": "the memory does not say"},
        {"question": "Who sang?", "answer": "The memory does not say."},
    ],
)
def test_questions_without_an_answer_are_left_out_however_they_are_marked(
    tmp_path, store, monkeypatch, command, embedder, without_answer
):
    monkeypatch.setattr("midthought.memory.connect.load_embedder", lambda *_, **__: embedder)
    rows = {"question": "Which hand?", "chunk_ids": ["tide_0"], "kind": "quote"}, without_answer
    (tmp_path / "q.jsonl").write_text("\n".join(map(json.dumps, rows)))
    code, said = command("memory", "eval", store.uri, tmp_path / "q.jsonl")
    assert code == 0 and "they have no answer in the memory: 1 questions" in said.out
    assert "unanswerable" not in said.out


def test_a_passage_that_no_chunk_displays_is_counted_and_named(tmp_path, store, monkeypatch, command, embedder):
    monkeypatch.setattr("midthought.memory.connect.load_embedder", lambda *_, **__: embedder)
    rows = (
        {"question": "Who?", "passages": ["xyzzy plugh foo"]},
        {"question": "Which hand?", "passages": ["copper HAND"]},
        {"question": "Which hand there?", "passages": ["copper hand"], "episodes": ["The Mill"]},
        {"question": "What is unlike it?", "passages": ["a boy's mitten"]},
    )
    (tmp_path / "q.jsonl").write_text("\n".join(map(json.dumps, rows)))
    code, said = command("memory", "eval", store.uri, tmp_path / "q.jsonl", "--at", "1")
    assert code == 0 and "no chunk displays their passage: 2 questions, such as 'xyzzy plugh foo' of 'Who?'" in said.out
    printed = json.loads(command("memory", "eval", store.uri, tmp_path / "q.jsonl", "--at", "1", "--json")[1].out)
    assert printed["unfindable"] == ["'xyzzy plugh foo' of 'Who?'", "'copper hand' of 'Which hand there?'"]
