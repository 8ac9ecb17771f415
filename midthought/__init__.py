"""Train language models to use tools while they reason.

The public names are in `__init__.pyi`. Each is loaded on first use, so `import midthought` does not import torch.
"""

import os

import lazy_loader


def _load() -> float:
    """Returns the number of processes that computed in the last minute; 0 if the system does not say."""
    try:
        return os.getloadavg()[0]
    except OSError:
        return 0.0


# Threads of torch that wait for each other spin for milliseconds. Beside another process that computes, small models then take
# several times longer (docs/measured.md). Has no effect if torch was imported before.
if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys() and _load() > 0.7:
    os.environ["GOMP_SPINCOUNT"] = "1000"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
