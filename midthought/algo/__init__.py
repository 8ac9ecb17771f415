"""Advantages, losses and KL divergence as pure functions on tensors.

The names are in `__init__.pyi`; each is loaded on first use. Decorators of your own parts: `algo.advantage_estimator`,
`algo.policy_losses`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
