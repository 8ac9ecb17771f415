"""What a trained or frozen model holds all the time: weights, float32 copies, gradients, moments."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Learning:
    """Memory of a trained or frozen model on one GPU, in bytes."""

    weights: int = 0
    masters: int = 0
    gradients: int = 0
    moments: int = 0

    @property
    def total(self) -> int:
        return self.weights + self.masters + self.gradients + self.moments

    @property
    def optimizer(self) -> int:
        """What only the optimizer uses: float32 copies and moments."""
        return self.masters + self.moments

    def __add__(self, other: Learning) -> Learning:
        return Learning(
            self.weights + other.weights,
            self.masters + other.masters,
            self.gradients + other.gradients,
            self.moments + other.moments,
        )
