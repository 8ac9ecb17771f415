"""Feedback: a model learns when to request feedback on its answer, to use the feedback, and to stop."""

from midthought.recipes.recipe import Recipe

recipe = Recipe(__name__, config="FeedbackRecipeConfig", run_class="FeedbackRun")
