"""Watching a metric: what is refused and how that is said, which comparisons are found, the fine print of gradients."""

import copy
import inspect
import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import metricgrad as mg
from metricgrad.metrics.reexpress import WatchedMetric
from metricgrad.metrics.watch import WatchError

Function = Callable[..., Any]

SCORES = torch.tensor([2.0, -1.0, 0.5, -0.3, 1.2, -0.8], dtype=torch.float64)
TARGET = torch.tensor([1, 0, 0, 1, 1, 0])
CLASS_SCORES = torch.tensor([[0.3, 1.0, -0.5], [2.0, 0.1, 0.4], [0.0, -0.2, 0.9], [-1.0, 0.6, 0.5]]).double()
CLASS_TARGET = torch.tensor([1, 0, 1, 2])


def f1(scores: Tensor, target: Tensor) -> Tensor:
    predicted, positive = scores > 0, target == 1
    return 2 * (predicted & positive).sum() / (predicted.sum() + positive.sum()).clamp(min=1)


def auc(scores: Tensor, target: Tensor) -> Tensor:
    return (scores[target == 1].unsqueeze(1) > scores[target == 0]).double().mean()


def precision_of_picked(scores: Tensor, target: Tensor) -> Tensor:
    return target[scores > 0].double().mean()


def accuracy(scores: Tensor, target: Tensor) -> Tensor:
    return (scores.argmax(-1) == target).double().mean()


def watched(fn: Function, **options: Any) -> WatchedMetric:
    metric = mg.reexpress(fn, **options)
    assert isinstance(metric, WatchedMetric)
    return metric


def gradient(metric: Any, scores: Tensor, target: Tensor, **options: Any) -> Tensor:
    scores = scores.detach().clone().requires_grad_()
    mg.UniLoss(metric, **options)(scores, target).backward()
    assert scores.grad is not None
    return scores.grad


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def line_of(fn: Function, code: str) -> int:
    lines, first = inspect.getsourcelines(fn)
    return next(number for number, line in enumerate(lines, first) if line.strip() == code)


# What is refused


def branches(scores: Tensor, target: Tensor) -> Tensor:
    if scores.max() > 0:
        return f1(scores, target)
    return torch.zeros(())


def branches_on_a_count(scores: Tensor, target: Tensor) -> Tensor:
    hits = ((scores > 0) & (target == 1)).sum()
    while hits == 0:
        return torch.zeros(())
    return hits / target.sum()


def takes_the_larger(scores: Tensor, target: Tensor) -> Tensor:
    shares = [(scores > at).double().mean() for at in (0.0, 1.0)]
    return max(shares, key=lambda share: share)


def uses_item(scores: Tensor, target: Tensor) -> Tensor:
    count = (scores > 0).sum().item()
    return torch.tensor(count / len(scores))


def uses_numpy(scores: Tensor, target: Tensor) -> Any:
    decisions = (scores > 0).numpy()
    return decisions.mean()


def uses_tolist(scores: Tensor, target: Tensor) -> float:
    best = sorted(scores.detach().tolist())[-2]
    return sum(best > each for each in target.tolist())


def uses_float(scores: Tensor, target: Tensor) -> float:
    return float(f1(scores, target))


def uses_int(scores: Tensor, target: Tensor) -> Tensor:
    size = int((scores > 0).sum())
    return target[:size].double().mean()


def counts_with_a_range(scores: Tensor, target: Tensor) -> Tensor:
    return torch.stack([target[i] for i in range((scores > 0).sum())]).sum()


def writes_by_a_mask(scores: Tensor, target: Tensor) -> Tensor:
    kept = scores.clone()
    kept[target == 0] = 0.0
    return (kept > 0).double().mean()


def writes_a_decision(scores: Tensor, target: Tensor) -> Tensor:
    table = torch.zeros(2)
    table[0] = (scores > 0).sum()
    return table[0] / len(scores)


def fills_the_diagonal(scores: Tensor, target: Tensor) -> Tensor:
    apart = torch.cdist(scores.unsqueeze(-1), scores.unsqueeze(-1))
    apart.fill_diagonal_(9.0)
    return (target[apart.argmin(-1)] == target).double().mean()


def writes_to_out(scores: Tensor, target: Tensor) -> Tensor:
    place = torch.zeros(len(scores), dtype=torch.bool)
    torch.gt(scores, 0, out=place)
    return place.double().mean()


def compares_what_it_picked(scores: Tensor, target: Tensor) -> Tensor:
    picked = scores[scores > 0]
    return picked.gt(1).double().mean()


def compares_it_by_an_operator(scores: Tensor, target: Tensor) -> Tensor:
    picked = scores[scores > 0]
    return (picked > 1).double().mean()


def asks_whether_picked_are_equal(scores: Tensor, target: Tensor) -> Tensor:
    picked = torch.masked_select(scores, scores > 0)
    return torch.as_tensor(picked == 1).double().mean()


def looks_scores_up(scores: Tensor, target: Tensor) -> Tensor:
    sorted_negatives = scores[target == 0].sort().values
    return torch.searchsorted(sorted_negatives, scores[target == 1]).double().mean()


def asks_what_is_close(scores: Tensor, target: Tensor) -> Tensor:
    return torch.isclose(scores, target.double(), atol=0.5).double().mean()


def uses_the_place_of_a_median(scores: Tensor, target: Tensor) -> Tensor:
    middle = torch.median(scores, dim=0).indices
    return target[middle].double()


REFUSALS: list[tuple[Function, str, str, str]] = [
    (branches, "if scores.max() > 0:", "decides a Python branch", "torch.where for a branch"),
    (branches_on_a_count, "while hits == 0:", "decides a Python branch", "torch.where for a branch"),
    (takes_the_larger, "return max(shares, key=lambda share: share)", "decides a Python branch", "torch.where"),
    (uses_item, "count = (scores > 0).sum().item()", "leaves torch by .item()", "tensors for numbers"),
    (uses_numpy, "decisions = (scores > 0).numpy()", "leaves torch by .numpy()", "as a black box"),
    (uses_tolist, "best = sorted(scores.detach().tolist())[-2]", "leaves torch by .tolist()", "stay in torch"),
    (uses_float, "return float(f1(scores, target))", "leaves torch by float()", "tensors for numbers"),
    (uses_int, "size = int((scores > 0).sum())", "leaves torch by int()", "tensors for numbers"),
    (counts_with_a_range, "return torch.stack(", "becomes a Python index", "stay in torch"),
    (writes_by_a_mask, "kept[target == 0] = 0.0", "writes into a tensor", "torch.where, scatter, stack or cat"),
    (writes_a_decision, "table[0] = (scores > 0).sum()", "writes into a tensor", "torch.where, scatter, stack or cat"),
    (fills_the_diagonal, "apart.fill_diagonal_(9.0)", "in place by fill_diagonal_", "make a new one"),
    (writes_to_out, "torch.gt(scores, 0, out=place)", "writes into a tensor", "make a new one"),
    (compares_what_it_picked, "return picked.gt(1)", "another comparison of scores has picked", "keep all items"),
    (compares_it_by_an_operator, "return (picked > 1)", "another comparison of scores has picked", "keep all items"),
    (asks_whether_picked_are_equal, "(picked == 1)", "another comparison of scores has picked", "keep all items"),
    (looks_scores_up, "return torch.searchsorted(", "looks scores up among scores", r"(a > b).sum(-1)"),
    (asks_what_is_close, "return torch.isclose(", "torch.isclose, which has no gradient", "use comparisons"),
    (uses_the_place_of_a_median, "return target[middle]", "not taken apart", "indices of argmax, sort or topk"),
]


@pytest.mark.parametrize(("fn", "code", "what", "way_out"), REFUSALS, ids=lambda part: getattr(part, "__name__", ""))
def test_a_refusal_names_the_line_the_reason_and_the_way_out(fn: Function, code: str, what: str, way_out: str) -> None:
    lines, first = inspect.getsourcelines(fn)
    number, line = next((first + at, line.strip()) for at, line in enumerate(lines) if code in line)
    place = re.escape(f"{__file__}, line {number}: `{line}` ")
    with pytest.raises(WatchError, match=f"^{place}.*{re.escape(what)}.*; .*{re.escape(way_out)}"):
        mg.UniLoss(mg.reexpress(fn))(SCORES, TARGET)


def never_compares(scores: Tensor, target: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(scores, target.double())


def is_random(scores: Tensor, target: Tensor) -> Tensor:
    return ((scores > 0) * torch.rand(len(scores))).sum()


def changes_and_looks(scores: Tensor, target: Tensor) -> Tensor:
    apart = scores - target
    apart.abs_()
    return (apart < 1).double().mean()


def counts_in_place(scores: Tensor, target: Tensor) -> Tensor:
    confusion = torch.zeros(2, 2)
    confusion.index_put_((target, (scores > 0).long()), torch.ones(len(target)), accumulate=True)
    return confusion.trace() / len(target)


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (never_compares, "never compares scores, so it has a gradient as it is: use it, or minus it, as the loss"),
        (is_random, "when it is called and .* when it is watched.* or it is random"),
        (changes_and_looks, "changes a tensor in place that is looked at later; .*torch.where"),
        (counts_in_place, "changes a tensor in place that is looked at later; .*scatter"),
        (lambda scores, target: scores > 0, r"must give a tensor with one number for a set; got shape \[6\]"),
        (lambda scores, target: ((scores > 0).sum(), 6), "must give a tensor with one number for a set; got tuple"),
        (lambda scores, target: None, "must give a tensor with one number for a set; got NoneType None"),
    ],
)
def test_what_no_single_line_is_to_blame_for_is_said_too(fn: Function, message: str) -> None:
    with pytest.raises(WatchError, match=message):
        mg.UniLoss(mg.reexpress(fn))(SCORES, TARGET)


def test_the_line_is_the_one_of_a_helper_that_is_called() -> None:
    def metric(scores: Tensor, target: Tensor) -> Tensor:
        return torch.tensor(uses_float(scores, target))

    with pytest.raises(WatchError, match=f"line {line_of(uses_float, 'return float(f1(scores, target))')}: "):
        mg.reexpress(metric).explain(SCORES, TARGET)


def test_a_change_in_place_is_refused_by_its_line() -> None:
    with pytest.raises(WatchError, match=f"line {line_of(changes_and_looks, 'apart.abs_()')}: "):
        mg.reexpress(changes_and_looks).explain(SCORES, TARGET)


def test_a_change_in_place_is_noticed_whatever_the_first_set_was() -> None:
    with pytest.raises(WatchError, match=r"apart\.abs_"):
        mg.reexpress(changes_and_looks).comparisons(TARGET + 0.5, TARGET)  # abs changes nothing here


def stops_early(scores: Tensor, target: Tensor) -> Tensor:
    hits = target[scores > 0]
    if len(hits) == 0:
        return torch.zeros(())
    return hits.sum() / len(hits)


def counts_up_to_three(scores: Tensor, target: Tensor) -> Tensor:
    hits = target[scores > 0].double()
    return hits.mean() if len(hits) < 4 else hits.sum()


def test_a_branch_on_a_size_is_refused_or_followed() -> None:
    scores = -SCORES.abs()
    try:
        found = gradient(mg.reexpress(stops_early, best=1.0), scores, TARGET)
    except WatchError:
        return
    assert (found[TARGET == 1] < 0).all()  # each of them alone would be a hit


def test_another_path_of_the_same_length_is_refused_or_followed() -> None:
    plan = mg.reexpress(counts_up_to_three).reexpress(SCORES.shape, TARGET, None, SCORES.dtype)
    plan.comparisons(SCORES)
    try:
        value = plan.from_bits(torch.ones(len(SCORES), dtype=torch.bool))
    except WatchError:
        return
    assert value == counts_up_to_three(SCORES.abs(), TARGET) == 3


def moves_the_target(scores: Tensor, target: Tensor) -> Tensor:
    target -= 1
    return ((scores > 0) == (target == 0)).double().mean()


def test_a_function_that_changes_its_target_changes_nobody_elses() -> None:
    target = TARGET.clone()
    found = gradient(mg.reexpress(moves_the_target, best=1.0), SCORES, target)
    torch.testing.assert_close(target, TARGET)
    torch.testing.assert_close(
        found, gradient(mg.reexpress(lambda s, y: ((s > 0) == (y == 1)).double().mean(), best=1.0), SCORES, TARGET)
    )


def test_a_function_that_fails_for_other_bits_says_so_or_does_without_them() -> None:
    def largest_of_picked(scores: Tensor, target: Tensor) -> Tensor:
        return target[scores > 0].double().max()

    assert gradient(mg.reexpress(largest_of_picked, best=1.0), torch.tensor([1.0, -1.0]), TARGET[:2]).isfinite().all()


# What is found


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
        (lambda s, y: (y[s.topk(2).indices] * torch.tensor([1.0, 0.6])).sum(), "topk", 9),  # their order matters
        (lambda s, y: y[s.argsort()].double().cumsum(0).mean(), "argsort", 9),
        (lambda s, y: (y + torch.arange(6) // 2)[s.argsort()].double().cumsum(0).mean(), "argsort", 13),
        (lambda s, y: (s.argsort().argsort() * y).double().mean(), "argsort", 15),
        (lambda s, y: (s.sort().indices * y).double().mean(), "sort", 15),
        (lambda s, y: ((s > 0) * y).sum() / (s.gt(0).sum() + (s <= 0).sum() + (-s < 0).sum()), ">", 6),
        (lambda s, y: (s == s.max()).double() @ y.double(), "==", 12),
        pytest.param(lambda s, y: (s.sign() * y).mean(), "sign", 6),
        (lambda s, y: (s.sigmoid().round() == y).double().mean(), "round", 6),
        (lambda s, y: (torch.bucketize(s, torch.tensor([-1.5, 0.0, 1.5]).double()) * y).sum(), "bucketize", 18),
        (lambda s, y: ((s >= s.topk(2).values[-1]) * y).sum(), ">=", 6),
        (auc, ">", 9),
        (lambda s, y: (s[y == 1] > 0).double().mean(), ">", 3),
    ],
)
def test_only_the_comparisons_that_matter_are_made(fn: Function, operation: str, number: int) -> None:
    of_classes = "argmax" in operation
    scores, target = (CLASS_SCORES, CLASS_TARGET) if of_classes else (SCORES, TARGET)
    metric = mg.reexpress(fn)
    rows = [row.split("  ") for row in re.sub(" {2,}", "  ", metric.explain(scores, target)).split("\n")[1:-2]]
    assert {row[1] for row in rows} == {operation}
    assert sum(int(row[2]) for row in rows) == number
    values, live = metric.comparisons(scores, target)
    assert len(values) == number
    assert live.all()


def test_what_is_compared_twice_is_decided_once_and_what_is_not_is_not() -> None:
    def twice(scores: Tensor, target: Tensor) -> Tensor:
        return ((scores > 0) * target).mean(dtype=torch.float64) + (scores > 0.4).double().mean() + f1(scores, target)

    values, _ = mg.reexpress(twice).comparisons(SCORES, TARGET)
    torch.testing.assert_close(values, torch.cat([SCORES, SCORES - 0.4]))


@pytest.mark.parametrize("scores", [torch.zeros(6), torch.tensor([-0.5, -0.5, 0.5, 0.3, -0.2, -0.2])], ids=str)
def test_items_that_happen_to_be_equal_are_compared_on_their_own(scores: Tensor) -> None:
    """A head that starts with zeros has all scores equal."""

    def of_each(scores: Tensor, target: Tensor) -> Tensor:
        return (
            torch.stack([(one > 0) == (truth == 1) for one, truth in zip(scores, target, strict=True)]).double().mean()
        )

    def of_all(scores: Tensor, target: Tensor) -> Tensor:
        return ((scores > 0) == (target == 1)).double().mean()

    found, expected = (gradient(mg.reexpress(fn, best=1.0), scores, TARGET) for fn in (of_each, of_all))
    torch.testing.assert_close(found, expected)


def test_classes_that_happen_to_be_equal_are_compared_on_their_own() -> None:
    def of_each(scores: Tensor, target: Tensor) -> Tensor:
        return torch.stack([((scores[:, c] > 0) == (target == c)).double().mean() for c in range(3)]).mean()

    def of_all(scores: Tensor, target: Tensor) -> Tensor:
        return ((scores > 0) == F.one_hot(target, 3).bool()).double().mean()

    scores = torch.zeros(4, 3)
    found, expected = (gradient(mg.reexpress(fn, best=1.0), scores, CLASS_TARGET) for fn in (of_each, of_all))
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
    with pytest.raises(ValueError, match=r"f1 has not been run on a set yet; pass one: explain\(scores, target\)"):
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
        r"one configuration after another, as torch.vmap cannot run it \(.*shape.*\)", one_by_one.explain()
    )


def test_explain_says_so_before_the_first_step_too() -> None:
    assert "torch.vmap" in mg.reexpress(f1).explain(SCORES, TARGET)


def test_whole_numbers_can_be_explained() -> None:
    assert mg.reexpress(f1).explain([2, -1, 3, -3], [1, 0, 0, 1]).endswith("bits 1010")


def test_files_that_only_begin_like_torch_are_the_users() -> None:
    file = Path(torch.__file__).parent.with_name("torch_extras.py")
    space: dict[str, Any] = {}
    exec(compile("def metric(scores, target):\n    return (scores > 0).sum()\n", file, "exec"), space)
    assert "line 2 " in mg.reexpress(space["metric"]).explain(SCORES, TARGET)


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

    drawn = draws(0, 600)
    assert ((drawn != 0).sum(-1) <= 4).all()  # no more than were asked for
    torch.testing.assert_close(drawn.amax(0), 3 * gains.clamp(min=0))  # each counts for three
    error = (drawn.mean(0) - gains).abs() / (drawn.std(0) / 600**0.5)
    assert (error < 4).all()
    torch.testing.assert_close(draws(1, 3), draws(1, 3))
    assert not torch.equal(draws(1, 3), draws(2, 3))


# Gradients


def confident_mistakes(scores: Tensor, target: Tensor) -> Tensor:
    """Bits times smooth values, smooth values alone, and bits alone."""
    chance = scores.sigmoid()
    wrong = (scores > 0) != (target == 1)
    return (wrong * chance**2).mean() + 0.1 * (chance - target).abs().sum() + wrong.double().mean()


def sorted_chances(scores: Tensor, target: Tensor) -> Tensor:
    chances, order = scores.sigmoid().sort(descending=True)
    return (chances * target[order] / torch.arange(1, len(scores) + 1)).sum()


def slopes(fn: Function, scores: Tensor, target: Tensor, step: float = 1e-6) -> Tensor:
    """By differences: no comparison turns out otherwise for so small a step, so bits are fixed."""
    moves = step * torch.eye(scores.numel(), dtype=scores.dtype).reshape(-1, *scores.shape)
    return torch.stack([fn(scores + move, target) - fn(scores - move, target) for move in moves]) / (2 * step)


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
    torch.testing.assert_close(found, slopes(confident_mistakes, scores, TARGET), rtol=1e-5, atol=1e-8)


def test_near_them_both_parts_are_added() -> None:
    def bits_alone(scores: Tensor, target: Tensor) -> Tensor:
        weight = (1 + (SCORES.sigmoid() ** 2)) / len(SCORES)  # what a mistake costs at these scores
        return (((scores > 0) != (target == 1)) * weight).sum()

    options: dict[str, Any] = {"higher_is_better": False, "best": 0.0}
    found = gradient(mg.reexpress(confident_mistakes, **options), SCORES, TARGET)
    expected = gradient(mg.reexpress(bits_alone, **options), SCORES, TARGET)
    torch.testing.assert_close(found, expected + slopes(confident_mistakes, SCORES, TARGET), rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("fn", [f1, auc, precision_of_picked, confident_mistakes])
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


# Data that is not as usual


EVERY_KIND: dict[str, tuple[Function, bool]] = {
    "threshold": (f1, False),
    "pairs": (lambda s, y: (s.unsqueeze(0) > s.unsqueeze(1)).double().mean(-1) @ y.double(), False),
    "sorted labels": (lambda s, y: y[s.argsort()].double().cumsum(0).mean(), False),
    "ranks": (lambda s, y: (s.argsort().argsort() * y).double().mean(), False),
    "members": (lambda s, y: y[s.topk(1).indices].double().mean(), False),
    "picked": (precision_of_picked, False),
    "smooth too": (confident_mistakes, False),
    "classes": (accuracy, True),
    "class numbers": (lambda s, y: (s.argmax(-1) - y).abs().double().mean(), True),
}
every_kind = pytest.mark.parametrize(("fn", "of_classes"), EVERY_KIND.values(), ids=EVERY_KIND)


@every_kind
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("tied", [False, True], ids=["", "tied"])
def test_every_precision_has_a_loss_and_a_gradient(
    fn: Function, of_classes: bool, dtype: torch.dtype, tied: bool
) -> None:
    scores, target = (CLASS_SCORES, CLASS_TARGET) if of_classes else (SCORES, TARGET)
    scores = (scores.round() if tied else scores).to(dtype).clone().requires_grad_()
    loss = mg.UniLoss(mg.reexpress(fn))(scores, target)
    loss.backward()
    torch.testing.assert_close(loss.double(), -fn(scores.detach().double(), target).double(), rtol=0, atol=1e-3)
    assert scores.grad is not None
    assert scores.grad.dtype == dtype
    assert scores.grad.isfinite().all()
    assert scores.grad.any()


@every_kind
def test_scores_that_are_all_equal_have_a_loss_and_a_gradient(fn: Function, of_classes: bool) -> None:
    scores = torch.zeros(4, 3) if of_classes else torch.zeros(6)
    target = CLASS_TARGET if of_classes else TARGET
    scores.requires_grad_()
    loss = mg.UniLoss(mg.reexpress(fn))(scores, target)
    loss.backward()
    assert scores.grad is not None
    assert scores.grad.isfinite().all()
    if fn is precision_of_picked:  # nothing is picked: there is no precision
        assert loss == 0
        return
    assert float(loss.detach()) == pytest.approx(-float(fn(scores.detach(), target)))
    assert scores.grad.any()


@every_kind
def test_one_item_has_a_loss_and_a_gradient(fn: Function, of_classes: bool) -> None:
    scores, target = (CLASS_SCORES[:1], CLASS_TARGET[:1]) if of_classes else (SCORES[:1], TARGET[:1])
    scores = scores.clone().requires_grad_()
    loss = mg.UniLoss(mg.reexpress(fn))(scores, target)
    loss.backward()
    assert float(loss.detach()) == pytest.approx(-float(fn(scores.detach(), target)))
    assert scores.grad is not None
    assert scores.grad.isfinite().all()


@pytest.mark.parametrize(
    ("fn", "scores", "target"),
    [
        (auc, SCORES, torch.zeros(6).long()),
        (lambda s, y: y[s.argsort()].double().cumsum(0).mean(), SCORES, torch.ones(6).long()),
        (lambda s, y: torch.tensor(0.5), SCORES, TARGET),
        (f1, SCORES[:0], TARGET[:0]),
        (auc, torch.zeros(0, 6), torch.zeros(0, 6).long()),
    ],
    ids=["one class", "one label", "constant", "no item", "no set"],
)
def test_where_nothing_is_compared_the_gradient_is_zero(fn: Function, scores: Tensor, target: Tensor) -> None:
    scores = scores.clone().requires_grad_()
    loss = mg.UniLoss(mg.reexpress(fn))(scores, target)
    loss.backward()
    assert loss.isfinite()
    assert scores.grad is not None
    assert not scores.grad.any()


def test_one_class_among_many_sets_is_no_trouble() -> None:
    scores, target = torch.stack([SCORES, -SCORES]).requires_grad_(), torch.stack([TARGET, torch.ones_like(TARGET)])
    loss = mg.UniLoss(mg.reexpress(f1, best=1.0))
    torch.testing.assert_close(
        loss.per_set(scores, target).detach(), 1 - torch.stack([*map(f1, scores, target)]).double()
    )


def test_a_set_without_a_value_is_left_out() -> None:
    """auc is NaN where there is but one class."""
    target = torch.stack([TARGET, torch.zeros_like(TARGET), 1 - TARGET])
    scores = normal(3, 6).requires_grad_()
    loss = mg.UniLoss(mg.reexpress(auc, best=1.0))
    value = loss(scores, target)
    value.backward()
    assert scores.grad is not None
    assert not scores.grad[1].any()
    rest = scores[[0, 2]].detach().requires_grad_()
    alone = loss(rest, target[[0, 2]])
    alone.backward()
    torch.testing.assert_close(value, alone)
    torch.testing.assert_close(scores.grad[[0, 2]], rest.grad)


# Metrics without bounds


def earned(scores: Tensor, profit: Tensor) -> Tensor:
    return (profit * (scores > 0)).sum()


def in_thousands(fn: Function) -> Function:
    return lambda scores, profit: 1000 * fn(scores, profit)


@pytest.mark.parametrize("options", [{}, {"interpolation": "idw"}, {"samples": 2}], ids=str)
def test_profit_in_units_and_in_thousands_have_one_gradient(options: dict[str, Any]) -> None:
    scores, profit = normal(20), normal(20, seed=1)

    def of(fn: Function) -> Tensor:
        return gradient(mg.reexpress(fn), scores, profit, generator=torch.Generator().manual_seed(0), **options)

    torch.testing.assert_close(of(in_thousands(earned)), of(earned))
    assert 0.1 < of(earned).abs().sum() < 10


def test_the_gradient_is_that_of_the_metric_over_its_range() -> None:
    scores, profit = normal(20), normal(20, seed=1)
    span = float(profit.clamp(min=0).sum() - profit.clamp(max=0).sum())  # all gains alone, all losses alone
    bounded = gradient(mg.reexpress(earned, best=span), scores, profit)
    ideal_scores_of_others = gradient(mg.reexpress(earned), scores, profit) / bounded
    torch.testing.assert_close(ideal_scores_of_others, ideal_scores_of_others[0].expand(20))
    assert float(ideal_scores_of_others[0]) == pytest.approx(1 / span, rel=0.2)  # cut at the middle, not at 0


def test_a_range_is_found_for_targets_of_many_columns() -> None:
    scores, target = normal(20), normal(20, 2, seed=1)

    def of_the_first(scores: Tensor, target: Tensor) -> Tensor:
        return earned(scores, target[:, 0])

    one, other = (
        gradient(mg.reexpress(fn, set_dims=(1, 2)), scores, target) for fn in (of_the_first, in_thousands(of_the_first))
    )
    torch.testing.assert_close(one, other)


def test_a_range_is_found_though_ideal_scores_have_no_value() -> None:
    scores, profit = normal(20), normal(20, seed=1) / 10

    def mean_of_the_bold(scores: Tensor, profit: Tensor) -> Tensor:
        return profit[scores > 1].mean()

    one, other = (
        gradient(mg.reexpress(fn), scores, profit) for fn in (mean_of_the_bold, in_thousands(mean_of_the_bold))
    )
    torch.testing.assert_close(one, other)


# Ways of writing that look as good as any other


@pytest.mark.parametrize(
    ("fn", "same"),
    [
        pytest.param(
            lambda s, y: (torch.bucketize(s, boundaries=torch.tensor([0.0]).double()) == y).double().mean(),
            lambda s, y: (torch.bucketize(s, torch.tensor([0.0]).double()) == y).double().mean(),
            id="bucketize(boundaries=)",
        ),
        pytest.param(
            lambda s, y: ((torch.clamp(input=s, min=-1) > 0) == y).double().mean(),
            lambda s, y: ((torch.clamp(s, min=-1) > 0) == y).double().mean(),
            id="clamp(input=)",
        ),
        pytest.param(
            lambda s, y: (s.sgn() == 2 * y - 1).double().mean(),
            lambda s, y: (s.sign() == 2 * y - 1).double().mean(),
            id="sgn",
        ),
        pytest.param(
            lambda s, y: (torch.div(s, 0.4, rounding_mode="floor") >= y).double().mean(),
            lambda s, y: (torch.floor(s / 0.4) >= y).double().mean(),
            id="rounding_mode",
        ),
        pytest.param(
            lambda s, y: (s // 0.4 >= y).double().mean(),
            lambda s, y: (torch.floor(s / 0.4) >= y).double().mean(),
            id="//",
        ),
        pytest.param(
            lambda s, y: (((s / 10).round(decimals=1) > 0) == y).double().mean(),
            lambda s, y: ((s.round() > 0) == y).double().mean(),
            id="round(decimals=)",
        ),
        pytest.param(torch.inference_mode()(f1), f1, id="inference_mode"),
        pytest.param(torch.no_grad()(f1), f1, id="no_grad"),
        pytest.param(lambda s, y: f1(s.detach().clone().cpu().contiguous(), y), f1, id="detach"),
        pytest.param(lambda s, y: f1(input_of(s), y), f1, id="as_tensor"),
        pytest.param(lambda s, y: torch.stack([f1(s, y), f1(s, y)]).mean(), f1, id="twice"),
        pytest.param(
            lambda s, y: torch.sum(torch.gt(input=s, other=0) == (y == 1)) / len(s),
            lambda s, y: ((s > 0) == (y == 1)).double().mean(),
            id="gt(input=, other=)",
        ),
    ],
)
def test_another_way_of_writing_has_the_same_gradient(fn: Function, same: Function) -> None:
    one, other = (gradient(mg.reexpress(some, best=1.0), SCORES, TARGET) for some in (fn, same))
    torch.testing.assert_close(one, other)
    assert other.any()


def input_of(scores: Any) -> Tensor:
    return torch.as_tensor(scores, dtype=torch.float64)


# Keeping a loss


def test_a_saved_loss_is_loaded_with_its_function(tmp_path: Path) -> None:
    metric = mg.reexpress(f1, best=1.0)
    loss = mg.UniLoss(metric, slope=2.0, relaxation=0.5)
    loss.save(tmp_path / "loss.safetensors")
    loaded = mg.load_surrogate(tmp_path / "loss.safetensors", metric=metric)
    assert isinstance(loaded, mg.UniLoss)
    torch.testing.assert_close(loaded.relaxed(SCORES, TARGET), loss.relaxed(SCORES, TARGET), rtol=0, atol=0)
    plain = mg.load_surrogate(tmp_path / "loss.safetensors", metric=f1)
    torch.testing.assert_close(plain(SCORES, TARGET), loss(SCORES, TARGET) - 1)  # nobody said that 1 is the best
    with pytest.raises(ValueError, match=r"a function of yours, f1, which no file can hold; pass it again"):
        mg.load_surrogate(tmp_path / "loss.safetensors")


def test_a_saved_loss_that_was_used_is_loaded_too(tmp_path: Path) -> None:
    loss = mg.UniLoss(f1)
    loss(SCORES, TARGET)
    loss.save(tmp_path / "loss.safetensors")
    loaded = mg.load_surrogate(tmp_path / "loss.safetensors", metric=f1)
    torch.testing.assert_close(loaded(SCORES, TARGET), loss(SCORES, TARGET))


def test_a_loss_can_be_copied_after_a_step() -> None:
    loss = mg.UniLoss(mg.reexpress(f1, best=1.0))
    loss(2 * SCORES.clone().requires_grad_(), TARGET).backward()
    assert copy.deepcopy(loss)(SCORES, TARGET) == loss(SCORES, TARGET)


@pytest.mark.parametrize(
    "mode",
    [
        torch.no_grad,
        pytest.param(torch.inference_mode),
    ],
)
def test_evaluation_modes_change_nothing(mode: Function) -> None:
    loss = mg.UniLoss(mg.reexpress(confident_mistakes))
    expected = -confident_mistakes(SCORES, TARGET)
    with mode():
        torch.testing.assert_close(loss(SCORES.clone(), TARGET.clone()), expected)


def test_a_first_look_in_inference_mode_decides_nothing_for_good() -> None:
    """As validation before training does it."""
    loss = mg.UniLoss(lambda scores, target: f1(scores.sigmoid() - 0.5, target))
    with torch.inference_mode():
        loss(SCORES.clone(), TARGET.clone())
    loss(SCORES, TARGET)
    assert isinstance(loss.metric, WatchedMetric)
