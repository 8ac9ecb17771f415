"""Rollouts on Ray: workers with engines of their own, the policy's weights brought to them, their trajectories brought back."""
