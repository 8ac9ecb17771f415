"""Podcast memory: builds a memory from transcripts; a model learns with PPO to query it inside its thought."""

from midthought.recipes.recipe import Recipe

recipe = Recipe(__name__, config="PodcastConfig", run_class="PodcastRun")
