"""The YAML files that ship load, mean what they say, and the sample episodes are there."""

from pathlib import Path
from typing import get_args

import pytest

from midthought.config import RecipeConfig, read_yaml
from midthought.errors import SettingsError
from midthought.memory.questions import WORDINGS
from midthought.recipes.podcast.settings import DEFAULT_KINDS, Kind, PodcastConfig

SHIPPED = ("tiny", "own", "seed", "cluster")
FOLDER = Path(__file__).parents[3] / "midthought" / "recipes" / "podcast"


def load(name: str) -> PodcastConfig:
    return PodcastConfig().merged(read_yaml(FOLDER / f"{name}.yaml"))


@pytest.mark.parametrize("name", SHIPPED)
def test_a_yaml_file_that_ships_loads_and_comes_back_from_its_own_yaml(name, tmp_path):
    config = load(name)
    (tmp_path / "again.yaml").write_text(config.to_yaml(), encoding="utf-8")
    assert PodcastConfig().merged(read_yaml(tmp_path / "again.yaml")) == config


def test_seed_has_the_values_of_the_original():
    config = load("seed")
    assert config.model.local_path == "deepseek-ai/DeepSeek-R1-0528-Qwen3-8B"
    assert (config.training.learning_rate, config.training.critic_learning_rate) == (1e-5, 5e-6)
    assert (config.inference.max_tool_calls_per_cot, config.inference.max_segment_length) == (5, 256)
    assert (config.training.kl_coef, config.training.cliprange_value, config.memory.k) == (0.01, 0.5, 3)


def test_the_recipes_sections_stand_beside_the_librarys():
    assert RecipeConfig.model_fields.keys() < PodcastConfig.model_fields.keys()
    assert set(get_args(Kind)) == set(WORDINGS) >= set(DEFAULT_KINDS)


def test_a_wrong_kind_of_question_and_no_kind_at_all_are_refused():
    with pytest.raises(SettingsError, match="'continuation'"):
        PodcastConfig().merged({"questions": {"kinds": ["continuations"]}})
    with pytest.raises(SettingsError, match=r"questions\.kinds"):
        PodcastConfig().merged({"questions": {"kinds": []}})
