"""The benchmarks: `python -m benchmarks` (or `make bench`) compares the engine with others, in one run on one machine."""
