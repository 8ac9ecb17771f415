"""Keeps an engine outside the learner's process on the weights of a policy in training, and proves that it uses them."""
