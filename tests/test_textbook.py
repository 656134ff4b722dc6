"""Metrics in plain torch, re-expressed by watching them, against the library's own."""

import inspect
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import metricgrad as mg
from metricgrad.metrics.reexpression import ComparisonMetric
from tests import textbook as book
from tests.cases import CASES
from tests.sets import CLASSES, JOINTS, Family

TARGETS = 10
DRAWS = 6  # scores for each target
SET_DIMS = {"multi-label": (2, 2), "segmentation": (4, 3), "pose": (4, 3)}


@dataclass(frozen=True)
class Row:
    """A textbook's metric, and the library's.

    `compares` says in a word what the textbook compares instead of what the library does, `gains`
    what makes the gradient another one; both are "" where it is the same. `samples` goes to
    `UniLoss` in a descent, for metrics whose gains are 0 far from a cut.
    """

    fn: Callable[..., Tensor]
    name: str
    family: Family
    options: dict[str, Any] = field(default_factory=dict)
    compares: str = ""
    gains: str = ""
    samples: int = 0

    def __str__(self) -> str:
        options = ",".join(f"{key}={value}" for key, value in self.options.items())
        return f"{self.title}-{self.name}({options})-{self.family}"

    @property
    def title(self) -> str:
        return (self.fn.func if isinstance(self.fn, partial) else self.fn).__name__

    @property
    def library(self) -> ComparisonMetric:
        metric = mg.metric(self.name, **self.options)
        assert isinstance(metric, ComparisonMetric)
        return metric

    @property
    def watched(self) -> ComparisonMetric:
        own = self.library
        return mg.reexpress(
            self.fn,
            higher_is_better=own.higher_is_better,
            best=own.best,
            worst=own.worst,
            set_dims=SET_DIMS.get(self.family),
        )


def row(
    fn: Callable[..., Tensor],
    name: str,
    family: Family,
    compares: str = "",
    gains: str = "",
    samples: int = 0,
    **options: Any,
) -> Row:
    """A row whose options are the library's; those that the function has, too, go to both."""
    own = {key: value for key, value in options.items() if key in inspect.signature(fn).parameters}
    return Row(partial(fn, **own) if own else fn, name, family, options, compares, gains, samples)


BINARY = [
    row(book.accuracy, "accuracy", "binary"),
    row(book.error_rate, "error_rate", "binary"),
    row(book.balanced_accuracy, "balanced_accuracy", "binary"),
    row(book.precision, "precision", "binary"),
    row(book.recall, "recall", "binary"),
    row(book.recall_of_positives, "recall", "binary", compares="positives"),
    row(book.fbeta, "fbeta", "binary", beta=2.0),
    row(book.f1, "f1", "binary"),
    row(book.f1, "f1", "binary", threshold=0.5),
    row(book.f1_of_probabilities, "f1", "binary", compares="probabilities", gains="probabilities"),
    row(book.jaccard, "jaccard", "binary"),
    row(book.mcc, "mcc", "binary"),
    row(book.kappa, "kappa", "binary"),
    row(book.gmean, "gmean", "binary"),
]
CLASS_AND_LABEL = [
    row(book.multiclass_accuracy, "accuracy", "multi-class"),
    row(book.accuracy_by_max, "accuracy", "multi-class"),
    row(book.accuracy_with_the_target_first, "accuracy", "multi-class"),
    row(
        book.accuracy_of_equal_to_max,
        "accuracy",
        "multi-class",
        compares="every class",
        gains="of wrong items",
    ),
    row(book.top_k_accuracy, "accuracy", "multi-class", compares="members", gains="members", k=2),
    row(
        book.top_k_accuracy_by_rank,
        "accuracy",
        "multi-class",
        compares="rivals",
        gains="rivals",
        k=2,
    ),
    row(book.multiclass_error_rate, "error_rate", "multi-class"),
    row(book.multiclass_balanced_accuracy, "balanced_accuracy", "multi-class"),
    row(book.multiclass_gmean, "gmean", "multi-class", samples=4),
    row(book.macro_precision, "precision", "multi-class"),
    row(book.macro_recall, "recall", "multi-class", gains="one class"),
    row(book.macro_f1, "f1", "multi-class"),
    row(book.macro_f1_of_classes, "f1", "multi-class"),
    row(book.micro_f1, "f1", "multi-class", average="micro"),
    row(book.weighted_f1, "f1", "multi-class", compares="target's classes", average="weighted"),
    row(book.macro_jaccard, "jaccard", "multi-class"),
    row(book.macro_fbeta, "fbeta", "multi-class", beta=0.5),
    row(book.multiclass_mcc, "mcc", "multi-class"),
    row(book.multiclass_kappa, "kappa", "multi-class", gains="one class"),
    row(book.quadratic_kappa, "kappa", "multi-class", gains="sum of classes", weights="quadratic"),
    row(
        book.quadratic_kappa_of_differences,
        "kappa",
        "multi-class",
        gains="one class",
        weights="quadratic",
    ),
    row(book.hamming, "hamming", "multi-label"),
    row(book.multilabel_f1, "f1", "multi-label", multilabel=True),
    row(book.multilabel_micro_f1, "f1", "multi-label", multilabel=True, average="micro"),
]
CURVES = [
    row(book.auc, "auc", "binary"),
    row(book.auc_by_trapezoids, "auc", "binary"),
    row(book.auc_by_ranks, "auc", "binary", compares="all pairs"),
    row(book.auc_with_ties, "auc", "binary"),
    row(book.multiclass_auc, "auc", "multi-class", compares="probabilities", gains="probabilities"),
    row(book.partial_auc, "partial_auc", "binary", max_fpr=0.4),
    row(book.average_precision, "average_precision", "binary"),
    row(book.average_precision_by_steps, "average_precision", "binary"),
    row(book.interpolated_average_precision, "average_precision", "binary", interpolated=True),
    row(book.multilabel_average_precision, "average_precision", "multi-label", multilabel=True),
    row(book.eer, "eer", "binary", samples=4),
    row(book.recall_at_precision, "recall_at_precision", "binary", samples=4, min_precision=0.6),
    row(book.precision_at_recall, "precision_at_recall", "binary", samples=4, min_recall=0.6),
]
RANKING = [
    row(book.precision_at_k, "precision_at_k", "ranking", compares="members", gains="members", k=3),
    row(book.recall_at_k, "recall_at_k", "ranking", compares="members", gains="members", k=3),
    row(book.recall_at_k_by_cut, "recall_at_k", "ranking", compares="cut", gains="cut", k=3),
    row(book.ndcg, "ndcg", "ranking", gains="cycles"),
    row(book.ndcg, "ndcg", "ranking", gains="cycles", k=3),
    row(book.exponential_ndcg, "ndcg", "ranking", gains="cycles", gain="exponential"),
    row(
        book.ndcg_of_ranks,
        "ndcg",
        "ranking",
        compares="all pairs",
        gains="cycles",
        gain="exponential",
    ),
    row(book.mean_average_precision, "map", "ranking"),
    row(book.mean_average_precision_at_k, "map", "ranking", k=3),
    row(book.reciprocal_rank, "mrr", "ranking", compares="grades", gains="grades"),
    row(book.reciprocal_rank_of_relevance, "mrr", "ranking"),
    row(
        book.reciprocal_rank_at_k,
        "mrr",
        "ranking",
        compares="the best",
        gains="the best",
        samples=4,
        k=3,
    ),
]
MAPS = [
    row(book.mean_iou, "mean_iou", "segmentation"),
    row(book.mean_iou, "mean_iou", "segmentation", compares="classes that count", ignore_index=3),
    row(book.dice, "dice", "segmentation"),
    row(book.pck, "pck", "pose", compares="pixels", gains="pixels"),
]
ROWS = [*BINARY, *CLASS_AND_LABEL, *CURVES, *RANKING, *MAPS]

every_row = pytest.mark.parametrize("row", ROWS, ids=str)


def generator(row: Row) -> torch.Generator:
    return torch.Generator().manual_seed(zlib.crc32(str(row).encode()))


def random_set(
    family: Family, source: torch.Generator, size: int, draws: int = 1
) -> tuple[Tensor, Tensor]:
    """Scores `[draws, ...]` and a target with both classes, or relevant and other documents."""
    if family == "pose":
        target = torch.rand(size, JOINTS, 3, generator=source, dtype=torch.float64) * torch.tensor(
            [4.0, 3.0, 6.0]
        )
        return torch.randn(draws, size, JOINTS, 4, 5, generator=source, dtype=torch.float64), target
    shape = {"multi-label": (size, CLASSES), "segmentation": (size, 3, 2)}.get(family, (size,))
    target = torch.randint(
        0, 2 if family in ("binary", "multi-label") else CLASSES, shape, generator=source
    )
    if family == "ranking":
        target = target * torch.randint(0, 2, shape, generator=source)
    target[0], target[1] = 0, 1
    shape = {"multi-class": (size, CLASSES), "segmentation": (size, CLASSES, 3, 2)}.get(
        family, shape
    )
    return torch.randn(draws, *shape, generator=source, dtype=torch.float64), target


def small_set(family: Family, source: torch.Generator, draws: int = 1) -> tuple[Tensor, Tensor]:
    low, high = (2, 4) if family in ("segmentation", "pose") else (5, 13)
    return random_set(family, source, int(torch.randint(low, high, (), generator=source)), draws)


def test_every_metric_that_comparisons_decide_is_in_the_table() -> None:
    assert {row.name for row in ROWS} == {
        case.name for case in CASES if isinstance(case.metric, ComparisonMetric)
    }


@every_row
def test_values_and_bits_give_the_librarys_metric(row: Row) -> None:
    library, watched, source = row.library, row.watched, generator(row)
    for _ in range(TARGETS):
        draws, target = small_set(row.family, source, DRAWS)
        targets = target.expand(DRAWS, *target.shape)
        expected = library(draws, targets)
        torch.testing.assert_close(watched(draws, targets), expected, rtol=0, atol=1e-5)
        inputs = watched.check(draws[0], target, None)
        plan = watched.reexpress(inputs.scores.shape, inputs.target, None, inputs.scores.dtype)
        bits = torch.stack(
            [plan.comparisons(scores)[0] > 0 for scores in draws[:2]]
        )  # the second one is replayed
        torch.testing.assert_close(plan.from_bits(bits), expected[:2], rtol=0, atol=1e-5)


@every_row
def test_comparisons_and_gradients_are_the_librarys_where_the_table_says_so(row: Row) -> None:
    library, watched, source = row.library, row.watched, generator(row)
    same_comparisons = same_gradient = True
    for _ in range(16):
        (scores,), target = small_set(row.family, source)
        own, found = (sizes_of_comparisons(metric, scores, target) for metric in (library, watched))
        same_comparisons &= own.shape == found.shape and torch.allclose(
            own, found, rtol=0, atol=1e-9
        )
        own, found = (gradient(metric, scores, target) for metric in (library, watched))
        same_gradient &= torch.allclose(own, found, rtol=0, atol=1e-5)
    assert same_comparisons == (not row.compares)
    assert same_gradient == (not row.gains)


def sizes_of_comparisons(metric: ComparisonMetric, scores: Tensor, target: Tensor) -> Tensor:
    values, live = metric.comparisons(scores, target)
    return values[live].abs().sort().values


def gradient(metric: ComparisonMetric, scores: Tensor, target: Tensor) -> Tensor:
    scores = scores.clone().requires_grad_()
    mg.UniLoss(metric)(scores, target).backward()
    assert scores.grad is not None
    return scores.grad


@pytest.mark.parametrize("row", [row for row in ROWS if row.gains or row.samples], ids=str)
def test_descent_improves_the_metric(row: Row) -> None:
    """Where gradient and samples are the library's own, its own descent has been tested."""
    library, watched, source = row.library, row.watched, generator(row)
    (scores,), target = random_set(
        row.family, source, 4 if row.family in ("segmentation", "pose") else 20
    )
    ideal = library.from_bits(
        library.ideal_bits(target, shape=scores.shape), target, shape=scores.shape
    )
    scores = scores.float().requires_grad_()
    before = library(scores, target)
    loss = mg.UniLoss(watched, slope=1.0, samples=row.samples, generator=source)
    optimizer = torch.optim.Adam([scores], lr=0.1)
    for _ in range(60):
        optimizer.zero_grad()
        value = loss(scores, target)
        if value < 1e-6:  # perfect
            break
        value.backward()
        optimizer.step()
    gained = library(scores, target) - before
    assert (gained if library.higher_is_better else -gained) > 0 or torch.isclose(
        before.double(), ideal.double()
    )


def test_classes_of_one_item_are_decided_one_by_one() -> None:
    scores, target = torch.tensor([[3.0, 2.0, 1.0]]), torch.tensor([0])
    values, _ = mg.reexpress(book.macro_f1, best=1.0).comparisons(scores, target)
    assert values.tolist() == [1.0, -1.0, -2.0]
