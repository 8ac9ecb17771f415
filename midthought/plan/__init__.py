"""Plans for scale: memory per GPU and time per step of a training run, from formulas alone. Knows no weights.

The formulas of memory are those of `learning`, counted; `benchmarks/plan.py` compares them with what a learner takes.
"""
