"""Hard paraphrases, and what is counted as displayed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from benchmarks.retrieval import QUESTIONS
from benchmarks.retrieval.asked import Asked, Episodes, Place, read_questions, words_of
from benchmarks.retrieval.displayed import HARD, Found, Step, found_in, measure_steps
from benchmarks.retrieval.hard import Hardness, is_for_tuning, stem_of
from midthought.memory.build import chunk_all
from midthought.memory.splitting import Chunking


class OneVector:
    """Embeds every text alike, so that only words count."""

    name, dimension = "one vector", 2

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        return np.tile(np.array([1.0, 0.0], dtype=np.float32), (len(texts), 1))


PASSAGE = Place("talk", 100, 140)


@pytest.mark.parametrize(
    ("shown", "found"),
    [
        ([Place("talk", 90, 150)], Found(1, 60)),
        ([Place("other", 90, 150), Place("talk", 100, 140)], Found(2, 100)),
        ([Place("talk", 90, 139), Place("talk", 139, 200)], Found(0, 110)),  # together only
        ([Place("talk", 90, 139)], Found(0, math.inf)),
        ([Place("other", 0, 9)] * 10 + [Place("talk", 100, 140)], Found(0, 130)),  # rank 11
    ],
)
def test_a_passage_counts_once_all_of_it_is_displayed(shown: list[Place], found: Found) -> None:
    assert found_in(shown, PASSAGE) == found


def test_a_question_is_hard_without_a_common_run_or_rare_word() -> None:
    episodes = Episodes([])
    episodes.words["talk"] = words_of("we wound the clocks again " + "you know what I mean " * 3_000)
    hardness = Hardness(episodes)

    def shared(text: str) -> list[str]:
        return hardness.shared(Asked(text, Place("talk", 0, 9), is_quote=False))

    assert shared("Who serviced what you rely on?") == []
    assert shared("Do you know what he did?") == ["you know what"]
    assert shared("Who repairs a clock?") == ["clock"]  # another form of a rare word
    assert [stem_of(word) for word in ("clocks", "running", "runs", "the")] == ["clock", "run", "run", "the"]


def test_the_part_compares_steps(tmp_path: Path) -> None:
    pytest.importorskip("lancedb", reason="the memory extra is not installed")
    folder = tmp_path / "episodes"
    folder.mkdir()
    (folder / "tide.txt").write_text("Ann: The keeper wound the clock. The herring was packed in ice.\n\nBob: Yes.\n")
    questions = tmp_path / "questions.jsonl"
    questions.write_text(
        '{"question": "How did somebody keep fish from spoiling?", "stem": "tide", "begins": "the herring was", '
        '"ends": "packed in ice"}\n'
    )
    steps = [Step("windows", lambda transcripts: chunk_all(transcripts, Chunking("windows")), has_goals=True)]
    rows = list(measure_steps(folder, [questions], steps, 1, tmp_path / "vectors", OneVector()))
    found = {(row.setting.split(", ")[-1], row.figure.split(" (")[0]): row for row in rows}
    assert found["1 hard paraphrases (questions)", "recall@1"].value.median == 1.0
    assert found["1 hard paraphrases (questions)", "recall@1"].goal == "≥ 0.3"
    assert found["1 quotes", "recall in 200 displayed words"].value.median == 1.0


def test_there_are_500_hard_paraphrases_half_of_them_held_out(real_episodes: Episodes) -> None:
    hardness = Hardness(real_episodes)
    written = read_questions(HARD, real_episodes)
    assert not [(question.text, hardness.shared(question)) for question in written if hardness.shared(question)]
    every = [*written, *(each for each in read_questions(QUESTIONS, real_episodes) if not hardness.shared(each))]
    assert len({question.text for question in every}) == len(every) >= 500
    assert sum(not is_for_tuning(question) for question in every) >= 250
