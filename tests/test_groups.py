"""`groups=` in losses: ids of queries arrange one flat set as many, as metrics do."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import metricgrad as mg
from metricgrad.metrics.reexpression import ComparisonMetric
from metricgrad.surrogates import calls
from tests.cases import CASES, Case
from tests.sets import make_set
from tests.test_baselines import EVERY, sets
from tests.test_surrogates import ONE_SCORE, accuracy

# Sizes 5, 3, 9, 1, 0 (an id that no item has) and 2, so that there are several batches of sizes.
IDS = torch.tensor([7, 3, 7, 11, 3, 7, 11, 11, 11, 3, -2, 7, 11, 11, 11, 11, 11, 7, 5, 5])
LEARNED: dict[str, Any] = {
    "ReLoss": lambda metric: mg.ReLoss(metric).double().eval(),
    "BilevelLoss": lambda metric: mg.BilevelLoss(metric).double(),
    "with_ordinary": lambda metric: mg.with_ordinary(mg.UniLoss(metric), 0.5),
}


def one_by_one(loss: mg.Surrogate, scores: Tensor, target: Tensor, where: Tensor | None) -> Tensor:
    """The mean over the groups that have a value, with a loop over all groups."""
    total = scores.sum() * 0
    known = 0
    for each in IDS.unique():
        own = each == IDS
        value, defined = loss.losses(
            scores[own], target[own], None if where is None else where[own]
        )
        if defined:
            total = total + value
            known += 1
    return total / max(1, known)


def compare(loss: mg.Surrogate, scores: Tensor, target: Tensor) -> None:
    """Compares value and gradient with the loop, without and with a mask."""
    scores = scores.clone().requires_grad_()
    masked = torch.arange(len(IDS)) % 4 != 1
    for where in (None, masked):
        value = loss(scores, target, where, IDS)
        expected = one_by_one(loss, scores, target, where)
        torch.testing.assert_close(value, expected.to(value.dtype))
        (gradient,) = torch.autograd.grad(value, scores)
        (wanted,) = torch.autograd.grad(expected, scores)
        torch.testing.assert_close(gradient, wanted)
        assert where is None or not gradient[~where].any()


@pytest.mark.parametrize(("kind", "loss"), EVERY, ids=lambda each: str(each).replace("()", ""))
def test_baselines_equal_a_loop_over_groups(kind: str, loss: mg.Surrogate) -> None:
    scores, target = sets(kind, number=1, size=len(IDS))
    compare(loss, scores[0], target[0])


COMPARED = [
    each
    for each in CASES
    if "text" not in each.family and isinstance(each.metric, ComparisonMetric)
]


@pytest.mark.parametrize("case", COMPARED, ids=str)
def test_uniloss_equals_a_loop_over_groups(case: Case) -> None:
    compare(mg.UniLoss(case.metric), *_made(case))


@pytest.mark.parametrize("name", LEARNED)
@pytest.mark.parametrize(
    "metric",
    ["f1", "auc", "accuracy", "ndcg", mg.metric("f1", multilabel=True), "mean_iou"],
    ids=str,
)
def test_other_losses_equal_a_loop_over_groups(name: str, metric: Any) -> None:
    case = next(
        each
        for each in CASES
        if each.metric.name == mg.metric(metric).name
        and each.metric.layout == mg.metric(metric).layout
    )
    if name == "BilevelLoss" and case.metric.layout == "maps":
        pytest.skip("a BilevelLoss takes no maps")
    compare(LEARNED[name](metric), *_made(case))


def _made(case: Case) -> tuple[Tensor, Tensor]:
    """Scores and target of one flat set of the case's family."""
    made = make_set(case.family, "plain", np.random.default_rng(1), len(IDS))
    scores, target = (torch.as_tensor(each) for each in made)
    return scores, target


def test_functions_and_text_equal_a_loop_over_groups() -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(len(IDS), generator=generator)
    compare(mg.UniLoss(accuracy), scores, torch.arange(len(IDS)) % 2)
    tokens = torch.randn(len(IDS), 4, 6, generator=generator, dtype=torch.float64)
    ids = torch.randint(1, 6, (len(IDS), 4), generator=generator)
    metric = mg.metric("exact_match", padding=0)
    ordinary = mg.with_ordinary(mg.ReLoss(metric).double().eval())
    compare(ordinary, tokens, ids)


@pytest.mark.parametrize("name", sorted(set(ONE_SCORE) - {"memory", "metric loss"}))
def test_per_set_has_a_value_for_every_group_by_ascending_id(name: str) -> None:
    loss = ONE_SCORE[name]
    scores = torch.randn(len(IDS), 1, generator=torch.Generator().manual_seed(0))
    target = torch.arange(len(IDS)) % 2
    found = loss.per_set(scores, target, groups=IDS)
    own = [loss.per_set(scores[each == IDS], target[each == IDS]) for each in IDS.unique()]
    torch.testing.assert_close(found, torch.stack(own))
    if name != "watched":  # a function may take columns
        column = loss(scores, target.unsqueeze(-1), groups=IDS.numpy())
        torch.testing.assert_close(column, loss(scores, target, None, IDS))


@pytest.mark.parametrize("classes", [1, 3])
def test_all_groups_are_one_step_of_a_metric_loss(classes: int) -> None:
    ids = IDS.unique()
    size = max(int((each == IDS).sum()) for each in ids)
    index = torch.zeros(len(ids), size, dtype=torch.int64)
    where = torch.zeros(len(ids), size, dtype=torch.bool)
    for row, each in enumerate(ids):
        own = (each == IDS).nonzero().flatten()
        index[row, : len(own)] = own
        where[row, : len(own)] = True
    scores = torch.randn(len(IDS), classes, generator=torch.Generator().manual_seed(0))
    scores = scores.squeeze(-1).requires_grad_()
    target = torch.arange(len(IDS)) % max(2, classes)
    flat = mg.MetricLoss("f1", steps=4)
    padded = mg.MetricLoss("f1", steps=4)
    for _ in range(4):
        value = flat(scores, target, groups=IDS)
        expected = padded(scores[index], target[index], where)
        torch.testing.assert_close(value, expected)
        gradients = (torch.autograd.grad(each, scores)[0] for each in (value, expected))
        torch.testing.assert_close(*gradients)
    torch.testing.assert_close(
        flat.per_set(scores, target, groups=IDS),
        padded.per_set(scores[index], target[index], where),
    )
    assert flat.done == padded.done
    assert flat.offset.any()
    torch.testing.assert_close(flat.offset, padded.offset)


def test_notices_are_about_the_groups() -> None:
    loss = mg.UniLoss(mg.metric("precision_at_k", k=10))
    scores = torch.randn(len(IDS), requires_grad=True)
    target = torch.arange(len(IDS)) % 2
    for _ in range(9):
        loss(scores, target, groups=IDS)
    with pytest.warns(UserWarning, match="takes all 9 items of a set"):
        loss(scores, target, groups=IDS)


def test_the_value_is_the_mean_of_the_metric_over_its_groups() -> None:
    scores = torch.randn(len(IDS), generator=torch.Generator().manual_seed(0))
    grades = torch.arange(len(IDS)) % 4
    value = mg.UniLoss("ndcg")(scores, grades, groups=IDS)
    values = mg.metric("ndcg")(scores, grades, groups=IDS)
    relevant = torch.stack([grades[each == IDS].any() for each in IDS.unique()])
    torch.testing.assert_close(value, 1 - values[relevant].mean())


def test_groups_without_a_value_leave_a_zero_gradient() -> None:
    for size in (0, 4):
        scores = torch.zeros(size, requires_grad=True)
        value = mg.UniLoss("ndcg")(scores, torch.zeros(size), groups=torch.zeros(size).long())
        value.backward()
        assert value == 0
        assert scores.grad is not None
        assert not scores.grad.any()


def test_wrong_groups_are_refused() -> None:
    loss = mg.UniLoss("ndcg")
    scores = torch.zeros(4, requires_grad=True)
    grades = torch.arange(4)
    for wrong in (torch.zeros(4), torch.zeros(3).long(), torch.zeros(4, 1).long()):
        with pytest.raises(ValueError, match="groups must be one integer id per item of one flat"):
            loss(scores, grades, groups=wrong)
    several = torch.zeros(4, 4)
    with pytest.raises(ValueError, match=r"one flat set; got .* for scores \[4, 4\]"):
        mg.UniLoss("f1")(several, several, groups=torch.zeros(4).long())
    with pytest.raises(ValueError, match=r"one flat set; got .* for scores \[4, 4\]"):
        mg.UniLoss("f1")(several, several, several == 0, groups=torch.zeros(4).long())
    with pytest.raises(ValueError, match="finite grades of 0 or more; got -1"):
        loss(scores, grades - 1, groups=torch.zeros(4).long())


def test_a_memory_refuses_groups() -> None:
    loss = mg.with_memory(mg.UniLoss("ndcg"))
    given = torch.zeros(4), torch.arange(4)
    with pytest.raises(ValueError, match=r"takes no groups; got groups for scores \[4\]"):
        loss(*given, groups=torch.zeros(4).long())
    plain = mg.UniLoss("ndcg")(*given, groups=torch.arange(4) // 2)
    assert loss.eval()(*given, groups=torch.arange(4) // 2) == plain


RANKED = ["ndcg", "map", "mrr", "precision_at_k", "average_precision", "auc", "f1", "mcc"]


@pytest.mark.parametrize("name", RANKED)
@pytest.mark.parametrize("cls", [mg.UniLoss, mg.MetricLoss])
def test_short_sets_without_their_padding_have_the_same_loss_and_gradient(
    cls: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    g = torch.Generator().manual_seed(0)
    scores = torch.randn(3, 20, 60, generator=g, dtype=torch.float64)
    grades = torch.randint(0, 3, (3, 20, 60), generator=g)
    target = grades if name == "ndcg" else (grades > 0).long()
    sizes = torch.randint(1, 12, (3, 20), generator=g)
    sizes[:, ::9] = 50
    where = (torch.arange(60) < sizes.unsqueeze(-1))[..., torch.randperm(60, generator=g)]
    found = []
    widths: list[int] = []
    for longest in (32, 61):  # with 61, no set is long enough to be taken apart
        monkeypatch.setattr(calls, "_LONG", longest)
        loss = cls(name)
        part: Any = loss if cls is mg.UniLoss else loss.by_metric
        monkeypatch.setattr(part, "losses", watched(part.losses, widths))
        leaf = scores.clone().requires_grad_()
        value = loss(leaf, target, where)
        value.backward()
        found.append((value.detach(), leaf.grad))
    torch.testing.assert_close(*found)
    assert widths == [10, 50, 60]


def watched(losses: Any, widths: list[int]) -> Any:
    def each(scores: Tensor, target: Tensor, where: Tensor | None) -> Any:
        widths.append(scores.shape[-1])
        return losses(scores, target, where)

    return each


def test_labels_are_not_taken_for_padded_sets() -> None:
    scores = torch.randn(40, 64, generator=torch.Generator().manual_seed(0))
    where = torch.zeros(40, 64, dtype=torch.bool)
    where[:, 5:9] = True
    metric = mg.metric("f1", multilabel=True)
    value = mg.UniLoss(metric)(scores, (scores > 0.5).long(), where)
    torch.testing.assert_close(value, 1 - metric(scores, (scores > 0.5).long(), where=where))
