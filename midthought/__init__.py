"""Train language models to use tools while they reason.

The public names stand in `__init__.pyi`. Each is loaded when it is first asked for, so `import midthought` needs no torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
