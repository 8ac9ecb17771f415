"""What the recipe trains on: parts that share no episode, a tool over the whole memory, proofs that prove."""

import asyncio
import dataclasses
import json
from pathlib import Path
from typing import get_args

import pytest
from small_runs import small_embedding_model

from midthought.data.final_answers import NO_ANSWER
from midthought.errors import MemoryStoreError, SettingsError
from midthought.memory.build import build_memory
from midthought.memory.embedding import load_embedder
from midthought.memory.questions import WORDINGS, read_questions, write_questions
from midthought.memory.store import MemoryStore
from midthought.recipes import find_recipe
from midthought.recipes.podcast.settings import Kind, PodcastConfig
from midthought.recipes.podcast.tasks import PodcastData, prepare_data, read_recipe_transcripts
from midthought.recipes.podcast.train import arms
from midthought.tools.executor import ToolExecutor
from midthought.types import ParsedAction, Task, ToolOutcome

QUESTIONS = {"num_train": 60, "num_test": 20, "num_test_no_memory": 10}
SMALL = {"questions": QUESTIONS, "training": {"num_validation_questions": 10}}


def settings(transcripts_path, **changes) -> PodcastConfig:
    encoder = small_embedding_model().partition("=")[2]
    memory = {"transcripts": str(transcripts_path), "embedding_model": encoder}
    return PodcastConfig().merged(SMALL).merged({"memory": memory}).merged(changes)


def build_data(config: PodcastConfig, run_path):
    data: PodcastData = prepare_data(config, read_recipe_transcripts(config), run_path)
    run_path.mkdir(exist_ok=True)
    return data, data.build(run_path)


@pytest.fixture(scope="module")
def run_path(tmp_path_factory):
    return tmp_path_factory.mktemp("run")


@pytest.fixture(scope="module")
def data(transcripts_path, run_path):
    return build_data(settings(transcripts_path), run_path)[0]


def episodes(chunks):
    return {chunk.stem for chunk in chunks}


def test_the_parts_share_no_episode_and_questions_ask_about_their_own_part_only(data):
    train, validation, test = (episodes(data.chunks[name]) for name in ("train", "validation", "test"))
    assert train and validation and test
    assert not train & validation and not train & test and not validation & test
    own = {"train": train, "validation": validation, "test": test, "test_no_memory": test}
    for name, tasks in data.tasks.items():
        assert tasks and {task.labels["episode"] for task in tasks} <= own[name]


def test_as_many_questions_are_made_as_the_settings_say(data):
    assert {name: len(tasks) for name, tasks in data.tasks.items()} == {
        "train": 60, "validation": 10, "test": 20, "test_no_memory": 10
    }  # fmt: skip
    assert all(task.labels["needs_memory"] for task in data.tasks["test"])
    assert not any(task.labels["needs_memory"] for task in data.tasks["test_no_memory"])
    needless = sum(not task.labels["needs_memory"] for task in data.tasks["train"])
    assert needless == round(60 * 0.35)


def asked(executor, task):
    query = {"query": task.labels["quote"]}
    call = ParsedAction(tool_name="memory_retrieval", parameters=query, raw_text="", success=True)
    (event,) = asyncio.run(executor.run([call], task))
    return event


def test_a_call_with_the_quote_finds_the_evidence(data):
    executor = ToolExecutor(data.registry)
    for task in data.tasks["test"]:
        event = asked(executor, task)
        assert event.outcome is ToolOutcome.OK and event.metadata["chunk_ids"] == list(task.evidence)
        assert event.call.result == data.proof(task)


def test_training_in_a_memory_of_other_transcripts_ends_before_anything_is_written(transcripts_path, tmp_path):
    other, memory, run = tmp_path / "other", str(tmp_path / "memory"), tmp_path / "run"
    other.mkdir()
    (other / "mill.txt").write_text("Cid (00:01): A mill without a wheel.\n")
    config = settings(transcripts_path).merged({"memory": {"path": memory}})
    build_memory(other, memory, embedder=load_embedder(config.memory.embedding_model))
    with pytest.raises(MemoryStoreError, match=r"1 chunks of 1 other transcripts \(mill\).*memory.replace=true"):
        build_data(config, run)
    assert not run.exists() and len(MemoryStore.open(memory)) == 1
    assert build_data(config.merged({"memory": {"replace": True}}), run)[1].num_removed == 1
    assert build_data(config, run)[1].changes is False


def test_the_same_settings_give_the_same_data_and_nothing_is_stored_twice(data, transcripts_path, run_path):
    written = read_questions(run_path / "questions.jsonl")
    again, report = build_data(settings(transcripts_path), run_path)
    assert again.tasks == data.tasks and again.chunks == data.chunks
    assert written == [task for tasks in data.tasks.values() for task in tasks]
    assert report.num_added == 0 and not report.changes
    other = settings(transcripts_path, training={"seed": 1})
    assert build_data(other, run_path)[0].tasks != data.tasks


def test_a_users_own_questions_take_the_place_of_those_made_and_are_split(transcripts_path, tmp_path):
    rows = [
        {"question": f"Question {number}?", "answer": "Ada", "labels": {"episode": f"e{number // 4}"}}
        for number in range(40)
    ]
    data, _ = build_data(settings(transcripts_path, questions=own(tmp_path, rows)), tmp_path / "run")
    parts = {name: data.tasks[name] for name in ("train", "validation", "test")}
    assert {name: len(tasks) for name, tasks in parts.items()} == {"train": 28, "validation": 4, "test": 8}
    asked = {name: {task.labels["episode"] for task in tasks} for name, tasks in parts.items()}
    assert not asked["train"] & asked["test"] and not asked["train"] & asked["validation"]
    assert not data.can_prove(data.tasks["test"])


def test_episodes_of_a_users_test_are_in_no_demonstration_and_a_question_asked_twice_is_in_one_part(
    transcripts_path, data, tmp_path
):
    asked = [task for part in ("train", "validation", "test") for task in data.tasks[part]]
    (tmp_path / "quotes").mkdir()
    write_questions(asked, tmp_path / "quotes/mine.jsonl")
    config = settings(transcripts_path, questions={"path": str(tmp_path / "quotes/mine.jsonl")})
    made = prepare_data(config, read_recipe_transcripts(config), tmp_path / "run")
    for part in ("validation", "test"):
        assert {task.labels["episode"] for task in made.tasks[part]} == episodes(made.chunks[part])
        assert episodes(made.chunks[part]).isdisjoint(episodes(made.chunks["train"]))
    assert sum(map(len, made.chunks.values())) == len(made.stored)
    numbered = [{"question": f"{number}?", "answer": "Ada", "labels": {"episode": [number]}} for number in range(9)]
    config = settings(transcripts_path, questions=own(tmp_path, numbered))
    prepare_data(config, read_recipe_transcripts(config), tmp_path / "run")
    twice = [{"question": f"{' ' * (number // 10)}Question {number % 10}?", "answer": "Ada"} for number in range(20)]
    config = settings(transcripts_path, questions=own(tmp_path, twice))
    made = prepare_data(config, read_recipe_transcripts(config), tmp_path / "run")
    prompts = [{task.prompt.strip() for task in made.tasks[part]} for part in ("train", "validation", "test")]
    assert list(map(len, prompts)) == [7, 1, 2] and len(set.union(*prompts)) == 10


def own(tmp_path, rows):
    """Settings with these questions of the user."""
    (tmp_path / "mine.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return {"path": str(tmp_path / "mine.jsonl")}


def test_own_questions_are_demonstrated_with_their_evidence_and_unanswerable_ones_with_what_is_nearest(data):
    chunk, other = data.stored[0], data.stored[1]

    def question(name, answer, *evidence, **labels):
        return Task(task_id=name, prompt="Who says so?", answer=answer, evidence=evidence, labels=labels)

    proven, none = question("proven", chunk.speaker, chunk.chunk_id), question("none", NO_ANSWER, other.chunk_id, "x_0")
    near = dataclasses.replace(none, evidence=(other.chunk_id, chunk.chunk_id))
    without = [question("of two", "Ada", chunk.chunk_id, other.chunk_id), question("unknown", "Ada", "x_0"), none]
    without += [question("no evidence", "Ada")]
    assert data.with_evidence([proven, *without, near]) == [(proven, chunk), (near, other)]
    assert data.names[chunk.speaker] == "speaker" and data.names[chunk.episode] == "episode"


def test_questions_from_another_splitting_are_named_with_the_remedy(data, transcripts_path, tmp_path, caplog):
    first, *others = data.tasks["train"]
    other = dataclasses.replace(first, task_id="other", labels={**first.labels, "evidence_digest": "of other words"})
    write_questions([other, *others], tmp_path / "mine.jsonl")
    build_data(settings(transcripts_path, questions={"path": str(tmp_path / "mine.jsonl")}), tmp_path / "run")
    assert "1 questions, such as other, were made from chunks with other words than this memory's" in caplog.text


def test_too_few_questions_or_transcripts_are_told_before_anything_is_written(transcripts_path, tmp_path):
    one = settings(transcripts_path, questions=own(tmp_path, [{"question": "Who?", "answer": "Ada"}]))
    short, few = tmp_path / "short", first_files(transcripts_path, tmp_path / "few", 2)
    short.mkdir()
    for name in "abc":
        (short / f"{name}.txt").write_text(f"Ada: Good day, {name}.\nBo: And a good day to you.\n", encoding="utf-8")
    for config, message in (
        (one, "at least 3 are needed"),
        (settings(short), "chunks of 8 words or more are needed, with words that no other file has; add transcripts"),
        (settings(few), "at least 3 transcripts are needed, so add 1"),
    ):
        with pytest.raises(SettingsError, match=message):
            build_data(config, tmp_path / "run")
        assert not (tmp_path / "run").exists()


# -- few transcripts -----------------------------------------------------------------------------------------------


def first_files(transcripts_path, folder, number):
    folder.mkdir()
    for path in sorted(transcripts_path.iterdir())[:number]:
        (folder / path.name).write_text(path.read_text("utf-8"), encoding="utf-8")
    return folder


def test_three_transcripts_are_enough_for_every_arm(transcripts_path, tmp_path):
    config = settings(first_files(transcripts_path, tmp_path / "three", 3))
    data = prepare_data(config, read_recipe_transcripts(config), tmp_path / "run")
    allowed, missing = arms(data, sampled=True, seed=0)
    found = {arm.name: arm for arm in allowed}
    assert missing == [] and set(found) == {"", "sampled", "oracle", "tool_off", "shuffled", "no_memory"}
    for task in data.tasks["test"]:
        assert task.answer.casefold() not in asked(found["shuffled"].executor, task).call.result.casefold()


def test_an_arm_whose_questions_do_not_allow_it_is_left_out_and_told(transcripts_path, tmp_path):
    folder = first_files(transcripts_path, tmp_path / "three", 3)
    for path in folder.iterdir():
        _, _, rest = path.read_text("utf-8").partition("\n")
        path.write_text(f"# Untitled\n{rest}", encoding="utf-8")
    config = settings(folder, questions={"kinds": ["episode"]})
    data = prepare_data(config, read_recipe_transcripts(config), tmp_path / "run")
    found, missing = arms(data, sampled=False, seed=0)
    assert [arm.name for arm in found] == ["", "oracle", "tool_off", "no_memory"]
    assert len(missing) == 1 and "shuffled: task" in missing[0] and "no other task has another answer" in missing[0]


# -- settings -------------------------------------------------------------------------------------------------------


def test_seed_has_the_values_of_the_original():
    config, _ = find_recipe("podcast").begin(Path(), words=(), config=Path("seed"))
    assert config.model.local_path == "deepseek-ai/DeepSeek-R1-0528-Qwen3-8B"
    assert (config.training.learning_rate, config.training.critic_learning_rate) == (1e-5, 5e-6)
    assert (config.inference.max_tool_calls_per_cot, config.inference.max_segment_length) == (5, 256)
    assert (config.training.kl_coef, config.training.cliprange_value, config.memory.k) == (0.01, 0.5, 3)


def test_a_wrong_kind_of_question_and_no_kind_at_all_are_refused():
    assert set(get_args(Kind)) == set(WORDINGS)
    for kinds, message in ((["continuations"], "'continuation'"), ([], r"questions\.kinds")):
        with pytest.raises(SettingsError, match=message):
            PodcastConfig().merged({"questions": {"kinds": kinds}})
