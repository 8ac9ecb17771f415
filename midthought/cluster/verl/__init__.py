"""Adapters between midthought and verl: rollout loop, tools, rewards, tasks, settings. No other package depends on verl."""
