"""verl: our rollout loop, tools, rewards, tasks and settings in its terms. Only this room knows verl."""
