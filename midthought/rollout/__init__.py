"""Rollouts: one episode, many concurrent episodes, episodes that outlive an iteration, conversations."""
