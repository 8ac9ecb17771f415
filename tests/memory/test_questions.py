"""Questions from the sample episodes: balanced, each quote unique, each answer proven by the chunk that is named."""

import json
import random
from collections import Counter
from importlib import resources
from typing import Any

import pytest
from episodes import episode

from midthought.data.final_answers import NO_ANSWER
from midthought.env.answers import task_is_right
from midthought.errors import SettingsError, TranscriptError
from midthought.memory.build import chunk_all
from midthought.memory.chunks import Chunk, words_digest
from midthought.memory.questions import (
    MAX_CONTINUATION_WORDS,
    WORDINGS,
    QuestionPlan,
    make_questions,
    one_speaker_chunks,
    quote_and_answer,
    read_questions,
    split_episodes,
    with_windows,
    write_questions,
)
from midthought.memory.splitting import Chunking
from midthought.memory.tool import format_chunk
from midthought.memory.transcripts import read_transcripts
from midthought.recipes.podcast.settings import PodcastConfig
from midthought.recipes.podcast.tasks import prepare_data
from midthought.recipes.podcast.train import arms
from midthought.types import Task

SAMPLE = str(resources.files("midthought.recipes.podcast") / "sample")


def plan_of(num_questions: int, **changes: Any) -> QuestionPlan:
    values = {"needless_share": 0.3, "distractor_share": 0.5, "min_quote_words": 8, "max_quote_words": 10}
    return QuestionPlan(num_questions, **values | changes)


PLAN = plan_of(600)


@pytest.fixture(scope="module")
def memory() -> list[Chunk]:
    return chunk_all(read_transcripts(SAMPLE).require_all())


@pytest.fixture(scope="module")
def part(memory) -> list[Chunk]:
    return split_episodes(memory, 4, 1, seed=0)["test"]


@pytest.fixture(scope="module")
def tasks(memory, part) -> list[Task]:
    return make_questions(part, PLAN, 0, memory=memory)


def words(text: str) -> str:
    letters = "".join(character if character.isalnum() or character == "_" else " " for character in text.lower())
    return f" {' '.join(letters.split())} "


def test_each_quote_occurs_once_and_its_chunk_proves_the_answer(memory, tasks):
    by_id, text = {chunk.chunk_id: chunk for chunk in memory}, "\n".join(words(chunk.transcript) for chunk in memory)
    assert len(tasks) == len({task.labels["quote"] for task in tasks}) == len({task.task_id for task in tasks}) == 600
    assert set(Counter(task.labels["kind"] for task in tasks).values()) == {200}
    for task in tasks:
        quote, kind, chunk = task.labels["quote"], task.labels["kind"], by_id[task.evidence[0]]
        assert task.prompt.endswith(WORDINGS[kind].format(quote=quote))
        assert 8 <= len(quote.split()) <= 10 and '"' not in quote and quote[0].isalnum() and quote[-1].isalnum()
        assert len(task.evidence) == 1 and quote in chunk.transcript and text.count(words(quote)) == 1
        assert task.answer in format_chunk(chunk) and chunk.stem == task.labels["episode"]
        if kind == "continuation":
            _, found, after = chunk.transcript.partition(quote)
            assert found and words(after) == words(task.answer) and chunk.transcript.endswith(task.answer)
            assert 2 <= len(task.answer.split()) <= MAX_CONTINUATION_WORDS
        else:
            assert task.answer == {"speaker": chunk.speaker, "episode": chunk.episode}[kind]


def test_answers_are_balanced_so_that_a_constant_guess_is_poor(part, tasks):
    for kind, possible in (("episode", {c.episode for c in part}), ("speaker", {c.speaker for c in part})):
        counts = Counter(task.answer for task in tasks if task.labels["kind"] == kind)
        assert counts.keys() == possible and max(counts.values()) <= 1.5 * counts.total() / len(possible)


def test_the_prompts_of_a_share_hold_the_proof_and_notes_of_the_others_do_not_help(memory, tasks):
    by_id = {chunk.chunk_id: chunk for chunk in memory}
    needed = [task for task in tasks if task.labels["needs_memory"]]
    assert len(needed) == 420
    assert 0.4 < sum(task.prompt.startswith("Note: ") for task in needed) / len(needed) < 0.6
    for task in tasks:
        if task.labels["needs_memory"]:
            assert task.answer not in task.prompt
            assert words(task.prompt).count(words(task.labels["quote"])[:-1]) == 1
        else:
            note = task.prompt.partition("\n")[0]
            assert note == f"Note: {format_chunk(by_id[task.evidence[0]])}" and task.answer in note


def test_the_same_seed_gives_the_same_questions_and_another_seed_others(memory, part, tasks):
    assert make_questions(part, PLAN, 0, memory=memory) == tasks
    assert make_questions(part, PLAN, 1, memory=memory) != tasks


def test_a_plan_chooses_the_kinds_and_how_many_need_the_memory(memory, part):
    made = make_questions(part, plan_of(20, kinds=("episode",)), 0, memory=memory)
    assert {task.labels["kind"] for task in made} == {"episode"} and len(made) == 20
    for share, number in ((0.0, 0), (1.0, 60)):
        made = make_questions(part, plan_of(60, needless_share=share), 0, memory=memory)
        assert sum(not task.labels["needs_memory"] for task in made) == number
    of_one_episode = [chunk for chunk in memory if chunk.stem == memory[0].stem]
    plan = plan_of(20, needless_share=0, distractor_share=1, kinds=("episode",))
    made = make_questions(of_one_episode, plan, 0, memory=memory)
    assert not any("Note" in task.prompt for task in made), "every note would give the answer"


def test_a_quote_that_the_memory_holds_twice_or_a_chunk_that_is_too_short_is_not_asked_about():
    twins = episode("e", ["the tide clock has one copper hand and no numerals at all on it"] * 2)
    assert make_questions(twins, plan_of(9), 0, memory=twins) == []
    assert make_questions(twins[:1], plan_of(9), 0, memory=twins[:1]) != []
    again = [*twins[:1], *episode("f", ["the tide clock has one copper hand and no", "numerals at all on it"])]
    assert make_questions(twins[:1], plan_of(9), 0, memory=again) == [], "cut elsewhere, the words are the same"
    named = episode("e", ["Hello, my name is Ann Lee and I am the keeper of it"], speaker="Ann Lee")
    quotes = [task.labels["quote"] for task in make_questions(named, plan_of(9, kinds=("speaker",)), 0, memory=named)]
    assert not any("Ann Lee" in quote for quote in quotes), "the question states its answer"
    for speaker in ("🙂", "A"):
        said = episode("e", ["Hello, my name is a drawing and I keep the clock"], speaker=speaker)
        assert make_questions(said, plan_of(1, kinds=("speaker",)), 0, memory=said), "a label that is a word"
    short = episode("e", ["seven words are not enough for it"])
    assert make_questions(short, plan_of(9), 0, memory=short) == []
    assert all(quote_and_answer(short[0], kind, PLAN, random.Random(0)) is None for kind in WORDINGS)


def test_scripts_without_blanks_between_words_are_asked_about():
    said = "今天我们来谈谈人工智能的未来，以及它对普通人生活的影响。我觉得最重要的问题是教育。"
    chunk = Chunk("e_0", "E", "e", "王小明", said, "00:00:00", 0)
    plan = plan_of(9, kinds=("speaker", "continuation"))
    made = make_questions([chunk], plan, 0, memory=[chunk])
    assert {task.labels["kind"] for task in made} == {"speaker", "continuation"}
    for task in made:
        assert 14 <= len(task.labels["quote"]) <= 24 and task.labels["quote"] in said
        assert task.answer == "王小明" or said.endswith(task.answer)
    assert make_questions([chunk], plan, 0, memory=[chunk, *episode("f", [f"好{said}"])]) == []


def test_quotes_of_windows_are_of_one_speaker_and_every_word_is_taken_once():
    transcripts = read_transcripts(SAMPLE).require_all()
    said = {
        turn.speaker: words(" ".join(other.text for other in each.turns if other.speaker == turn.speaker))
        for each in transcripts
        for turn in each.turns
        if turn.speaker != "Ines Marlowe"  # she is in all episodes
    }
    windows = chunk_all(transcripts, Chunking("windows"))
    pieces = one_speaker_chunks(windows)
    num_words = sum(len(turn.text.split()) for each in transcripts for turn in each.turns)
    assert sum(len(piece.transcript.split()) for piece in pieces) == num_words
    assert max(len(piece.transcript.split()) for piece in pieces) <= 18
    assert all(words(piece.transcript) in said[piece.speaker] for piece in pieces if piece.speaker in said)
    turns = chunk_all(transcripts, 18)
    assert one_speaker_chunks(turns) == turns
    window = Chunk("e_0", "E", "e", "A, B", "One. Two.", "00:00:01", 0, ((0, "A"), (1, "B")), "", ((1, "00:01:00"),))
    found = [(piece.speaker, piece.transcript, piece.time) for piece in one_speaker_chunks([window])]
    assert found == [("A", "One.", "00:00:01"), ("B", "Two.", "00:01:00")]
    made = with_windows(make_questions(pieces, plan_of(200), 0, memory=pieces), windows)
    shown = {window.chunk_id: window for window in windows}
    assert len(made) > 190
    assert all(task.labels["quote"] in shown[each].transcript for task in made for each in task.evidence)


def test_an_episode_is_wholly_in_one_part_and_no_chunk_is_lost(memory):
    parts = split_episodes(memory, 4, 2, seed=3)
    stems = {name: {chunk.stem for chunk in chunks} for name, chunks in parts.items()}
    assert [len(stems[name]) for name in ("train", "validation", "test")] == [6, 2, 4]
    assert len(set().union(*stems.values())) == 12
    kept = [chunk.chunk_id for chunks in parts.values() for chunk in chunks]
    assert sorted(kept) == sorted(chunk.chunk_id for chunk in memory)
    assert split_episodes(memory, 4, 2, seed=3) == parts != split_episodes(memory, 4, 2, seed=4)
    with pytest.raises(SettingsError, match=r"12 episodes cannot be split into 10 .*2 .*at least 13 .*add 1"):
        split_episodes(memory, 10, 2, seed=0)


def test_questions_are_read_back_as_they_were_written(tmp_path, tasks):
    asked = [*tasks, Task(task_id="t", prompt="Who\u2028said\u0085this?", answer="Ada")]
    write_questions(asked, tmp_path / "mine.jsonl")
    assert read_questions(tmp_path / "mine.jsonl") == asked
    with pytest.raises(TranscriptError, match=r"nothing\.jsonl cannot be read"):
        read_questions(tmp_path / "nothing.jsonl")


@pytest.mark.parametrize(
    "line",
    [
        "{", "[]", "3", '{"question": "Who?"}', '{"answer": "Ada"}', '{"question": 3, "answer": "x"}',
        '{"question": "Who?", "answer": 3}', '{"question": "Who?", "answer": "Ada", "labels": [1]}',
        '{"question": "Who?", "answer": "Ada", "task_id": "mine:1"}',
        '{"question": "Who?", "answer": "Ada", "evidence": "t_0"}', '{"question": "Who?", "answer": "Ada", "aliases": [1]}',
    ],
)  # fmt: skip
def test_a_line_that_is_no_question_is_named_with_the_remedy(tmp_path, line):
    path = tmp_path / "mine.jsonl"
    path.write_text('{"question": "Who?", "answer": "Ada"}\n' + line + "\n")
    with pytest.raises(TranscriptError, match=r'mine\.jsonl, line 2: not a question .*write \{"question"') as caught:
        read_questions(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "row",
    [
        {"answer": "The memory does not say"},
        {"answer": "N/A", "labels": {"kind": "unanswerable"}},
        {"answer": "I don't know.", "labels": {"kind": "unanswerable"}, "aliases": ["Who knows?"]},
    ],
)
def test_a_question_without_an_answer_is_answered_by_saying_so_in_any_words(tmp_path, row):
    (tmp_path / "mine.jsonl").write_text(json.dumps({"question": "Who rang?", **row}))
    (task,) = read_questions(tmp_path / "mine.jsonl")
    assert task.answer == NO_ANSWER and task.labels["kind"] == "unanswerable"
    assert all(task_is_right(task, said) for said in (row["answer"], "I do not know.", *row.get("aliases", ())))


def test_a_users_questions_need_a_question_and_an_answer_only(tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text(
        '{"question": "Wér?", "answer": "Ada"}\n\n'
        '{"prompt": "Who?", "answer": "Bob", "aliases": ["B."], "evidence": ["e_1"], "source": "me"}\n',
        encoding="utf-8",
    )
    assert read_questions(path) == [
        Task(task_id="mine:1", prompt="Wér?", answer="Ada"),
        Task(task_id="mine:3", prompt="Who?", answer="Bob", aliases=("B.",), evidence=("e_1",)),
    ]


def made_of(chunks: list[Chunk]) -> list[Task]:
    return make_questions(chunks, plan_of(40, needless_share=0), 0, memory=chunks)


def question_about(chunk: Chunk) -> Task:
    labels = {"evidence_digest": words_digest([chunk])}
    name = chunk.chunk_id
    return Task(task_id=name, prompt=f"Who of {name}?", answer=chunk.speaker, labels=labels, evidence=(name,))


def test_evidence_of_another_splitting_is_not_used(tmp_path):
    """The ids `STEM_0`, `STEM_1`, … exist in both."""
    transcripts = read_transcripts(SAMPLE).require_all()[:4]
    path = tmp_path / "own.jsonl"
    quoted = with_windows(made_of(chunk_all(transcripts)), chunk_all(transcripts, Chunking("windows")))
    write_questions(quoted, path)
    for chunking, is_proven in (("turns", False), ("windows", True)):
        config = PodcastConfig(questions={"path": str(path)}, memory={"chunking": chunking})
        data = prepare_data(config, transcripts, tmp_path / "run")
        for task in (task for part in ("train", "validation", "test") for task in data.tasks[part]):
            assert data.can_prove([task]) is is_proven
            assert not is_proven or task.labels["quote"] in data.proof(task)
    for chunking, num_used in ((Chunking("turns", 9), 0), (18, 40)):
        made = [question_about(chunk) for chunk in chunk_all(transcripts, chunking)[10:50]]
        write_questions(made, path)
        config = PodcastConfig(questions={"path": str(path)})
        data = prepare_data(config, transcripts, tmp_path / "run")
        tasks = [task for part in ("train", "validation", "test") for task in data.tasks[part]]
        assert sum(data.can_prove([task]) for task in tasks) == num_used
        left_out = " ".join(arms(data, sampled=False, seed=0)[1])
        assert ("make the questions from this memory" in left_out) == (num_used == 0)
