"""Rollouts and learners on Ray: each rollout worker has its own engine, receives the policy's weights, returns trajectories."""
