"""What cannot be watched is refused with the line and the way out."""

import inspect
import re
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import metricgrad as mg
from metricgrad.metrics.watching import WatchError
from tests.watched import SCORES, TARGET, Function, f1, gradient, line_of


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
    (
        branches_on_a_count,
        "while hits == 0:",
        "decides a Python branch",
        "torch.where for a branch",
    ),
    (
        takes_the_larger,
        "return max(shares, key=lambda share: share)",
        "decides a Python branch",
        "torch.where",
    ),
    (
        uses_item,
        "count = (scores > 0).sum().item()",
        "leaves torch by .item()",
        "tensors for numbers",
    ),
    (uses_numpy, "decisions = (scores > 0).numpy()", "leaves torch by .numpy()", "as a black box"),
    (
        uses_tolist,
        "best = sorted(scores.detach().tolist())[-2]",
        "leaves torch by .tolist()",
        "stay in torch",
    ),
    (
        uses_float,
        "return float(f1(scores, target))",
        "leaves torch by float()",
        "tensors for numbers",
    ),
    (uses_int, "size = int((scores > 0).sum())", "leaves torch by int()", "tensors for numbers"),
    (counts_with_a_range, "return torch.stack(", "becomes a Python index", "stay in torch"),
    (
        writes_by_a_mask,
        "kept[target == 0] = 0.0",
        "writes into a tensor",
        "torch.where, scatter, stack or cat",
    ),
    (
        writes_a_decision,
        "table[0] = (scores > 0).sum()",
        "writes into a tensor",
        "torch.where, scatter, stack or cat",
    ),
    (
        fills_the_diagonal,
        "apart.fill_diagonal_(9.0)",
        "in place by fill_diagonal_",
        "make a new one",
    ),
    (writes_to_out, "torch.gt(scores, 0, out=place)", "writes into a tensor", "make a new one"),
    (
        compares_what_it_picked,
        "return picked.gt(1)",
        "another comparison of scores has picked",
        "keep all items",
    ),
    (
        compares_it_by_an_operator,
        "return (picked > 1)",
        "another comparison of scores has picked",
        "keep all items",
    ),
    (
        asks_whether_picked_are_equal,
        "(picked == 1)",
        "another comparison of scores has picked",
        "keep all items",
    ),
    (
        looks_scores_up,
        "return torch.searchsorted(",
        "looks scores up among scores",
        r"(a > b).sum(-1)",
    ),
    (
        asks_what_is_close,
        "return torch.isclose(",
        "torch.isclose, which has no gradient",
        "use comparisons",
    ),
    (
        uses_the_place_of_a_median,
        "return target[middle]",
        "not taken apart",
        "indices of argmax, sort or topk",
    ),
]


@pytest.mark.parametrize(
    ("fn", "code", "what", "way_out"), REFUSALS, ids=lambda part: getattr(part, "__name__", "")
)
def test_a_refusal_names_the_line_the_reason_and_the_way_out(
    fn: Function, code: str, what: str, way_out: str
) -> None:
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
        (
            never_compares,
            "never compares scores, so it has a gradient already: use it, or minus it, as the loss",
        ),
        (is_random, "when it is called and .* when it is watched.* or it is random"),
        (changes_and_looks, "changes a tensor in place that is used later; .*torch.where"),
        (counts_in_place, "changes a tensor in place that is used later; .*scatter"),
        (
            lambda scores, target: scores > 0,
            r"must return a tensor with one number for a set; got shape \[6\]",
        ),
        (
            lambda scores, target: ((scores > 0).sum(), 6),
            "must return a tensor with one number for a set; got tuple",
        ),
        (
            lambda scores, target: None,
            "must return a tensor with one number for a set; got NoneType None",
        ),
    ],
)
def test_what_no_single_line_is_to_blame_for_is_said_too(fn: Function, message: str) -> None:
    with pytest.raises(WatchError, match=message):
        mg.UniLoss(mg.reexpress(fn))(SCORES, TARGET)


def test_the_line_is_the_one_of_a_helper_that_is_called() -> None:
    def metric(scores: Tensor, target: Tensor) -> Tensor:
        return torch.tensor(uses_float(scores, target))

    with pytest.raises(
        WatchError, match=f"line {line_of(uses_float, 'return float(f1(scores, target))')}: "
    ):
        mg.reexpress(metric).explain(SCORES, TARGET)


def test_a_change_in_place_is_refused_by_its_line() -> None:
    with pytest.raises(WatchError, match=f"line {line_of(changes_and_looks, 'apart.abs_()')}: "):
        mg.reexpress(changes_and_looks).explain(SCORES, TARGET)


def test_a_change_in_place_is_noticed_whatever_the_first_set_was() -> None:
    with pytest.raises(WatchError, match=r"apart\.abs_"):
        mg.reexpress(changes_and_looks).comparisons(
            TARGET + 0.5, TARGET
        )  # abs changes nothing here


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
        found,
        gradient(
            mg.reexpress(lambda s, y: ((s > 0) == (y == 1)).double().mean(), best=1.0),
            SCORES,
            TARGET,
        ),
    )


def test_a_function_that_fails_for_other_bits_says_so_or_does_without_them() -> None:
    def largest_of_picked(scores: Tensor, target: Tensor) -> Tensor:
        return target[scores > 0].double().max()

    assert (
        gradient(mg.reexpress(largest_of_picked, best=1.0), torch.tensor([1.0, -1.0]), TARGET[:2])
        .isfinite()
        .all()
    )
