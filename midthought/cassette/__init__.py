"""Records the calls of episodes in a folder, replays them, and injects faults. Does not depend on tools, engines or critics."""
