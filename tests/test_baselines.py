"""The losses people use today: each equals its formula, and all keep the laws of a surrogate."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.metrics as sk
import torch
import torch.nn.functional as F
from sklearn.isotonic import isotonic_regression
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import metricgrad as mg
from metricgrad import baselines
from metricgrad.surrogates.baselines import pairs

BINARY: list[baselines.Baseline] = [
    baselines.CrossEntropy(),
    baselines.CrossEntropy(positive_weight=2.7),
    baselines.Focal(gamma=1.5, alpha=0.25),
    baselines.SoftFBeta(beta=2.0, slope=2.0),
    baselines.SoftFBeta(amplification=10.0),
    baselines.SoftJaccard(),
    baselines.SoftMcc(),
    baselines.PairwiseRanking(),
    baselines.PairwiseRanking(kind="hinge"),
    baselines.PairwiseRanking(kind="squared"),
    baselines.SmoothAP(slope=3.0),
    baselines.Lovasz(),
    baselines.RankLoss(),
    baselines.GlobalObjective(),
    baselines.GlobalObjective(objective="auc", points=5),
    baselines.GlobalObjective(objective="recall_at_precision", at=0.7, kind="logistic"),
]
CLASSES: list[baselines.Baseline] = [
    baselines.CrossEntropy(),
    baselines.Focal(),
    baselines.Focal(gamma=0.5),
    baselines.SoftFBeta(),
    baselines.SoftJaccard(),
    baselines.SoftMcc(),
    baselines.Lovasz(),
    baselines.RankLoss(),
]
GRADED: list[baselines.Baseline] = [
    baselines.ApproxNDCG(slope=2.0),
    baselines.LambdaLoss(),
    baselines.ListNet(),
]
EVERY = (
    [("binary", loss) for loss in BINARY]
    + [("classes", loss) for loss in CLASSES]
    + [("grades", loss) for loss in GRADED]
    + [("maps", baselines.HeatmapMSE(sigma=1.5))]
)
every_loss = pytest.mark.parametrize(
    ("kind", "loss"), EVERY, ids=lambda each: str(each).replace("()", "")
)


def sets(kind: str, number: int = 3, size: int = 8, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Scores and target of some sets, without ties and with all kinds of items."""
    generator = torch.Generator().manual_seed(seed)
    shape = {"classes": (size, 4), "maps": (size, 2, 5, 4)}.get(kind, (size,))
    scores = torch.randn(number, *shape, generator=generator, dtype=torch.float64)
    if kind == "maps":
        return scores, 4 * torch.rand(number, size, 2, 2, generator=generator, dtype=torch.float64)
    target = torch.randint(0, 2 if kind == "binary" else 4, (number, size), generator=generator)
    target[:, 0], target[:, 1] = 0, 1
    return scores, target


@every_loss
def test_the_gradient_is_right(kind: str, loss: baselines.Baseline) -> None:
    scores, target = sets(kind, number=1)
    assert torch.autograd.gradcheck(
        lambda values: loss.per_set(values, target), (scores.requires_grad_(),)
    )
    (gradient,) = torch.autograd.grad(loss(scores, target), scores)
    assert gradient.any()


@every_loss
def test_many_sets_masks_and_orders(kind: str, loss: baselines.Baseline) -> None:
    scores, target = sets(kind)
    together = loss.per_set(scores, target)
    torch.testing.assert_close(
        together, torch.stack([loss.per_set(s, y) for s, y in zip(scores, target, strict=True)])
    )
    torch.testing.assert_close(loss(scores, target), together.mean())
    order = torch.arange(scores.shape[1]).flip(0)
    torch.testing.assert_close(loss.per_set(scores[:, order], target[:, order]), together)
    where = torch.arange(scores.shape[1]) < 5
    where = where.unsqueeze(-1).expand(-1, 2) if kind == "maps" else where
    spoiled = scores.clone()
    spoiled[:, 5:] = torch.nan
    masked = loss.per_set(spoiled, target, where.expand(3, *where.shape))
    torch.testing.assert_close(masked, loss.per_set(scores[:, :5], target[:, :5]))


@every_loss
def test_hard_inputs_give_finite_losses_and_gradients(kind: str, loss: baselines.Baseline) -> None:
    scores, target = sets(kind, number=1)
    scores, target = scores[0], target[0]
    inputs = [(torch.zeros_like(scores), target), (1e4 * scores, target), (scores[:1], target[:1])]
    inputs += [
        (scores, torch.zeros_like(target)),
        (scores, torch.ones_like(target)),
        (scores[:0], target[:0]),
    ]
    inputs += [(scores.to(dtype), target) for dtype in (torch.float16, torch.bfloat16)]
    for values, truth in inputs:
        leaf = values.clone().requires_grad_()
        value = loss(leaf, truth)
        value.backward()
        assert value.isfinite()
        assert leaf.grad is not None
        assert leaf.grad.isfinite().all()


@every_loss
def test_a_saved_loss_is_the_same(kind: str, loss: baselines.Baseline, tmp_path: Path) -> None:
    loss.save(tmp_path / "loss.safetensors")
    loaded = mg.load_surrogate(tmp_path / "loss.safetensors")
    scores, target = sets(kind)
    assert type(loaded) is type(loss)
    assert loaded(scores, target) == loss(scores, target)


@every_loss
def test_descending_a_loss_improves_it(kind: str, loss: baselines.Baseline) -> None:
    scores, target = sets(kind, number=1, size=20)
    scores = (scores / 4).requires_grad_()
    optimizer = torch.optim.Adam([scores], lr=0.1)
    before = loss(scores, target).item()
    for _ in range(50):
        optimizer.zero_grad()
        loss(scores, target).backward()
        optimizer.step()
    assert loss(scores, target).item() < before


def one(kind: str) -> tuple[Tensor, Tensor]:
    scores, target = sets(kind, number=1, seed=3)
    return scores[0], target[0]


def test_cross_entropy_is_scikit_learns_log_loss() -> None:
    scores, target = one("binary")
    expected = sk.log_loss(target, scores.sigmoid())
    assert baselines.CrossEntropy()(scores, target).item() == pytest.approx(expected)
    weights = torch.where(target == 1, 8.1, 1.0)
    weighted = sk.log_loss(target, scores.sigmoid(), sample_weight=weights) * weights.mean()
    assert baselines.CrossEntropy(positive_weight=8.1)(scores, target).item() == pytest.approx(
        weighted.item()
    )
    scores, target = one("classes")
    expected = sk.log_loss(target, scores.softmax(-1), labels=range(4))
    assert baselines.CrossEntropy()(scores, target).item() == pytest.approx(expected)


def test_focal_loss_is_its_formula() -> None:
    scores, target = one("binary")
    total = 0.0
    for score, truth in zip(scores.tolist(), target.tolist(), strict=True):
        chance = 1 / (1 + math.exp(-score))
        right, alpha = (chance, 0.25) if truth else (1 - chance, 0.75)
        total -= alpha * (1 - right) ** 2 * math.log(right)
    assert baselines.Focal(gamma=2.0, alpha=0.25)(scores, target).item() == pytest.approx(
        total / len(scores)
    )


STEEP: dict[str, Any] = {"slope": 1e4}


@pytest.mark.parametrize(
    ("loss", "metric"),
    [
        (baselines.SoftFBeta(beta=2.0, **STEEP), mg.metric("fbeta", beta=2.0)),
        (baselines.SoftJaccard(**STEEP), mg.metric("jaccard")),
        (baselines.SoftMcc(**STEEP), mg.metric("mcc")),
        (baselines.SmoothAP(**STEEP), mg.metric("average_precision")),
        (baselines.ApproxNDCG(**STEEP), mg.metric("ndcg", gain="exponential")),
    ],
    ids=str,
)
def test_with_a_steep_slope_a_soft_metric_is_the_metric(
    loss: baselines.Baseline, metric: mg.Metric
) -> None:
    kind = "grades" if metric.name == "ndcg" else "binary"
    scores, target = sets(kind, number=20, size=12)
    torch.testing.assert_close(
        loss.per_set(scores, target), 1 - metric(scores, target), rtol=0, atol=1e-6
    )


def test_amplified_chances_are_anylosss() -> None:
    scores, target = one("binary")
    chance = 1 / (1 + torch.exp(-73 * (scores.sigmoid() - 0.5)))
    tp, fp, fn = (
        (chance * target).sum(),
        (chance * (1 - target)).sum(),
        ((1 - chance) * target).sum(),
    )
    found = baselines.SoftFBeta(amplification=73.0)(scores, target)
    torch.testing.assert_close(found, 1 - 2 * tp / (2 * tp + fp + fn))


@pytest.mark.parametrize(
    ("kind", "of"),
    [
        ("logistic", lambda c: math.log(1 + math.exp(-c))),
        ("hinge", lambda c: max(0.0, 1 - c)),
        ("squared", lambda c: (1 - c) ** 2),
    ],
)
def test_pairwise_ranking_is_a_mean_over_pairs(kind: str, of: Any) -> None:
    scores, target = one("binary")
    losses = [of(float(a - b)) for a in scores[target == 1] for b in scores[target == 0]]
    assert baselines.PairwiseRanking(kind=kind)(scores, target).item() == pytest.approx(
        sum(losses) / len(losses)
    )


def smooth_ap(scores: Tensor, target: Tensor, where: Tensor, slope: float) -> Tensor:
    """The formula with a matrix of all pairs of items, `[..., N, N]`."""
    others = ~torch.eye(scores.shape[-1], dtype=torch.bool) & where.unsqueeze(-2)
    above = (slope * (scores.unsqueeze(-2) - scores.unsqueeze(-1))).sigmoid() * others
    ranks = 1 + above.sum(-1)
    among_positives = 1 + (above * target.unsqueeze(-2)).sum(-1)
    positive = (target == 1) & where
    return 1 - (among_positives / ranks * positive).sum(-1) / positive.sum(-1)


def logistic_pairs(scores: Tensor, target: Tensor, where: Tensor, slope: float) -> Tensor:
    high, low = (target == 1) & where, (target == 0) & where
    counts = high.unsqueeze(-1) & low.unsqueeze(-2)
    loss = F.softplus(scores.unsqueeze(-2) - scores.unsqueeze(-1))
    return (loss * counts).sum((-1, -2)) / counts.sum((-1, -2))


def ideal_dcg(gains: Tensor) -> Tensor:
    places = torch.arange(2, gains.shape[-1] + 2).double()
    return (gains.sort(-1, descending=True).values / places.log2()).sum(-1)


def approx_ndcg(scores: Tensor, target: Tensor, where: Tensor, slope: float) -> Tensor:
    others = ~torch.eye(scores.shape[-1], dtype=torch.bool) & where.unsqueeze(-2)
    above = (slope * (scores.unsqueeze(-2) - scores.unsqueeze(-1))).sigmoid() * others
    gains = target.double() * where
    return 1 - (gains / (2 + above.sum(-1)).log2()).sum(-1) / ideal_dcg(gains)


def lambda_pairs(scores: Tensor, target: Tensor, where: Tensor, slope: float) -> Tensor:
    gains = target.double() * where
    order = scores.detach().masked_fill(~where, -torch.inf).argsort(-1, descending=True)
    discounts = 1 / (order.argsort(-1) + 2).double().log2()
    high, low = (target == 1) & where, (target == 0) & where
    weight = (discounts.unsqueeze(-1) - discounts.unsqueeze(-2)).abs()
    loss = F.softplus(slope * (scores.unsqueeze(-2) - scores.unsqueeze(-1))) / math.log(2)
    counts = high.unsqueeze(-1) & low.unsqueeze(-2)
    return (loss * weight * counts).sum((-1, -2)) / ideal_dcg(gains)


IN_BLOCKS = [
    (baselines.SmoothAP(slope=3.0), smooth_ap),
    (baselines.PairwiseRanking(), logistic_pairs),
    (baselines.ApproxNDCG(slope=3.0), approx_ndcg),
    (baselines.LambdaLoss(slope=3.0), lambda_pairs),
]
NAMES = [type(loss).__name__ for loss, _ in IN_BLOCKS]


@pytest.mark.parametrize(("loss", "formula"), IN_BLOCKS, ids=NAMES)
@pytest.mark.parametrize("entries", [1, 40, 1 << 20])  # one row, some rows, all rows at a time
@pytest.mark.parametrize("number", [1, 3])
def test_blocks_of_pairs_add_up_to_the_formula(
    loss: baselines.Baseline, formula: Any, entries: int, number: int, monkeypatch: Any
) -> None:
    monkeypatch.setattr(pairs, "_BLOCK_ENTRIES", entries)
    scores, target = sets("binary", number=number, size=17)
    where = torch.rand(target.shape, generator=torch.Generator().manual_seed(1)) < 0.8
    where[:, :2] = True
    scores.requires_grad_()
    expected = formula(scores, target, where, 3.0)
    found = loss.per_set(scores, target, where)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    slopes = torch.arange(1.0, number + 1).double()
    (gradient,) = torch.autograd.grad(found, scores, slopes)
    torch.testing.assert_close(
        gradient, torch.autograd.grad(expected, scores, slopes)[0], rtol=0, atol=1e-12
    )
    assert torch.autograd.gradcheck(lambda each: loss.per_set(each, target, where), (scores,))


class Largest(TorchDispatchMode):
    """Counts the elements of the largest tensor that any operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor):
            self.elements = max(self.elements, out.numel())
        return out


@pytest.mark.parametrize("loss", [each for each, _ in IN_BLOCKS], ids=NAMES)
def test_no_pass_holds_all_pairs_of_a_large_set(loss: baselines.Baseline) -> None:
    scores = torch.randn(4000, generator=torch.Generator().manual_seed(0)).requires_grad_()
    target = torch.arange(4000) % 10 == 0  # 1.44 million pairs
    held = 0

    def hold(tensor: Tensor) -> Tensor:
        nonlocal held
        held += tensor.numel()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(hold, lambda tensor: tensor), Largest() as forth:
        value = loss(scores, target)
    with Largest() as back:
        value.backward()
    assert 1e5 < forth.elements <= pairs._BLOCK_ENTRIES
    assert 1e5 < back.elements <= pairs._BLOCK_ENTRIES
    assert held < 20 * len(scores)


def test_lambda_loss_is_a_weighted_sum_over_pairs() -> None:
    scores, target = one("grades")
    rank = scores.argsort(descending=True).argsort() + 1
    gain, discount = 2.0 ** target.double() - 1, 1 / torch.log2(1 + rank.double())
    ideal = (gain.sort(descending=True).values / torch.log2(torch.arange(2, len(gain) + 2))).sum()
    total = 0.0
    for i in range(len(scores)):
        for j in range(len(scores)):
            if target[i] > target[j]:
                change = abs((gain[i] - gain[j]) * (discount[i] - discount[j])) / ideal
                total += float(change * math.log2(1 + math.exp(-float(scores[i] - scores[j]))))
    assert baselines.LambdaLoss()(scores, target).item() == pytest.approx(total)


def test_listnet_is_a_cross_entropy_of_lists() -> None:
    scores, target = one("grades")
    expected = F.cross_entropy(scores.unsqueeze(0), target.double().softmax(-1).unsqueeze(0))
    torch.testing.assert_close(baselines.ListNet()(scores, target), expected)


def test_rank_loss_counts_the_classes_above_the_target() -> None:
    scores, target = one("classes")
    above = (scores > scores.gather(-1, target.unsqueeze(-1))).sum(-1).double()
    torch.testing.assert_close(baselines.RankLoss(slope=1e5)(scores, target), above.mean())
    paired = baselines.RankLoss(slope=1e5, rank="pairwise")
    torch.testing.assert_close(paired(scores, target), above.mean())


@pytest.mark.parametrize("slope", [1.0, 3.0])
def test_rank_loss_of_pairs_is_its_formula(slope: float) -> None:
    scores, target = one("classes")
    where = torch.arange(len(target)) % 3 > 0
    binary = torch.stack([torch.zeros(len(target)).double(), scores[:, 0]], -1)
    for values, truth, given in ((scores, target, scores), (binary, target % 2, scores[:, 0])):
        total = 0.0
        for row, own, counts in zip(values.tolist(), truth.tolist(), where.tolist(), strict=True):
            wins = [
                1 / (1 + math.exp(-slope * (row[own] - other)))
                for c, other in enumerate(row)
                if c != own
            ]
            total += counts * abs(1 + sum(wins) - len(row))
        found = baselines.RankLoss(slope=slope, rank="pairwise")(given, truth, where)
        assert found.item() == pytest.approx(total / int(where.sum()))


@pytest.mark.parametrize("slope", [0.3, 1.0, 3.0])
def test_rank_loss_is_the_distance_of_the_projected_rank_from_the_top(slope: float) -> None:
    """Blondel's projection, by scikit-learn's isotonic regression of sorted scores minus ranks."""
    scores, target = one("classes")
    total = 0.0
    for row, own in zip(slope * scores.numpy(), target.tolist(), strict=True):
        order = row.argsort()
        places = np.arange(1, len(row) + 1)
        ranks = row[order] - isotonic_regression(row[order] - places)
        total += len(row) - ranks[order.tolist().index(own)]
    found = baselines.RankLoss(slope=slope)(scores, target).item()
    assert found == pytest.approx(total / len(target))


def test_lovasz_is_jaccard_where_errors_are_zero_and_one() -> None:
    """Scores of +-1 have errors 0 and 2: twice the Jaccard loss of the decisions."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        scores = torch.randint(0, 2, (9,), generator=generator).double() * 2 - 1
        target = torch.randint(0, 2, (9,), generator=generator)
        target[0] = 1
        expected = 2 * (1 - sk.jaccard_score(target, scores > 0))
        assert baselines.Lovasz()(scores, target).item() == pytest.approx(expected)


def test_lovasz_is_the_sum_over_sorted_errors() -> None:
    scores, target = one("binary")
    errors = (1 - scores * (2 * target - 1)).clamp(min=0)
    order = errors.argsort(descending=True)

    def jaccard_loss(mistakes: set[int]) -> float:
        positive = {i for i in range(len(target)) if target[i] == 1}
        predicted = positive ^ mistakes
        return 1 - len(positive & predicted) / max(1, len(positive | predicted))

    total, before = 0.0, 0.0
    for k in range(len(order)):
        after = jaccard_loss(set(order[: k + 1].tolist()))
        total += float(errors[order[k]]) * (after - before)
        before = after
    assert baselines.Lovasz()(scores, target).item() == pytest.approx(total)


def test_global_objectives_are_their_lagrangians() -> None:
    scores, target = one("binary")
    loss = baselines.GlobalObjective(objective="recall_at_precision", at=0.8)
    missed = (1 - scores[target == 1]).clamp(min=0).sum()
    taken = (1 + scores[target == 0]).clamp(min=0).sum()
    positives = (target == 1).sum()
    expected = (2 * missed + 0.8 / 0.2 * taken - positives) / positives  # threshold 0, multiplier 1
    torch.testing.assert_close(loss(scores, target), expected)
    loss(scores, target).backward()
    assert loss.multiplier.grad is not None
    ascent = -(missed + 4 * taken - positives) / positives
    torch.testing.assert_close(loss.multiplier.grad, ascent.reshape(1).float())
    area = baselines.GlobalObjective(objective="auc", points=2)
    rates = (
        missed / positives
        + taken / (target == 0).sum()
        - torch.tensor([0.25, 0.75], dtype=torch.float64)
    )
    torch.testing.assert_close(area(scores, target), rates.mean())


def test_heatmaps_are_compared_with_gaussians() -> None:
    maps, joints = one("maps")
    total = 0.0
    for item in range(len(maps)):
        for joint in range(2):
            x, y = joints[item, joint].tolist()
            for row in range(5):
                for column in range(4):
                    wanted = math.exp(-((column - x) ** 2 + (row - y) ** 2) / (2 * 1.5**2))
                    total += (float(maps[item, joint, row, column]) - wanted) ** 2
    assert baselines.HeatmapMSE(sigma=1.5)(maps, joints).item() == pytest.approx(
        total / (len(maps) * 2 * 20)
    )


def test_a_bump_ends_at_its_square_around_the_nearest_pixel() -> None:
    joints = torch.tensor([2.4, 0.6])
    maps = baselines.HeatmapMSE.target_maps(joints, (4, 6), sigma=1.0, bump=3)
    beside = math.exp(-0.5)
    across = torch.tensor([0.0, beside, 1.0, beside, 0.0, 0.0])
    down = torch.tensor([beside, 1.0, beside, 0.0])
    torch.testing.assert_close(maps, down[:, None] * across)
    loss = baselines.HeatmapMSE(sigma=1.0, bump=3)
    assert loss(maps[None, None], joints[None, None]) == 0
    assert baselines.HeatmapMSE(sigma=1.0)(maps[None, None], joints[None, None]) > 0


@pytest.mark.parametrize("gamma", [0.0, 0.1, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("lead", [9.0, 17.0, 30.0, 95.0, 103.0, 200.0, 1e4])
def test_focal_loss_lets_go_of_items_that_are_surely_right(gamma: float, lead: float) -> None:
    """The gradient of (1 - p)^gamma is infinite at p = 1, that of the loss is 0."""
    binary = torch.tensor([lead, -lead]), torch.tensor([1, 0])
    classes = torch.tensor([[lead, 0.0, 0.0], [0.0, -1.0, lead]]), torch.tensor([0, 2])
    for scores, target in (binary, classes):
        found = []
        for dtype in (torch.float32, torch.float64):
            leaf = scores.to(dtype, copy=True).requires_grad_()
            baselines.Focal(gamma=gamma)(leaf, target).backward()
            assert leaf.grad is not None
            assert leaf.grad.isfinite().all()
            found.append(leaf.grad.double())
        torch.testing.assert_close(found[0], found[1], rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize("classes", [3, 65])
def test_cross_entropy_of_many_pixels_is_that_of_torch(classes: int) -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(2, classes, 70, 60, generator=generator).double().requires_grad_()
    target = torch.randint(classes, (2, 70, 60), generator=generator)
    expected = torch.nn.functional.cross_entropy(scores, target)
    found = mg.baselines.CrossEntropy()(scores, target)
    torch.testing.assert_close(found, expected)
    gradients = [torch.autograd.grad(value, scores)[0] for value in (found, expected)]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: baselines.Focal(gamma=-1.0), "gamma must be 0 or more; got -1.0"),
        (
            lambda: baselines.CrossEntropy(positive_weight=0.0),
            "positive_weight must be above 0; got 0.0",
        ),
        (lambda: baselines.SoftJaccard(slope=-1.0), "slope must be above 0; got -1.0"),
        (
            lambda: baselines.PairwiseRanking(kind="cubic"),
            "kind must be 'logistic', .* got 'cubic'",
        ),
        (lambda: baselines.GlobalObjective(at=1.5), "at must lie between 0 and 1; got 1.5"),
        (lambda: baselines.HeatmapMSE(bump=4), "bump must be an odd number of pixels, 1 or more"),
        (
            lambda: baselines.RankLoss(rank="bubble"),  # type: ignore[arg-type]
            "rank must be .* got 'bubble'",
        ),
        (lambda: baselines.HeatmapMSE(sigma=0.0), "sigma must be above 0; got 0.0"),
        (
            lambda: baselines.PairwiseRanking()(torch.zeros(3, 4), torch.zeros(3).long()),
            r"takes binary scores .* got scores \[3, 4\]",
        ),
    ],
)
def test_wrong_options_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("name", ["SmoothAP", "ApproxNDCG", "LambdaLoss", "RankLoss", "SoftMcc"])
def test_a_slope_that_would_train_backwards_is_refused(name: str) -> None:
    for slope in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match=f"slope must be above 0; got {slope}"):
            getattr(baselines, name)(slope=slope)
