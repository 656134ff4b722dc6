"""Sets whose items have a metric of their own: the value of the set is the mean over its items.

Mean IoU of each image is one: an image is a set of pixels, and the images of a batch are averaged.

    value   the mean of the parts' values, over the parts that count
    bits    those of all parts side by side
    gain    of a bit: the gain in its own part, divided by the number of parts
"""

from dataclasses import dataclass

from torch import Tensor

from metricgrad import ops
from metricgrad.metrics.reexpression import Reexpression


@dataclass(frozen=True)
class MeanOfParts(Reexpression):
    """The mean of metrics of P parts, each of which has a re-expression."""

    parts: Reexpression  # of sets [..., P]
    live: Tensor  # [..., P], bool, False where a part does not count
    size: int  # bits of a part, D

    def comparisons(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Those of all parts, `[..., P * D]`."""
        values, live = self.parts.comparisons(scores)
        return values.flatten(-2), live.flatten(-2)

    @property
    def among_classes(self) -> bool:
        """As in the parts."""
        return self.parts.among_classes

    def softened(self, scores: Tensor, slope: float) -> Tensor:
        """As in the parts."""
        return self.parts.softened(scores, slope).flatten(-2)

    def defined(self) -> Tensor:
        """Sets with a part whose value depends on its comparisons."""
        return (self.parts.defined() & self.live).any(-1)

    def from_bits(self, bits: Tensor) -> Tensor:
        """The mean of the parts' values."""
        values = self.parts.from_bits(self._by_part(bits))
        return ops.masked_mean(values, self.live.expand(values.shape))

    def flip_gains(self, bits: Tensor) -> Tensor:
        """The parts' gains, divided by how many parts count."""
        gains = self.parts.flip_gains(self._by_part(bits))
        share = self.live.to(gains.dtype) / self.live.sum(-1, keepdim=True).clamp(min=1)
        return (gains * share.unsqueeze(-1)).flatten(-2)

    def _by_part(self, bits: Tensor) -> Tensor:
        """Bits `[A, ..., P * D]` as `[A, ..., P, D]`."""
        return bits.unflatten(-1, (self.live.shape[-1], self.size))
