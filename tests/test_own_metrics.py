"""Metrics that the library does not have, as users write them: `mg.reexpress` takes them all.

The functions differ in style on purpose (loops, masks, sorted labels, counts, matrices, objects,
decorators), since it is the way a metric is written that decides how it is watched.
"""

import functools
import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import metricgrad as mg
from metricgrad.metrics.reexpression import tried_flip_gains
from metricgrad.metrics.watching import WatchedMetric

CLASSES, LABELS = 3, 4


# Decisions at a threshold


def p4(scores: Tensor, target: Tensor) -> Tensor:
    said, true = scores > 0, target == 1
    tp, tn = (said & true).sum(), (~said & ~true).sum()
    fp, fn = (said & ~true).sum(), (~said & true).sum()
    return 4 * tp * tn / (4 * tp * tn + (tp + tn) * (fp + fn))


def fowlkes_mallows(scores: Tensor, target: Tensor) -> Tensor:
    counts = torch.bincount(2 * target + (scores > 0).long(), minlength=4).double()
    _, fp, fn, tp = counts.unbind()
    return tp / ((tp + fp) * (tp + fn)).sqrt().clamp(min=1)


def markedness(scores: Tensor, target: Tensor) -> Tensor:
    total = torch.tensor(-1.0)
    for answer in (0, 1):
        given = (scores > 0).long() == answer
        right = given & (target == answer)
        total += right.sum() / given.sum().clamp(min=1)
    return total


def net_benefit(scores: Tensor, target: Tensor, odds: float = 0.3 / 0.7) -> Tensor:
    """Decision curve analysis: probabilities against a threshold of 30 %."""
    chance = F.softmax(torch.stack([torch.zeros_like(scores), scores], dim=-1), dim=-1)[:, 1]
    treated = torch.where(chance > 0.3, 1.0, 0.0)
    return (treated * target).mean() - odds * (treated * (1 - target)).mean()


@torch.no_grad()
def false_discovery_rate(scores: Tensor, target: Tensor) -> Tensor:
    found = scores.ge(0.0)
    return found.logical_and(target.eq(0)).sum().div(found.sum().clamp_min(1))


class Tversky:
    """An object with settings, as in segmentation, and a metric that is a method."""

    def __init__(self, alpha: float, beta: float) -> None:
        self.alpha, self.beta = alpha, beta

    def __call__(self, scores: Tensor, target: Tensor) -> Tensor:
        mask, truth = (scores > 0).double(), target.double()
        overlap = torch.dot(mask, truth)
        return overlap / (
            overlap + self.alpha * mask @ (1 - truth) + self.beta * (1 - mask) @ truth
        )

    def informedness(self, scores: Tensor, target: Tensor) -> Tensor:
        rates = [self._rate(scores[target == k] > 0) for k in (1, 0)]
        return rates[0] - rates[1]

    @staticmethod
    def _rate(said: Tensor) -> Tensor:
        return said.sum() / len(said)


def fairness(scores: Tensor, target: Tensor) -> Tensor:
    """Accuracy minus the gap between two groups' rates; target `[N, 2]`: label, group."""
    truth, group = target.unbind(dim=-1)
    accepted = scores > 0
    rates = [accepted[group == g].double().mean() for g in (0, 1)]
    return (accepted == truth.bool()).double().mean() - (rates[0] - rates[1]).abs()


def sharpe_ratio(scores: Tensor, returns: Tensor) -> Tensor:
    """Long or short by the sign; unbounded."""
    earned = torch.sign(scores) * returns
    return earned.mean() / earned.std()


def share_within_tolerance(tolerance: float) -> Callable[[Tensor, Tensor], Tensor]:
    def within(scores: Tensor, target: Tensor) -> Tensor:
        return (scores - target).abs().le(tolerance).double().mean()

    return within


# Orders


def profit_of_the_best(k: int, scores: Tensor, profit: Tensor) -> Tensor:
    return profit[scores.topk(k).indices].sum()


def lift(scores: Tensor, target: Tensor) -> Tensor:
    targeted = scores >= torch.quantile(scores, 0.8)
    return target[targeted].double().mean() / target.double().mean()


def enrichment_factor(scores: Tensor, target: Tensor) -> Tensor:
    size = max(1, math.ceil(0.2 * len(scores)))
    first = torch.sort(scores, descending=True, stable=True)[1][:size]
    return (target[first].sum() / size) / (target.sum() / len(target))


def kendall_tau(scores: Tensor, target: Tensor) -> Tensor:
    def directions(x: Tensor) -> Tensor:
        return torch.sign(x[:, None] - x[None, :])

    return torch.einsum("ij,ij->", directions(scores), directions(target)) / (
        len(scores) * (len(scores) - 1)
    )


def spearman(scores: Tensor, target: Tensor) -> Tensor:
    ranks = [(x.unsqueeze(-1) > x).sum(-1).double() for x in (scores, target)]
    return torch.corrcoef(torch.stack(ranks))[0, 1]


def somers_d(scores: Tensor, target: Tensor) -> Tensor:
    def share(high: Tensor, low: Tensor) -> Tensor:
        return (high.unsqueeze(-1) > low).double().mean()

    positives, negatives = scores[target == 1], scores[target == 0]
    return share(positives, negatives) - share(negatives, positives)


def gini_of_rank_sums(scores: Tensor, target: Tensor) -> Tensor:
    rank = scores.argsort().argsort() + 1
    positives, negatives = target.sum(), (1 - target).sum()
    wins = (rank * target).sum() - positives * (positives + 1) / 2
    return 2 * wins / (positives * negatives) - 1


def kolmogorov_smirnov(scores: Tensor, target: Tensor) -> Tensor:
    hit = target[torch.argsort(scores, descending=True)].double()
    return (hit.cumsum(0) / hit.sum() - (1 - hit).cumsum(0) / (1 - hit).sum()).abs().max()


def best_youden(scores: Tensor, target: Tensor) -> Tensor:
    found = []
    for threshold in scores:
        said = (scores >= threshold).double()
        found.append(
            (said * target).sum() / target.sum() - (said * (1 - target)).sum() / (1 - target).sum()
        )
    return torch.stack(found).amax()


def specificity_at_sensitivity(scores: Tensor, target: Tensor) -> Tensor:
    positives, negatives = scores[target == 1], scores[target == 0]
    cut = torch.kthvalue(positives, max(1, len(positives) // 5)).values
    return (negatives < cut).double().mean()


def precision_at_most_recall(scores: Tensor, target: Tensor) -> Tensor:
    hits = target.take_along_dim(scores.sort(descending=True).indices, dim=0).double().cumsum(0)
    precision = hits / torch.arange(1, len(scores) + 1)
    return torch.where(hits >= 0.8 * hits[-1], precision, 0.0).amax()


def rank_biased_precision(scores: Tensor, target: Tensor) -> Tensor:
    places = torch.argsort(torch.argsort(scores, descending=True))
    return 0.2 * torch.sum(target * torch.pow(0.8, places))


def discounted_hits(scores: Tensor, target: Tensor) -> Tensor:
    worth = 1 / torch.log2(torch.arange(len(scores)) + 2.0)
    of_item = torch.zeros(len(scores)).scatter(0, scores.argsort(descending=True), worth)
    return (of_item * target).sum() / worth[: int(target.sum())].sum()


def bedroc(scores: Tensor, target: Tensor, alpha: float = 5.0) -> Tensor:
    """Early recognition, without the constants that scale it to 0 and 1."""
    above = (scores.view(1, -1) > scores.view(-1, 1)).sum(dim=1)
    return (torch.exp(-alpha * (above + 1) / len(scores)) * target).sum() / target.sum()


def median_rank_of_positives(scores: Tensor, target: Tensor) -> Tensor:
    rank = scores.argsort(descending=True).argsort() + 1
    return rank[target == 1].median()


def concordance_index(scores: Tensor, target: Tensor) -> Tensor:
    """Survival: an earlier failure should have a higher risk; target `[N, 2]`: time, observed."""
    time, observed = target[:, 0], target[:, 1].bool()
    comparable = (time.unsqueeze(1) < time.unsqueeze(0)) & observed.unsqueeze(1)
    return ((scores.unsqueeze(1) > scores.unsqueeze(0)) & comparable).sum() / comparable.sum()


# Classes and labels


COSTS = torch.tensor([[0.0, 1.0, 5.0], [2.0, 0.0, 1.0], [9.0, 4.0, 0.0]])


def cost(costs: Tensor, scores: Tensor, target: Tensor) -> Tensor:
    return costs[target, scores.argmax(dim=-1)].mean()


def ordinal_error(scores: Tensor, target: Tensor) -> Tensor:
    _, answer = scores.max(dim=1)
    return F.l1_loss(answer.double(), target.double())


def macro_specificity(scores: Tensor, target: Tensor) -> Tensor:
    truth, answer = (F.one_hot(each, CLASSES).double() for each in (target, scores.argmax(-1)))
    confusion = torch.einsum("ni,nj->ij", truth, answer)
    right = confusion.diagonal()
    negatives = confusion.sum() - confusion.sum(1)
    return ((negatives - confusion.sum(0) + right) / negatives).mean()


def half_a_point_for_the_second(scores: Tensor, target: Tensor) -> Tensor:
    first_two = scores.topk(2, dim=-1).indices
    return ((first_two == target.unsqueeze(-1)) * torch.tensor([1.0, 0.5])).sum(-1).mean()


def narrow_margins(scores: Tensor, target: Tensor) -> Tensor:
    own = scores.gather(1, target.unsqueeze(1)).squeeze(1)
    other = scores.masked_fill(F.one_hot(target, CLASSES).bool(), -math.inf).amax(dim=-1)
    return (own - other < 0.5).sum()


def calibration_error(scores: Tensor, target: Tensor) -> Tensor:
    """Bits (bins, right answers) and smooth values (confidence) together."""
    confidence, answer = torch.softmax(scores, dim=-1).max(dim=-1)
    bins = torch.bucketize(confidence, torch.linspace(0.5, 0.9, 3, dtype=confidence.dtype))
    gaps = [
        ((bins == b) * (confidence - (answer == target).double())).sum().abs() for b in range(4)
    ]
    return torch.stack(gaps).sum() / len(target)


def brier_that_doubles_mistakes(scores: Tensor, target: Tensor) -> Tensor:
    chance = scores.sigmoid()
    wrong = (chance > 0.5) != (target == 1)
    return ((1 + wrong.double()) * (chance - target) ** 2).mean()


def subset_accuracy(scores: Tensor, target: Tensor) -> Tensor:
    return ((scores > 0) == target.bool()).all(dim=-1).double().mean()


def label_ranking_loss(scores: Tensor, target: Tensor) -> Tensor:
    total = torch.zeros(())
    for row, truth in zip(scores, target, strict=True):
        total = (
            total + (row[truth == 0].unsqueeze(0) >= row[truth == 1].unsqueeze(1)).double().mean()
        )
    return total / len(scores)


def coverage_error(scores: Tensor, target: Tensor) -> Tensor:
    order = scores.argsort(dim=-1, descending=True)
    return (target.gather(-1, order) * torch.arange(1, LABELS + 1)).amax(dim=-1).double().mean()


def neighbours_of_the_same_class(embeddings: Tensor, target: Tensor) -> Tensor:
    apart = torch.cdist(embeddings, embeddings) + 1e6 * torch.eye(
        len(target), dtype=embeddings.dtype
    )
    return (target[apart.argmin(dim=1)] == target).double().mean()


def boxes_that_fit(boxes: Tensor, target: Tensor) -> Tensor:
    """The share of boxes (left, top, width, height) with an IoU above one half."""

    def corners(box: Tensor) -> tuple[Tensor, Tensor]:
        return box[:, :2], box[:, :2] + F.softplus(box[:, 2:])

    (a, b), (c, d) = corners(boxes), corners(target)
    common = (torch.minimum(b, d) - torch.maximum(a, c)).clamp(min=0).prod(-1)
    return (common / ((b - a).prod(-1) + (d - c).prod(-1) - common) > 0.5).double().mean()


# Sets: scores, target, and scores of somebody who knows the target

Maker = Callable[[torch.Generator, int], tuple[Tensor, Tensor, Tensor]]


def binary(source: torch.Generator, size: int) -> tuple[Tensor, Tensor, Tensor]:
    target = (torch.rand(size, generator=source) < 0.4).long()
    target[:4] = torch.tensor([1, 0, 1, 0])
    return normal(source, size), target, 10.0 * target - 5 + normal(source, size) / 100


def real(source: torch.Generator, size: int) -> tuple[Tensor, Tensor, Tensor]:
    target = normal(source, size)
    return normal(source, size), target, target


def classes(source: torch.Generator, size: int) -> tuple[Tensor, Tensor, Tensor]:
    target = torch.randint(0, CLASSES, (size,), generator=source)
    target[:4] = torch.tensor([0, 1, 2, 2])
    return normal(source, size, CLASSES), target, 10.0 * F.one_hot(target, CLASSES)


def labels(source: torch.Generator, size: int) -> tuple[Tensor, Tensor, Tensor]:
    target = torch.randint(0, 2, (size, LABELS), generator=source)
    target[:, 0], target[:, 1] = 1, 0
    return normal(source, size, LABELS), target, 10.0 * target - 5


def survival(source: torch.Generator, size: int) -> tuple[Tensor, Tensor, Tensor]:
    observed = (torch.rand(size, generator=source) < 0.7).double()
    observed[:4] = 1
    time = normal(source, size).exp()
    return normal(source, size), torch.stack([time, observed], -1), -time


def groups(source: torch.Generator, size: int) -> tuple[Tensor, Tensor, Tensor]:
    target = torch.randint(0, 2, (size, 2), generator=source)
    target[:4] = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]])
    return normal(source, size), target, 10.0 * target[:, 0] - 5


def boxes(source: torch.Generator, size: int) -> tuple[Tensor, Tensor, Tensor]:
    target = normal(source, size, 4) / 4 + 1
    return target + normal(source, size, 4) / 3, target, target


def normal(source: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=source, dtype=torch.float64)


@dataclass(frozen=True)
class Own:
    """A metric of one's own; `bits_only` is False where scores count smoothly too.

    `clamped` is True where a gradient passes through a clamp on purpose. `trained` ones are used
    for descents, one for each way of being decided. `samples` goes to `UniLoss` where no single
    flip changes a thing: all labels of an item have to be right.
    """

    fn: Callable[..., Tensor]
    make: Maker
    options: dict[str, Any] = field(default_factory=dict)
    bits_only: bool = True
    clamped: bool = False
    trained: bool = False
    slope: float = 1.0
    steps: int = 40
    samples: int = 0

    def __str__(self) -> str:
        return self.metric.name

    @property
    def metric(self) -> WatchedMetric:
        made = mg.reexpress(self.fn, **self.options)
        assert isinstance(made, WatchedMetric)
        return made

    @property
    def source(self) -> torch.Generator:
        return torch.Generator().manual_seed(zlib.crc32(str(self).encode()))


ONE: dict[str, Any] = {"best": 1.0}
LOWER: dict[str, Any] = {"higher_is_better": False, "best": 0.0}
tversky = Tversky(0.3, 0.7)

OWN = [
    Own(p4, binary, ONE, trained=True),
    Own(fowlkes_mallows, binary, ONE),
    Own(markedness, binary, ONE),
    Own(net_benefit, binary),
    Own(false_discovery_rate, binary, LOWER),
    Own(tversky, binary, ONE),
    Own(tversky.informedness, binary, ONE),
    Own(fairness, groups, {"best": 1.0, "set_dims": (1, 2)}, trained=True, slope=2.0),
    Own(sharpe_ratio, real, trained=True),
    Own(share_within_tolerance(0.5), real, ONE, trained=True),
    Own(functools.partial(profit_of_the_best, 5), real, trained=True),
    Own(lift, binary),
    Own(enrichment_factor, binary),
    Own(kendall_tau, real, ONE),
    Own(spearman, real, ONE, trained=True),
    Own(somers_d, binary, ONE),
    Own(gini_of_rank_sums, binary, ONE, trained=True),
    Own(kolmogorov_smirnov, binary, ONE, trained=True),
    Own(best_youden, binary, ONE, steps=25),
    Own(specificity_at_sensitivity, binary, ONE, trained=True),
    Own(precision_at_most_recall, binary, ONE),
    Own(rank_biased_precision, binary),
    Own(discounted_hits, binary, ONE),
    Own(bedroc, binary),
    Own(median_rank_of_positives, binary, {"higher_is_better": False}),
    Own(concordance_index, survival, {"best": 1.0, "set_dims": (1, 2)}),
    Own(functools.partial(cost, COSTS), classes, LOWER, trained=True),
    Own(ordinal_error, classes, LOWER),
    Own(macro_specificity, classes, ONE, trained=True),
    Own(half_a_point_for_the_second, classes, ONE, trained=True),
    Own(narrow_margins, classes, LOWER),
    Own(calibration_error, classes, LOWER, trained=True, bits_only=False),
    Own(brier_that_doubles_mistakes, binary, LOWER, bits_only=False),
    Own(subset_accuracy, labels, {"best": 1.0, "multilabel": True}, trained=True, samples=4),
    Own(label_ranking_loss, labels, {**LOWER, "multilabel": True}, steps=25),
    Own(coverage_error, labels, {"higher_is_better": False, "multilabel": True}, trained=True),
    Own(neighbours_of_the_same_class, classes, ONE),
    Own(boxes_that_fit, boxes, {"best": 1.0, "set_dims": (2, 2)}, trained=True, clamped=True),
]

every_own = pytest.mark.parametrize("own", OWN, ids=str)
some_own = pytest.mark.parametrize("own", [own for own in OWN if own.trained], ids=str)


def test_none_of_them_is_in_the_library() -> None:
    names = [str(own) for own in OWN]
    assert len(set(names)) == len(names) >= 15
    assert not set(names) & set(mg.metric_names())


@every_own
def test_values_gains_and_gradients_are_the_functions(own: Own) -> None:
    """The value at its own bits and at those of other scores, flips tried one by one, slopes."""
    metric, source = own.metric, own.source
    for size in (9, 12):
        scores, target, knowing = own.make(source, size)
        scores.requires_grad_()
        plan = metric.reexpress(scores.shape, target, None, scores.dtype)
        values, live = plan.comparisons(scores)
        expected = own.fn(scores.detach(), target).double()
        torch.testing.assert_close(
            metric(scores, target), expected, check_dtype=False, rtol=1e-6, atol=0
        )
        torch.testing.assert_close(plan.from_bits(values > 0), expected, rtol=1e-6, atol=0)
        assert (plan.direct() is None) == own.bits_only
        if own.bits_only:
            others = [own.make(source, size)[0] for _ in range(4)]
            others.append(knowing + normal(source, *knowing.shape) / 3)
            bits = torch.stack([metric.comparisons(other, target)[0] > 0 for other in others])
            expected = torch.stack([own.fn(other, target).double() for other in others])
            assert len(expected.unique()) > 1  # or nothing is shown
            torch.testing.assert_close(plan.from_bits(bits), expected, rtol=1e-6, atol=1e-9)
        if size == 9:  # flips that are said to do the same are tried once: they must do the same
            gains = plan.flip_gains(values > 0)
            tried = torch.where(live, tried_flip_gains(plan, values > 0), 0.0)
            assert gains.any()
            torch.testing.assert_close(gains, tried, rtol=1e-6, atol=1e-9)
        if not own.clamped:
            check_slope(metric, scores, target, values)


def check_slope(metric: WatchedMetric, scores: Tensor, target: Tensor, values: Tensor) -> None:
    """The gradient of comparisons, against differences in a random direction."""
    source = torch.Generator().manual_seed(0)
    direction, weight = normal(source, *scores.shape), normal(source, len(values))
    (slope,) = torch.autograd.grad((weight * values).sum(), scores)
    moved = [scores.detach() + step * direction for step in (1e-6, -1e-6)]
    above, below = (metric.comparisons(each, target)[0] for each in moved)
    found = (slope * direction).sum()
    difference = (weight * (above - below)).sum() / 2e-6
    torch.testing.assert_close(found, difference, rtol=1e-3, atol=1e-5)


@some_own
def test_descent_goes_at_least_half_the_way_to_what_the_target_knows(own: Own) -> None:
    source = own.source
    scores, target, knowing = own.make(source, 16)
    loss = mg.UniLoss(own.metric, slope=own.slope, samples=own.samples, generator=source)
    scores.requires_grad_()
    before, ideal = (float(own.fn(some.detach(), target)) for some in (scores, knowing))
    assert (ideal > before) == loss.metric.higher_is_better
    optimizer = torch.optim.Adam([scores], lr=0.15)
    for _ in range(own.steps):
        optimizer.zero_grad()
        loss(scores, target).backward()
        optimizer.step()
    after = float(own.fn(scores.detach(), target))
    assert (after - before) / (ideal - before) >= 0.5


@some_own
def test_many_sets_are_as_many_single_ones(own: Own) -> None:
    """Some items do not count; the sets differ in how many do, and in how much they compare."""
    source = own.source
    made = [own.make(source, 10)[:2] for _ in range(3)]
    scores, target = (torch.stack(parts) for parts in zip(*made, strict=True))
    where = torch.rand(3, 10, generator=source) < 0.6
    where[:, :4], where[:, -1], where[2] = True, True, True
    scores[~where] = math.nan  # padding may hold anything
    scores.requires_grad_()
    losses = mg.UniLoss(own.metric).per_set(scores, target, where)
    losses.sum().backward()
    assert scores.grad is not None
    for index, counts in enumerate(where):
        alone = scores[index, counts].detach().requires_grad_()
        loss = mg.UniLoss(own.metric)(alone, target[index, counts])
        loss.backward()
        assert alone.grad is not None
        torch.testing.assert_close(losses[index], loss)
        torch.testing.assert_close(scores.grad[index, counts], alone.grad)
        assert not scores.grad[index, ~counts].any()
