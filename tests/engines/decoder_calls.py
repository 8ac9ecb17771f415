"""Observes which fused decoders compute."""

from collections.abc import Callable
from typing import Any

import pytest

from midthought.engines.local.decoder import Decoder


def decoders_in(compute: Callable[[], object]) -> list[Decoder]:
    """The decoder of every forward pass of a fused decoder while `compute` runs."""
    used: list[Decoder] = []
    plain = Decoder.__call__

    def observed(self: Decoder, *args: Any) -> Any:
        used.append(self)
        return plain(self, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Decoder, "__call__", observed)
        compute()
    return used
