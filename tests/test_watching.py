"""Watching a metric: which comparisons are found, how often it runs, gradients in detail."""

import itertools
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import metricgrad as mg
from metricgrad.metrics.reexpression import tried_flip_gains
from metricgrad.metrics.watching import WatchError
from tests.watched import (
    CLASS_SCORES,
    CLASS_TARGET,
    SCORES,
    TARGET,
    Function,
    accuracy,
    auc,
    confident_mistakes,
    f1,
    gradient,
    line_of,
    normal,
    precision_of_picked,
    watched,
)
from tools.campaign.styles import scripted


@pytest.mark.parametrize(
    ("fn", "operation", "number"),
    [
        (f1, ">", 6),
        (accuracy, "argmax ==", 4),
        (lambda s, y: (y == s.argmax(-1)).double().mean(), "argmax ==", 4),
        (lambda s, y: F.one_hot(s.argmax(-1), 3)[range(4), y].double().mean(), "argmax ==", 12),
        (lambda s, y: (s.argmax(-1) - y).abs().double().mean(), "argmax", 12),
        (lambda s, y: y[s.topk(2).indices].double().mean(), "topk", 6),
        (lambda s, y: y[s.argsort(descending=True)[:2]].double().mean(), "argsort", 6),
        (
            lambda s, y: (y[s.topk(2).indices] * torch.tensor([1.0, 0.6])).sum(),
            "topk",
            9,
        ),  # their order matters
        (
            lambda s, y: (y[s.argsort()[-2:]] * torch.tensor([1.0, 0.6])).sum(),
            "argsort",
            9,
        ),
        (lambda s, y: y[s.argsort()].double().cumsum(0).mean(), "argsort", 9),
        # The best and the worst place: no shift of them shows the labels of all items.
        (lambda s, y: y[s.argsort()[::5]].double().mean(), "argsort", 15),
        (
            lambda s, y: (y + torch.arange(6) // 2)[s.argsort()].double().cumsum(0).mean(),
            "argsort",
            13,
        ),
        (lambda s, y: (s.argsort().argsort() * y).double().mean(), "argsort", 15),
        (lambda s, y: (s.sort().indices * y).double().mean(), "sort", 15),
        (
            lambda s, y: ((s > 0) * y).sum() / (s.gt(0).sum() + (s <= 0).sum() + (-s < 0).sum()),
            ">",
            6,
        ),
        (lambda s, y: (s == s.max()).double() @ y.double(), "==", 12),
        pytest.param(lambda s, y: (s.sign() * y).mean(), "sign", 6),
        (lambda s, y: (s.sigmoid().round() == y).double().mean(), "round", 6),
        (
            lambda s, y: (torch.bucketize(s, torch.tensor([-1.5, 0.0, 1.5]).double()) * y).sum(),
            "bucketize",
            18,
        ),
        (lambda s, y: ((s >= s.topk(2).values[-1]) * y).sum(), ">=", 6),
        (auc, ">", 9),
        (lambda s, y: (s[y == 1] > 0).double().mean(), ">", 3),
    ],
)
def test_only_the_comparisons_that_matter_are_made(
    fn: Function, operation: str, number: int
) -> None:
    of_classes = "argmax" in operation
    scores, target = (CLASS_SCORES, CLASS_TARGET) if of_classes else (SCORES, TARGET)
    metric = mg.reexpress(fn)
    rows = [
        row.split("  ")
        for row in re.sub(" {2,}", "  ", metric.explain(scores, target)).split("\n")[1:-2]
    ]
    assert {row[1] for row in rows} == {operation}
    assert sum(int(row[2]) for row in rows) == number
    values, live = metric.comparisons(scores, target)
    assert len(values) == number
    assert live.all()


def test_what_is_compared_twice_is_decided_once_and_what_is_not_is_not() -> None:
    def twice(scores: Tensor, target: Tensor) -> Tensor:
        return (
            ((scores > 0) * target).mean(dtype=torch.float64)
            + (scores > 0.4).double().mean()
            + f1(scores, target)
        )

    values, _ = mg.reexpress(twice).comparisons(SCORES, TARGET)
    torch.testing.assert_close(values, torch.cat([SCORES, SCORES - 0.4]))


@pytest.mark.parametrize(
    "scores", [torch.zeros(6), torch.tensor([-0.5, -0.5, 0.5, 0.3, -0.2, -0.2])], ids=str
)
def test_items_that_happen_to_be_equal_are_compared_on_their_own(scores: Tensor) -> None:
    """A head that starts with zeros has all scores equal."""

    def of_each(scores: Tensor, target: Tensor) -> Tensor:
        return (
            torch.stack(
                [(one > 0) == (truth == 1) for one, truth in zip(scores, target, strict=True)]
            )
            .double()
            .mean()
        )

    def of_all(scores: Tensor, target: Tensor) -> Tensor:
        return ((scores > 0) == (target == 1)).double().mean()

    found, expected = (
        gradient(mg.reexpress(fn, best=1.0), scores, TARGET) for fn in (of_each, of_all)
    )
    torch.testing.assert_close(found, expected)


def test_classes_that_happen_to_be_equal_are_compared_on_their_own() -> None:
    def of_each(scores: Tensor, target: Tensor) -> Tensor:
        return torch.stack(
            [((scores[:, c] > 0) == (target == c)).double().mean() for c in range(3)]
        ).mean()

    def of_all(scores: Tensor, target: Tensor) -> Tensor:
        return ((scores > 0) == F.one_hot(target, 3).bool()).double().mean()

    scores = torch.zeros(4, 3)
    found, expected = (
        gradient(mg.reexpress(fn, best=1.0), scores, CLASS_TARGET) for fn in (of_each, of_all)
    )
    torch.testing.assert_close(found, expected)


def two_steps(scores: Tensor, target: Tensor) -> Tensor:
    said = scores > 0
    hits = target[scores.topk(2).indices].sum()
    return hits + (said & (target == 1)).sum()


def test_explain_is_a_table_of_lines_operations_and_numbers() -> None:
    metric = mg.reexpress(two_steps)
    header, first, second, summary, bits = metric.explain(SCORES, TARGET).split("\n")
    assert header.split() == ["where", "operation", "comparisons", "code"]
    code = "said = scores > 0"
    assert first.split() == ["line", str(line_of(two_steps, code)), ">", "6", *code.split()]
    code = "hits = target[scores.topk(2).indices].sum()"
    assert second.split() == ["line", str(line_of(two_steps, code)), "topk", "6", *code.split()]
    assert summary.startswith("two_steps = 4 from 12 comparisons; ")
    assert bits == "bits 101010" + "100010"


def test_explain_is_of_the_last_set_without_one_and_of_the_first_of_many() -> None:
    metric = mg.reexpress(f1)
    with pytest.raises(
        ValueError, match=r"f1 has not been run on a set yet; pass one: explain\(scores, target\)"
    ):
        metric.explain()
    mg.UniLoss(metric)(torch.stack([SCORES, -SCORES]), torch.stack([TARGET, TARGET]))
    assert metric.explain() == metric.explain(SCORES, TARGET)
    assert metric.explain().endswith("bits 101010")
    assert "bits" not in metric.explain(normal(65), torch.arange(65) % 2)  # too many to look at


def test_explain_says_whether_replays_are_made_at_once_or_why_not() -> None:
    at_once, one_by_one = mg.reexpress(f1), mg.reexpress(precision_of_picked)
    for metric in (at_once, one_by_one):
        gradient(metric, SCORES, TARGET)
    assert "replayed for many configurations at once (torch.vmap)" in at_once.explain()
    assert re.search(
        r"one configuration after another, as torch.vmap cannot run it \(.*shape.*\)",
        one_by_one.explain(),
    )


def test_explain_says_so_before_the_first_step_too() -> None:
    assert "torch.vmap" in mg.reexpress(f1).explain(SCORES, TARGET)


def test_whole_numbers_can_be_explained() -> None:
    assert mg.reexpress(f1).explain([2, -1, 3, -3], [1, 0, 0, 1]).endswith("bits 1010")


def test_files_that_only_begin_like_torch_are_the_users() -> None:
    file = Path(torch.__file__).parent.with_name("torch_extras.py")
    space: dict[str, Any] = {}
    exec(
        compile("def metric(scores, target):\n    return (scores > 0).sum()\n", file, "exec"), space
    )
    assert "line 2 " in mg.reexpress(space["metric"]).explain(SCORES, TARGET)


AXIS: dict[str, Any] = {"axis": 0}  # as NumPy calls it
WAYS_TO_CHOOSE: dict[str, Function] = {
    "topk(2, largest=False)": lambda s, y: y[s.topk(2, largest=False).indices].sum(),
    "topk(2, 0, False)": lambda s, y: y[torch.topk(s, 2, 0, False)[1]].sum(),
    "argmin()": lambda s, y: y[s.argmin()],
    "min(0)": lambda s, y: y[s.min(0).indices],
    "max(dim=0)": lambda s, y: y[torch.max(s, dim=0).indices],
    "sort(0, True)": lambda s, y: y[s.sort(0, True).indices][:2].sum(),
    "argsort(axis=0)": lambda s, y: (y[torch.argsort(s, **AXIS)] * torch.arange(6)).sum(),
    "last of argsort": lambda s, y: y[s.argsort()[-2:]].sum(),
    "rows of argsort": lambda s, y: y.view(2, 3)[s.view(2, 3).argsort(0), torch.arange(3)][0].sum(),
    "columns of topk": lambda s, y: (s.view(2, 3).topk(2, 1).indices * torch.arange(2)).sum(),
    "reversed ranks": lambda s, y: (s.argsort().argsort(descending=True) * y).sum(),
    "sum of topk": lambda s, y: s.topk(2).indices.sum(),
    "argmax of all": lambda s, y: s.view(2, 3).argmax() * 1.0,
    "argmax != k": lambda s, y: (s.view(2, 3).argmax(-1, keepdim=True) != 1).sum(),
    "scores in their order": lambda s, y: ((s[s.argsort()] > 0.1) * torch.arange(6)).sum(),
}


@pytest.mark.parametrize("fn", WAYS_TO_CHOOSE.values(), ids=WAYS_TO_CHOOSE)
def test_every_way_to_choose_is_replayed_with_other_bits(fn: Function) -> None:
    target = torch.tensor([3, 1, 4, 15, 9, 2])
    metric = mg.reexpress(lambda scores, target: fn(scores, target).double())
    plan = metric.reexpress((6,), target, None, torch.float64)
    plan.comparisons(SCORES)
    others = [normal(6, seed=seed) for seed in range(8)]
    bits = torch.stack([metric.comparisons(other, target)[0] > 0 for other in others])
    expected = torch.stack([fn(other, target).double() for other in others])
    assert len(expected.unique()) > 1
    torch.testing.assert_close(plan.from_bits(bits), expected)
    torch.testing.assert_close(plan.flip_gains(bits), tried_flip_gains(plan, bits))


STEPS: dict[str, Function] = {
    "round": lambda s: s.round(),
    "round(decimals=1)": lambda s: 10 * (s / 10).round(decimals=1),
    "floor": lambda s: s.floor(),
    "ceil": lambda s: torch.ceil(s),
    "trunc": lambda s: s.trunc(),
    "long": lambda s: s.long(),
    "to(int)": lambda s: s.to(torch.int32),
    "//": lambda s: s // 1.0,
    "div(rounding_mode='trunc')": lambda s: torch.div(s, 1.0, rounding_mode="trunc"),
    "bucketize": lambda s: torch.bucketize(s, torch.tensor([-1.5, 0.0, 1.5]).double()),
    "searchsorted": lambda s: torch.searchsorted(torch.tensor([-1.5, 0.0, 1.5]).double(), s),
    "sign": lambda s: s.sign(),
    "heaviside": lambda s: torch.heaviside(s, torch.tensor(0.5).double()),
    "<=": lambda s: s <= 0.4,
    "!=": lambda s: s != 0.4,
}


@pytest.mark.parametrize("fn", STEPS.values(), ids=STEPS)
def test_every_step_function_is_replayed_with_other_bits(fn: Function) -> None:
    target = torch.arange(-3, 4)  # the steps that scores may reach
    metric = mg.reexpress(lambda scores, target: (fn(scores) * (target + 5)).double().sum())
    plan = metric.reexpress((7,), target, None, torch.float64)
    first, *others = ((2 * normal(7, seed=seed)).clamp(-2.9, 2.9) for seed in range(6))
    plan.comparisons(first)
    bits = torch.stack([metric.comparisons(other, target)[0] > 0 for other in others])
    expected = torch.stack([metric(other, target) for other in others])
    torch.testing.assert_close(plan.from_bits(bits), expected)


def test_beside_an_order_of_equal_labels_other_comparisons_keep_their_gains() -> None:
    def positives(scores: Tensor, target: Tensor) -> Tensor:
        return (scores > 0).double().mean()

    def with_order(scores: Tensor, target: Tensor) -> Tensor:
        ordered = target[scores.argsort(descending=True)]
        return positives(scores, target) + (ordered * torch.arange(len(scores))).sum()

    expected = gradient(mg.reexpress(positives), SCORES, torch.zeros(6).long())
    found = gradient(mg.reexpress(with_order), SCORES, torch.zeros(6).long())
    torch.testing.assert_close(found, expected)


def test_a_value_with_many_steps_is_compared_with_the_nearest_two() -> None:
    metric = mg.reexpress(lambda scores, target: (20 * scores).round().sum())
    plan = metric.reexpress(SCORES.shape, TARGET, None, SCORES.dtype)
    values, _ = plan.comparisons(SCORES)
    steps = (20 * SCORES).round().unsqueeze(-1) + torch.tensor([-0.5, 0.5])
    torch.testing.assert_close(values, (20 * SCORES.unsqueeze(-1) - steps).flatten())
    torch.testing.assert_close(plan.flip_gains(values > 0), torch.ones(12).double())


# How often the function runs, and how


def test_all_at_once_and_one_by_one_give_the_same() -> None:
    """The same metric in two ways, of which torch.vmap can run one."""

    def precision(scores: Tensor, target: Tensor) -> Tensor:
        return ((scores > 0) * target).sum() / (scores > 0).sum()

    one, other = watched(precision, best=1.0), watched(precision_of_picked, best=1.0)
    scores, target = normal(20), torch.arange(20) % 3 // 2
    torch.testing.assert_close(gradient(one, scores, target), gradient(other, scores, target))
    assert one.habits.vmaps is True
    assert other.habits.vmaps is False
    assert other.habits.reason


def test_a_step_is_two_runs_watched_and_replayed() -> None:
    metric = watched(f1, best=1.0)
    loss, runs = mg.UniLoss(metric), []
    for seed in range(4):
        loss(normal(20, seed=seed).requires_grad_(), torch.arange(20) % 2).backward()
        runs.append(metric.habits.runs)
    assert [after - before for before, after in itertools.pairwise(runs)] == [2, 2, 2]
    assert metric.runs == runs[-1]


def test_a_step_without_vmap_is_a_run_for_every_flip_up_to_the_bound() -> None:
    for flips, expected in ((64, 1 + 20), (5, 1 + 5)):
        metric = watched(precision_of_picked, best=1.0, flips=flips)
        loss = mg.UniLoss(metric)
        loss(normal(20), torch.arange(20) % 2)
        before = metric.runs
        loss(normal(20, seed=1), torch.arange(20) % 2)
        assert metric.runs - before == expected


def test_at_least_one_flip_must_be_tried() -> None:
    assert gradient(mg.reexpress(f1, flips=1), SCORES, TARGET).any()
    with pytest.raises(ValueError, match="flips"):
        mg.reexpress(f1, flips=0)


def test_flips_are_drawn_by_the_generator_and_right_on_average() -> None:
    scores, target = normal(12), torch.arange(12) % 3 // 2
    bits = scores > 0
    exact = mg.reexpress(f1).reexpress(scores.shape, target, None, scores.dtype)
    exact.comparisons(scores)
    gains = exact.flip_gains(bits)

    def draws(seed: int, number: int) -> Tensor:
        metric = mg.reexpress(f1, flips=4, generator=torch.Generator().manual_seed(seed))
        plan = metric.reexpress(scores.shape, target, None, scores.dtype)
        plan.comparisons(scores)
        return torch.stack([plan.flip_gains(bits) for _ in range(number)])

    drawn = draws(0, 300)
    assert ((drawn != 0).sum(-1) <= 4).all()  # no more than were asked for
    torch.testing.assert_close(drawn.amax(0), 3 * gains.clamp(min=0))  # each counts for three
    error = (drawn.mean(0) - gains).abs() / (drawn.std(0) / 300**0.5)
    assert (error < 4).all()
    torch.testing.assert_close(draws(1, 3), draws(1, 3))
    assert not torch.equal(draws(1, 3), draws(2, 3))


# Gradients


def sorted_chances(scores: Tensor, target: Tensor) -> Tensor:
    chances, order = scores.sigmoid().sort(descending=True)
    return (chances * target[order] / torch.arange(1, len(scores) + 1)).sum()


def slopes(fn: Function, scores: Tensor, target: Tensor, step: float = 1e-6) -> Tensor:
    """By differences: no comparison turns out otherwise for so small a step, so bits are fixed."""
    moves = step * torch.eye(scores.numel(), dtype=scores.dtype).reshape(-1, *scores.shape)
    return torch.stack(
        [fn(scores + move, target) - fn(scores - move, target) for move in moves]
    ) / (2 * step)


@pytest.mark.parametrize("fn", [confident_mistakes, sorted_chances])
def test_the_smooth_part_has_its_own_gradient(fn: Function) -> None:
    scores, target = normal(10, seed=3).requires_grad_(), torch.arange(10) % 3 // 2
    metric = mg.reexpress(fn, best=1.0)
    plan = metric.reexpress(scores.shape, target, None, scores.dtype)
    plan.comparisons(scores)
    direct = plan.direct()
    assert direct is not None
    (found,) = torch.autograd.grad(direct, scores)
    torch.testing.assert_close(found, slopes(fn, scores.detach(), target), rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize(
    "options",
    [{}, {"samples": 3}, {"portion": 0.5}, {"interpolation": "idw"}],
    ids=str,
)
def test_far_from_all_comparisons_only_the_smooth_part_is_left(options: dict[str, Any]) -> None:
    scores = torch.where(SCORES > 0, SCORES + 2, SCORES - 2)
    metric = mg.reexpress(confident_mistakes, higher_is_better=False, best=0.0)
    found = gradient(metric, scores, TARGET, slope=50.0, **options)
    torch.testing.assert_close(
        found, slopes(confident_mistakes, scores, TARGET), rtol=1e-5, atol=1e-8
    )


def test_near_them_both_parts_are_added() -> None:
    def bits_alone(scores: Tensor, target: Tensor) -> Tensor:
        weight = (1 + (SCORES.sigmoid() ** 2)) / len(SCORES)  # what a mistake costs at these scores
        return (((scores > 0) != (target == 1)) * weight).sum()

    options: dict[str, Any] = {"higher_is_better": False, "best": 0.0}
    found = gradient(mg.reexpress(confident_mistakes, **options), SCORES, TARGET)
    expected = gradient(mg.reexpress(bits_alone, **options), SCORES, TARGET)
    torch.testing.assert_close(
        found, expected + slopes(confident_mistakes, SCORES, TARGET), rtol=1e-5, atol=1e-8
    )


@pytest.mark.parametrize("fn", [precision_of_picked, confident_mistakes])
def test_inverse_distance_weighting_works_too(fn: Function) -> None:
    scores, target = normal(16, seed=5).requires_grad_(), torch.arange(16) % 3 // 2
    better = fn is not confident_mistakes
    metric = mg.reexpress(fn, higher_is_better=better, best=float(better))
    source = torch.Generator().manual_seed(0)
    loss = mg.UniLoss(metric, interpolation="idw", slope=2.0, generator=source)
    optimizer = torch.optim.Adam([scores], lr=0.1)
    values = []
    for _ in range(60):
        optimizer.zero_grad()
        value = loss(scores, target)
        value.backward()
        values.append(value.detach())
        assert scores.grad is not None
        assert scores.grad.isfinite().all()
        optimizer.step()
    assert values[-1] < 0.7 * values[0]


def test_what_cannot_be_seen_is_refused_or_taken_as_a_black_box() -> None:
    with pytest.raises(WatchError, match="uses the scores where they cannot be watched"):
        mg.reexpress(scripted).comparisons(SCORES, TARGET)
    assert gradient(scripted, SCORES, TARGET).all()
    constant = mg.reexpress(lambda scores, target: target.double().mean())
    assert constant.comparisons(SCORES, TARGET)[0].shape == (0,)


def mapped_accuracy(scores: Tensor, target: Tensor) -> Tensor:
    return torch.vmap(lambda s, y: ((s > 0) == (y == 1)).double())(scores, target).mean()


def watched_and_mapped(scores: Tensor, target: Tensor) -> Tensor:
    return mapped_accuracy(scores, target) + ((scores > 0) * target).double().mean()


def far_from_zero(scores: Tensor, target: Tensor) -> Tensor:
    """Has the same value for opposite scores."""
    return torch.vmap(lambda s, y: ((s.abs() > 0.5) == (y == 1)).double())(scores, target).mean()


def slope_of_relu(scores: Tensor, target: Tensor) -> Tensor:
    return (torch.func.grad(lambda s: s.relu().sum())(scores) * target).sum() / target.sum()


UNWATCHABLE = (mapped_accuracy, watched_and_mapped, far_from_zero, slope_of_relu)


@pytest.mark.parametrize("fn", UNWATCHABLE)
def test_what_torch_func_hides_is_refused_by_its_line(fn: Function) -> None:
    with pytest.raises(WatchError, match=r"line \d+: .* uses the scores inside torch.vmap"):
        mg.reexpress(fn).comparisons(SCORES, TARGET)
    of_target = mg.reexpress(
        lambda s, y: (torch.vmap(lambda t: t > 0)(y) * (s > 0)).double().mean()
    )
    assert of_target.comparisons(SCORES, TARGET)[0].shape == SCORES.shape


@pytest.mark.parametrize("fn", [mapped_accuracy, watched_and_mapped, slope_of_relu, scripted])
def test_no_batch_hides_that_a_function_cannot_be_watched(fn: Function) -> None:
    """Half of these items are right, so opposite scores have the same accuracy."""
    scores = torch.tensor([1.0, -0.2, 0.3, -2.0], dtype=torch.float64, requires_grad=True)
    target = torch.tensor([1, 1, 0, 0])
    loss = mg.UniLoss(mg.from_function(fn, higher_is_better=True))
    value = loss(scores, target)
    assert value.item() == pytest.approx(-float(fn(scores.detach(), target)))
    (slope,) = torch.autograd.grad(value, scores)
    assert slope.abs().max() > 0


def test_symmetry_does_not_hide_that_a_function_cannot_be_watched() -> None:
    def spread(scores: Tensor, target: Tensor) -> Tensor:
        return ((scores.abs() > 0.5) * target).sum()

    with pytest.warns(DeprecationWarning, match="jit.trace"):
        scripted_spread: Any = torch.jit.trace(spread, (SCORES, TARGET))
    with pytest.raises(WatchError, match="uses the scores where they cannot be watched"):
        mg.reexpress(scripted_spread).comparisons(SCORES, TARGET)


def test_a_batch_without_comparisons_decides_nothing() -> None:
    def fn(scores: Tensor, target: Tensor) -> Tensor:
        if not target.any():
            return scores.sum() * 0
        return scripted(scores, target)

    loss = mg.UniLoss(fn)
    nothing = loss(SCORES.clone().requires_grad_(), torch.zeros_like(TARGET))
    nothing.backward()
    scores = SCORES.clone().requires_grad_()
    loss(scores, TARGET).backward()
    assert scores.grad is not None
    assert scores.grad.all()


@pytest.mark.parametrize("step", [F.relu, lambda s: F.threshold(s, 0.0, 0.0)])
def test_the_sign_of_what_is_cut_at_0_falls_to_0(step: Any) -> None:
    def recall(scores: Tensor, target: Tensor) -> Tensor:
        return (step(scores).sign() * target).sum() / target.sum()

    loss = mg.UniLoss(recall)
    loss(SCORES, TARGET)
    plan = loss.metric.reexpress(SCORES.shape, TARGET, None, SCORES.dtype)
    own = plan.comparisons(SCORES)[0] > 0
    assert plan.flip_gains(own).max().item() == pytest.approx(1 / 3)
