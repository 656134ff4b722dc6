r"""Average precision of poses by object keypoint similarity (OKS), as COCO evaluates keypoints.

A model predicts a pose for each person: the highest pixel of each heatmap. OKS says how near the
pose is to the true one, from 0 to 1. A joint's distance counts less the larger the person is (its
area), and the less exactly people mark that joint (its sigma):

.. math:: OKS = \frac{1}{|V|} \sum_{k \in V} e^{-d_k^2 / (8 \sigma_k^2 a)}, \quad V visible joints

A pose is right at a level t if it can be given to a person with OKS >= t who has no pose yet: the
poses of an image take turns, the surest first, and each gets the person to whom it is most similar.
The poses of all images are then ranked by how sure the model is, and average precision is the mean
of the interpolated precision at the recalls 0, 0.01, ..., 1; and of that over ten levels.

Whether a pose is right depends on distances, not only on which pixel beats which, and its rank on
the heights of all its joints: few comparisons would not decide the value, so it is a plain metric.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from metricgrad import ops
from metricgrad.metrics.base import Inputs, JointSize, Layout, Metric
from metricgrad.metrics.counts import walk_down
from metricgrad.metrics.maps import distances, heatmap_inputs

_COCO = (0.026, 0.025, 0.025, 0.035, 0.035, 0.079, 0.079, 0.072, 0.072)
_COCO = (*_COCO, 0.062, 0.062, 0.107, 0.107, 0.087, 0.087, 0.089, 0.089)
# The same floats as in COCO's own code, where a similarity or a recall may equal one of them.
_LEVELS = tuple(np.linspace(0.5, 0.95, 10).tolist())
_RECALLS = tuple(np.linspace(0.0, 1.0, 101).tolist())
_MOST = 20  # poses of an image that take part, the surest ones
_ALONE = 3  # columns of a target in which every person is alone in an image
_TOGETHER = 8


class _People(NamedTuple):
    """S sets of N people with K joints, in float64."""

    sure: Tensor  # [S, N], the mean height of the highest pixels
    found: Tensor  # [S, N, K, 2], where these are, in pixels of the image
    joints: Tensor  # [S, N, K, 2], the true places
    area: Tensor  # [S, N, K]
    predicted: Tensor  # [S, N, K], bool, maps that count
    visible: Tensor  # [S, N, K], bool, joints that are marked
    image: Tensor | None  # [S, N], the image of each person; None if each has its own


@dataclass(frozen=True, kw_only=True)
class OksAp(Metric):
    """Average precision of poses by object keypoint similarity, over the levels 0.50, ..., 0.95.

    Scores are heatmaps `[..., N, K, H, W]` of N people, target the joints `[..., N, K, 3]` as (x,
    y, area of the person) in map pixels; `where` leaves out joints that are not visible. Here every
    person is alone in an image.

    The maps are usually those of crops, and an image may have several people, whose poses can be
    mistaken for each other's. Then the target has eight columns, (x, y, area, visible, image, left,
    top, scale): `visible` is 0 for a joint that is not marked, people with the same number `image`
    are in one image, and a map pixel (x, y) lies at (left + scale x, top + scale y) there.

    Args:
        sigmas: How far the marks of people differ, as a share of a person's size: one number, or
            one for each joint. None takes those of COCO's 17 joints.
        oks: The similarity from which on a pose is right, such as 0.5 for AP50; None averages over
            the ten levels.

    Example:
        >>> heatmaps = torch.zeros(2, 1, 4, 4)
        >>> heatmaps[0, 0, 2, 3] = 2.0  # the highest pixel is at x = 3, y = 2
        >>> heatmaps[1, 0, 0, 0] = 1.0
        >>> people = torch.tensor([[[3.0, 2.0, 9.0]], [[1.0, 0.0, 9.0]]])
        >>> OksAp(sigmas=0.2)(heatmaps, people)
        tensor(0.7525)

    Reference:
        Lin et al., Microsoft COCO, 2014, and the rules of its keypoint evaluation; a loop over
        images and people.
    """

    name = "oks_ap"
    families = ("pose",)
    ties = "together"
    undefined = "0 where no joint counts"
    reference = "COCO's evaluation (a loop)"

    sigmas: float | Sequence[float] | None = None
    oks: float | None = None

    def __post_init__(self) -> None:
        if isinstance(self.sigmas, Sequence):
            # Lists cannot be hashed, and JSON has no tuples.
            object.__setattr__(self, "sigmas", tuple(self.sigmas))
        for sigma in self._sigmas(len(_COCO)):
            if not 0 < sigma < math.inf:
                raise ValueError(f"sigmas must be above 0 and finite; got {self.sigmas}")
        if self.oks is not None and not 0 < self.oks <= 1:
            raise ValueError(f"oks must be above 0 and at most 1; got {self.oks}")

    @property
    def layout(self) -> Layout:
        """Heatmaps and joints."""
        return "heatmaps"

    @property
    def joint_size(self) -> JointSize:
        """The area of the person."""
        return "area"

    def within(self, shape: Sequence[int], joints: Tensor) -> Tensor:
        """Pixels whose similarity to their joint is at least `oks`: bool `[..., N, K, H, W]`."""
        sigmas = joints.new_tensor(self._sigmas(shape[-3]))
        spread = 8 * sigmas.square() * joints[..., 2]
        least = _LEVELS[0] if self.oks is None else self.oks
        farthest = (spread * -math.log(least)).sqrt()
        return distances(shape, joints) <= farthest[..., None, None]

    def _sigmas(self, joints: int) -> tuple[float, ...]:
        """One number for each joint."""
        if self.sigmas is None:
            return _COCO
        return tuple(self.sigmas) if isinstance(self.sigmas, Sequence) else (self.sigmas,) * joints

    def check(self, scores: Tensor, target: Tensor, where: Tensor | None) -> Inputs:
        """Heatmaps `[..., N, K, H, W]` and joints `[..., N, K, 3]`, or 8 columns for images."""
        columns = target.shape[-1] if target.shape[-1] == _TOGETHER else _ALONE
        takes = (
            "oks_ap takes heatmaps [..., N, K, H, W] and joints [..., N, K, 3], (x, y, area) in "
            f"map pixels, or {_TOGETHER} columns (x, y, area, visible, image, left, top, scale)"
        )
        inputs = heatmap_inputs(scores, target, where, columns, takes, "areas")
        joints = scores.shape[-3]
        if len(self._sigmas(joints)) != joints:
            given = "sigmas=None stands for those of" if self.sigmas is None else "sigmas has"
            raise ValueError(
                f"{given} {len(self._sigmas(joints))} joints, but scores {list(scores.shape)} has "
                f"{joints}; pass one number for each joint, or one for all"
            )
        return inputs

    def evaluate(self, scores: Tensor, target: Tensor, where: Tensor | None) -> Tensor:
        """The mean over levels of the interpolated average precision."""
        people = _people(scores, target, where)
        sigmas = people.area.new_tensor(self._sigmas(scores.shape[-3]))
        levels = people.area.new_tensor(_LEVELS if self.oks is None else (self.oks,))
        real = people.visible.any(-1)
        if people.image is None:
            own = _similarity(people.found, people.joints, people.area, people.visible, sigmas)
            right = (own.unsqueeze(-2) >= levels.unsqueeze(-1)) & real.unsqueeze(-2)
            taking_part = real
        else:
            right, taking_part = _given_out(people, people.image, sigmas, levels)
        found = _average_precision(people.sure, right, taking_part, real.sum(-1))
        return found.reshape(scores.shape[:-4]).to(scores.dtype)


def _people(scores: Tensor, target: Tensor, where: Tensor | None) -> _People:
    """The predicted and the true poses of checked inputs."""
    size = scores.shape[-2:].numel()
    pixels = scores.reshape(scores.shape[:-4].numel(), *scores.shape[-4:-2], size)
    index = pixels.argmax(-1)
    highest = pixels.gather(-1, index.unsqueeze(-1)).squeeze(-1)
    width = scores.shape[-1]
    found = torch.stack([index % width, index // width], -1).double()
    truth = target.reshape(*highest.shape, target.shape[-1]).double()
    joints = truth[..., :2]
    area = truth[..., 2]
    predicted = torch.ones_like(index, dtype=torch.bool)
    if where is not None:
        predicted = where.reshape(predicted.shape)
    visible = predicted
    image = None
    if truth.shape[-1] == _TOGETHER:
        visible = predicted & (truth[..., 3] != 0)
        first = predicted.int().argmax(-1, keepdim=True)
        corner = truth[..., 5:7].gather(-2, first.unsqueeze(-1).expand(*first.shape, 2))
        scale = truth[..., 7].gather(-1, first).unsqueeze(-1)
        image = truth[..., 4].gather(-1, first).squeeze(-1)
        found = corner + scale * found
        joints = corner + scale * joints
        area = scale.squeeze(-1).square() * area
    sure = ops.masked_mean(highest.double(), predicted)
    return _People(sure, found, joints, area, predicted, visible, image)


def _similarity(
    found: Tensor, joints: Tensor, area: Tensor, visible: Tensor, sigmas: Tensor
) -> Tensor:
    """OKS `[...]` of found poses `[..., K, 2]` with true ones, over their visible joints."""
    far = (found - joints).square().sum(-1)
    near = torch.exp(-far / (8 * sigmas.square() * (area + torch.finfo(far.dtype).eps)))
    return ops.masked_mean(near, visible)


def _given_out(
    people: _People, image: Tensor, sigmas: Tensor, levels: Tensor
) -> tuple[Tensor, Tensor]:
    """Poses that got a person at each level `[S, T, N]`, and those that take part `[S, N]`.

    People are put in the order of images and, within one, of how sure their poses are, so those of
    an image stand side by side. The poses of all images take their turns together.
    """
    order = people.sure.argsort(dim=-1, descending=True, stable=True)
    real = people.visible.any(-1)
    image, moved = image.masked_fill(~real, math.inf).gather(-1, order).sort(dim=-1, stable=True)
    order = order.gather(-1, moved)
    real = real.gather(-1, order)
    start = ops.tie_starts(image)
    places = torch.arange(order.shape[-1], device=order.device)
    place = places - start
    most = int(place.masked_fill(~real, -1).max()) + 1 if real.any() else 0
    sets = torch.arange(len(order), device=order.device)[:, None, None]
    beside = start.unsqueeze(-1) + torch.arange(most, device=order.device)
    inside = beside < len(places)
    beside = beside.clamp(max=len(places) - 1)
    same = inside & real.unsqueeze(-1) & (image[sets, beside] == image.unsqueeze(-1))
    similar = _similar_ones(people, sigmas, order, order[sets, beside]).masked_fill(~same, -1.0)
    right = similar.new_zeros(len(order), len(levels), len(places), dtype=torch.bool)
    taken = torch.zeros_like(right)
    for turn in range(min(most, _MOST)):
        free = ~taken.movedim(1, -1)[sets, beside].movedim(-1, 1)
        best, which = torch.where(free, similar.unsqueeze(1), -1.0).max(-1)
        got = (best >= levels.unsqueeze(-1)) & (real & (place == turn)).unsqueeze(1)
        person = start.unsqueeze(1) + which
        right |= got
        taken |= torch.zeros_like(person).scatter_add(-1, person, got.long()) > 0
    back = torch.zeros_like(right).scatter(-1, order.unsqueeze(1).expand_as(right), right)
    return back, torch.zeros_like(real).scatter(-1, order, real & (place < _MOST))


def _similar_ones(people: _People, sigmas: Tensor, poses: Tensor, others: Tensor) -> Tensor:
    """OKS `[S, N, M]` of poses, by their index `[S, N]`, with M people each `[S, N, M]`."""
    sets = torch.arange(len(poses), device=poses.device)[:, None, None]
    poses = poses.unsqueeze(-1)
    visible = people.visible[sets, others] & people.predicted[sets, poses]
    found = people.found[sets, poses]
    return _similarity(
        found, people.joints[sets, others], people.area[sets, others], visible, sigmas
    )


def _average_precision(sure: Tensor, right: Tensor, taking_part: Tensor, people: Tensor) -> Tensor:
    """Mean over levels and recalls of the best precision at that recall or above, `[S]`."""
    part = taking_part.unsqueeze(-2).expand_as(right)
    curve = walk_down(sure.unsqueeze(-2).expand(right.shape), right & part, part)
    if not sure.shape[-1]:
        return sure.new_zeros(len(sure))
    precision = curve.precision().masked_fill(~curve.vertex, 0.0)
    best = F.pad(precision.flip(-1).cummax(-1).values.flip(-1), (0, 1))
    recall = ops.divide(curve.tp.double(), people[:, None, None].double())
    wanted = recall.new_tensor(_RECALLS).expand(*recall.shape[:-1], -1)
    # Where nobody is there, recall is 0 throughout, and precision too.
    reached = torch.searchsorted(recall.contiguous(), wanted.contiguous())
    return best.gather(-1, reached).mean((-1, -2))
