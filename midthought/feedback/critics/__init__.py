"""Critics: feedback on a wrong answer. `registry.make_critic` makes them by name."""
