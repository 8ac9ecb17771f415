"""Train language models to use tools while they reason.

The public names are in `__init__.pyi`. Each is loaded on first use, so `import midthought` does not import torch.
"""

import os

import lazy_loader

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
"""Threads of torch that wait for each other sleep. If they spin, small models take many times longer beside another process
that computes (docs/benchmarks.md, "Beside another process"). Has no effect if torch was imported before."""

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
