"""PCK as the UniLoss paper compares pixels: each one within the radius with each outside.

A joint is right if some pixel within the radius beats all outside, so its bits are P x M wins of P
pixels within over M outside (Sec. 4.3). The paper's code also draws its anchors in a way of its
own, joint by joint, which is here as well (`PixelPairs.released_anchors`).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from metricgrad.metrics.decisions import ItemDecisions
from metricgrad.metrics.order import padded_places
from metricgrad.metrics.reexpression import Reexpression


@dataclass(frozen=True)
class PixelPairs(Reexpression):
    """All pairs of pixels: a joint is right if some pixel within the radius beats all outside."""

    near: Tensor  # [..., J, HW], bool, pixels within the radius of the J = N * K joints
    joints: ItemDecisions  # what the joints' decisions are worth

    def comparisons(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Every pixel within minus every pixel outside, `[..., J * P * M]`."""
        pixels = as_pixels(scores)
        higher = pixels.gather(-1, padded_places(self.near)[0]).unsqueeze(-1)
        lower = pixels.gather(-1, padded_places(~self.near)[0]).unsqueeze(-2)
        live = self._live() & self.joints.live[..., None, None]
        return (higher - lower).flatten(-3), live.flatten(-3)

    def defined(self) -> Tensor:
        """Sets with joints."""
        return self.joints.defined()

    def from_bits(self, bits: Tensor) -> Tensor:
        """The value of the joints with a pixel within that lost no comparison."""
        return self.joints.from_bits(self._champions(self._lost(bits)).any(-1))

    def flip_gains(self, bits: Tensor) -> Tensor:
        """The joint's gain where the bit makes its pixel the first champion, or the only one."""
        lost = self._lost(bits)
        champions = self._champions(lost)
        number = champions.sum(-1, keepdim=True)
        only = champions & (number == 1)
        first = (lost.sum(-1) == 1) & (number == 0)
        decides = torch.where(lost, first.unsqueeze(-1), only.unsqueeze(-1)) & self._live()
        gains = self.joints.flip_gains(champions.any(-1))
        return torch.where(decides, gains[..., None, None], 0.0).flatten(-3)

    def flip(self, bits: Tensor, places: Tensor) -> Tensor:
        """All bits of a pixel within and of one outside, in turn (UniLoss, supplement Sec. 1.2)."""
        shape = self._live().shape[-3:]
        chosen = super().flip(torch.zeros_like(bits), places).unflatten(-1, shape)
        even = torch.arange(len(places), device=bits.device) % 2 == 0
        turn = even.reshape(-1, *[1] * (chosen.dim() - 1))
        pixel = torch.where(turn, chosen.any(-1, keepdim=True), chosen.any(-2, keepdim=True))
        return bits ^ pixel.expand_as(chosen).flatten(-3)

    def released_anchors(
        self, bits: Tensor, number: int, generator: torch.Generator | None
    ) -> Tensor:
        """The anchors of the released code, `[3 * number + 2, ..., D]`, drawn for each joint.

        They are the best configuration; `number` of it with some bits cleared, which are drawn with
        replacement; `number` at random; `number` that change the current bits for one pixel, half
        of them so that a pixel within wins, half so that one outside does; and the current bits.
        The anchors of each joint are shuffled, so an anchor of all joints mixes their kinds.
        """
        _, inside = padded_places(self.near)
        _, outside = padded_places(~self.near)
        shape = self._live().shape
        current = bits.unflatten(-1, shape[-3:])
        best = torch.ones_like(current)
        several = (number, *shape[:-2])
        row = _draw(inside, several, generator)
        column = _draw(outside, several, generator)
        up = current | (row.unsqueeze(-1) == torch.arange(shape[-2], device=bits.device))[..., None]
        down = (
            current
            & (column.unsqueeze(-1) != torch.arange(shape[-1], device=bits.device))[..., None, :]
        )
        coins = torch.rand(number, *shape, generator=generator, device=bits.device) < 0.5
        kinds = (
            best.unsqueeze(0),
            self._spoiled(best, several, generator),
            coins,
            up[: (number + 1) // 2],
            down[: number // 2],
            current.unsqueeze(0),
        )
        anchors = torch.cat([kind.expand(len(kind), *shape) for kind in kinds])
        order = torch.rand(anchors.shape[:-2], generator=generator, device=bits.device).argsort(0)
        return anchors.gather(0, order[..., None, None].expand_as(anchors)).flatten(-3)

    def _spoiled(
        self, best: Tensor, several: tuple[int, ...], generator: torch.Generator | None
    ) -> Tensor:
        """Copies of the best bits with max(2 P, floor(3.6 P - 28)) draws cleared, P pixels within.

        The number is that of the released code, which does not explain it.
        """
        _, inside = padded_places(self.near)
        _, outside = padded_places(~self.near)
        within = inside.sum(-1)
        wanted = torch.maximum(2 * within, (3.6 * within - 28).floor().long())
        most = int(wanted.max()) if wanted.numel() else 0
        draws = (*several, most)
        place = _draw(inside.unsqueeze(-2), draws, generator) * outside.shape[-1]
        place = place + _draw(outside.unsqueeze(-2), draws, generator)
        kept = torch.arange(most, device=best.device) >= wanted.unsqueeze(-1)
        spoiled = best.expand(several[0], *best.shape).flatten(-2).clone()
        # Draws beyond the joint's own number repeat its first one.
        place = torch.where(kept, place[..., :1], place)
        return spoiled.scatter_(-1, place, False).unflatten(-1, best.shape[-2:])

    def _live(self) -> Tensor:
        """Pairs without padding, `[..., J, P, M]`."""
        _, inside = padded_places(self.near)
        _, outside = padded_places(~self.near)
        return inside.unsqueeze(-1) & outside.unsqueeze(-2)

    def _lost(self, bits: Tensor) -> Tensor:
        """Lost comparisons, `[A, ..., J, P, M]`."""
        live = self._live()
        return ~bits.unflatten(-1, live.shape[-3:]) & live

    def _champions(self, lost: Tensor) -> Tensor:
        """Pixels within that lost nothing, `[A, ..., J, P]`."""
        return ~lost.any(-1) & padded_places(self.near)[1]


def as_pixels(maps: Tensor) -> Tensor:
    """Maps `[..., N, K, H, W]` as the pixels of J = N * K joints, `[..., J, HW]`."""
    return maps.flatten(-2).flatten(-3, -2)


def _draw(live: Tensor, shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
    """Numbers of the first entries of `live`, which are those that count, drawn with replacement.

    The shape is `[A, ..., J]` or `[A, ..., J, draws]`, that of live `[..., J, L]` without its last
    dimension, or with 1 before it.
    """
    share = torch.rand(shape, dtype=torch.float64, generator=generator, device=live.device)
    return (share * live.sum(-1)).long()
