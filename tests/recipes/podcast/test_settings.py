"""The values of the original, and the kinds of questions."""

from pathlib import Path
from typing import get_args

import pytest

from midthought.errors import SettingsError
from midthought.memory.questions import WORDINGS
from midthought.recipes import find_recipe
from midthought.recipes.podcast.settings import Kind, PodcastConfig


def test_seed_has_the_values_of_the_original():
    config, _ = find_recipe("podcast").begin(Path(), words=(), config=Path("seed"))
    assert config.model.local_path == "deepseek-ai/DeepSeek-R1-0528-Qwen3-8B"
    assert (config.training.learning_rate, config.training.critic_learning_rate) == (1e-5, 5e-6)
    assert (config.inference.max_tool_calls_per_cot, config.inference.max_segment_length) == (5, 256)
    assert (config.training.kl_coef, config.training.cliprange_value, config.memory.k) == (0.01, 0.5, 3)


def test_a_wrong_kind_of_question_and_no_kind_at_all_are_refused():
    assert set(get_args(Kind)) == set(WORDINGS)
    with pytest.raises(SettingsError, match="'continuation'"):
        PodcastConfig().merged({"questions": {"kinds": ["continuations"]}})
    with pytest.raises(SettingsError, match=r"questions\.kinds"):
        PodcastConfig().merged({"questions": {"kinds": []}})
