"""Checks of a run: before it starts (`Trainer.check()`, `midthought doctor`), before each update, after each iteration.

A check is one function, registered with `@check` (`registry.py`). It yields findings: a number and one remedy.
"""

from midthought.checks import episodes, inputs, iterations  # noqa: F401  (they register the checks)
