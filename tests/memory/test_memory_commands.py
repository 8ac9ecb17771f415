"""What the memory commands say of wrong arguments, and of a memory among the transcripts."""

import json
import os

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from representatives import representatives
from word_embedder import WordEmbedder

from midthought.memory import build, embedding, remote


@pytest.fixture
def memory(tmp_path, monkeypatch, call):
    """Runs a command in a folder with one transcript and a memory."""
    for module in (build, embedding, remote):
        monkeypatch.setattr(module, "load_embedder", lambda *_, **__: WordEmbedder())
    (tmp_path / "tide.md").write_text("**Ann (00:00:05):** The tide clock has a single copper hand and no numerals.\n")
    monkeypatch.chdir(tmp_path)
    assert call("memory", "build", ".", "--path", ".")[0] == 0
    return lambda *words: call("memory", *words)


def test_a_memory_in_the_folder_of_its_transcripts_is_not_read(memory, tmp_path):
    (tmp_path / "questions.report.json").write_text("{}")
    code, said, error = memory("build", ".", "--path", ".", "--strict")
    assert code == 0 and "0 added, 1 kept, 0 removed" in said and "not read" not in error
    assert json.loads(memory("inspect", ".", "--json")[1])["left_out"] == ["questions.report.json"]


def test_a_memory_of_another_embedding_model_is_searched_with_it(memory, monkeypatch):
    for module in (build, embedding, remote):
        monkeypatch.setattr(
            module, "load_embedder", lambda name="minilm": WordEmbedder({"minilm": 64, "mine": 32}[name])
        )
    assert memory("build", ".", "--path", "other", "--embedding-model", "mine")[0] == 0
    assert "give the same embedding model" in memory("search", "hand", "--path", "other")[2]
    assert "tide clock" in memory("search", "hand", "--path", "other", "--embedding-model", "mine")[1]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["build", ".", "--path", ""], "the path of the memory is empty; give that of a folder"),
        (["add", ".", "--path", "http://127.0.0.1:9"], "http://127.0.0.1:9: a memory service is only searched; give"),
        (["delete", "tide", "--path", "http://127.0.0.1:9"], "a memory service is only searched; give the path of the"),
        (["search", "hand", "--path", ""], "the path of the memory is empty"),
        (["search", " "], "the query is empty; give words to search for"),
        (["search", "hand", "--k", "0"], "k must be at least 1, not 0"),
        (["questions", ".", "--num-questions", "0"], "--num-questions 0: give 1 or more"),
        (["questions", "nowhere"], "nowhere: there is no such file or folder; give a memory, a folder of transcripts"),
        (["questions", ".", "--kinds", "next"], "unknown kind of question 'next'. Known: continuation, episode"),
        (["questions", ".", "--no-memory-share", "0.5", "--from-model", "http://h/v1"], "--no-memory-share 0.5 is an"),
        (["questions", ".", "--no-memory-share", "1.5"], "(--no-memory-share) must be from 0 to 1, not 1.5"),
        (["questions", ".", "--episodes", "Ada"], "--episodes Ada is an option of questions by a model; leave it out"),
    ],
)
def test_a_wrong_argument_is_named_with_the_remedy(memory, words, expected):
    code, said, error = memory(*words)
    assert code == 2 and expected in error and said == ""


@pytest.mark.parametrize(
    "words",
    representatives(
        ["questions . OUT", "questions . q.jsonl --parquet OUT", "chunk . OUT", "embed chunks.jsonl OUT"],
        "questions . OUT",
        "embed chunks.jsonl OUT",
    ),
)
def test_only_a_file_of_the_same_command_or_an_empty_one_is_replaced(memory, tmp_path, words):
    def write(name):
        return memory(*words.replace("OUT", name).split())

    assert memory("chunk", ".", "chunks.jsonl")[0] == 0
    os.mkfifo(tmp_path / "pipe")
    code, _, error = write("pipe")
    assert code == 2 and "pipe is a named pipe, and a file would replace it; give the path of a file" in error
    assert (tmp_path / "pipe").is_fifo()
    parquet.write_table(pa.table({"salary": [1, 2, 3]}), tmp_path / "own")
    (tmp_path / "cut").write_bytes((tmp_path / "own").read_bytes()[:-8])
    (tmp_path / "own.jsonl").write_text('{"question": "Who?", "answer": "Ann"}\n')
    for name in ("tide.md", "own.jsonl", "own", "cut"):
        content = (tmp_path / name).read_bytes()
        code, _, error = write(name)
        assert code == 2 and f"{name} was not written by" in error and "give another path" in error
        assert (tmp_path / name).read_bytes() == content
    for name, content in (("new", None), ("new", None), ("empty", ""), ("blank", " \r\n\n")):
        if content == "" or (content and words.endswith(". OUT")):
            (tmp_path / name).write_text(content)
        code, _, error = write(name)
        assert code == 0 and (tmp_path / name).read_bytes().strip(), error
