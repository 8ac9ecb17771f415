"""Podcast memory: builds a memory from transcripts; a model learns with PPO to query it inside its thought."""

from midthought.recipes.recipe import Recipe, yaml_presets

recipe = Recipe(
    __name__,
    f"{__name__}.settings:PodcastConfig",
    f"{__name__}.train:PodcastRun",
    yaml_presets(__file__),
    tools=f"{__name__}.tasks:tools_of_run",
)
