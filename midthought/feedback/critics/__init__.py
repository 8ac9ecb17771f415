"""Critics: what the policy is told of a wrong answer. One named thing each; `registry.make_critic` makes them."""
