"""docs/settings.md is generated from the docstrings of the fields; `midthought settings` prints the same."""

from pathlib import Path

from typer.testing import CliRunner

from midthought.cli import app
from midthought.config import ConfigStore
from midthought.config.section import settings_page
from midthought.recipes.podcast.settings import PodcastConfig

PAGE = Path(__file__).parent.parent / "docs" / "settings.md"
HEAD = """# Settings

Every key of the library and of `podcast`; `midthought settings feedback` prints the keys of `feedback`.
The text is generated from the docstrings of the fields (`midthought settings [RECIPE]` prints it).
Write `config.training.seed = 1` in code, `training.seed=1` on the command line, `training: {seed: 1}` in a YAML file. Every
assignment is validated. Recipes ship YAML files with their own values.

↻ marks settings that a resumed run may change: where and how fast it computes, what it logs, how long it runs. Any other
change alters what is learned and needs `--allow-changes` (`allow_changes=True`). Both are recorded in `settings_history.yaml`.

"""


def page() -> str:
    shared = frozenset(ConfigStore.model_fields)
    library = settings_page(ConfigStore, "Every run, and `RayPPOTrainer`")
    return f"{HEAD}{library}\n{settings_page(PodcastConfig, 'The podcast recipe, in addition', shared)}"


def test_the_page_is_up_to_date():
    remedy = "regenerate it: python tests/test_settings_page.py"
    assert PAGE.read_text("utf-8") == page(), remedy


def test_the_command_prints_every_key_of_a_recipe():
    result = CliRunner().invoke(app, ["settings", "podcast"])
    assert result.exit_code == 0
    assert all(f"`{key}`" in result.output for key in ("adv_estimator", "chunk_words", "call_cost", "habits"))


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
