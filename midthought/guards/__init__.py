"""Guards: pure functions that read what a run has logged and say what goes wrong, why, and what to try.

The trainer runs them after every iteration; `midthought guard RUN` runs the same functions on a run folder.
"""
