"""Train language models to use tools while they reason.

The public names are in `__init__.pyi`. Each is loaded on first use, so `import midthought` does not import torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
