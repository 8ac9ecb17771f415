"""The doctor: checks a run before it trains anything, and says what is wrong and what to do.

`midthought doctor RECIPE|SCRIPT` and `Trainer.check()` run all checks; `train` and `fit` run the fast ones at their start.
"""
