"""Training on several processes or machines: `ray` rolls out on actors, `verl` has that library do the training."""
