"""Memory per GPU of a training run, computed from formulas without loading a model.

The formulas are upper bounds; `benchmarks/plan.py` compares them with measurements of a learner.
"""
