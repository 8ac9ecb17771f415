"""Feedback: a model learns when to request feedback on its answer, to use the feedback, and to stop."""

from midthought.recipes.recipe import Recipe, yaml_presets

recipe = Recipe(
    __name__,
    f"{__name__}.settings:FeedbackRecipeConfig",
    f"{__name__}.train:FeedbackRun",
    yaml_presets(__file__),
    tools=f"{__name__}.tasks:tools_of_run",
)
