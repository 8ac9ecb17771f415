"""`--run DIR` of a folder that holds other files: refused at once, and nothing in it changes."""

import time

import pytest

from midthought.errors import OutputPathError
from midthought.recipes import find_recipe
from midthought.report.console import Console


@pytest.mark.parametrize("recipe", ["podcast", "feedback"])
@pytest.mark.parametrize("stage", ["all", "evaluate"])
def test_a_folder_of_the_user_is_refused_before_anything_is_computed(recipe, stage, tmp_path):
    (tmp_path / "config.yaml").write_text("mine: 1\n")
    (tmp_path / "questions.jsonl").write_text("mine\n")
    begun = time.monotonic()
    with pytest.raises(OutputPathError, match=r"is not empty \(config.yaml, questions.jsonl\).*give another path"):
        find_recipe(recipe).run(
            tmp_path, Console(quiet=True), words=[], config=None, stage=stage, from_path=tmp_path, resume=False
        )
    assert time.monotonic() - begun < 30
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {
        "config.yaml": "mine: 1\n",
        "questions.jsonl": "mine\n",
    }
