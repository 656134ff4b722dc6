"""How shapes choose the task, and two classes meet the binary question."""

import numpy as np
import pytest
import sklearn.metrics
import torch

import metricgrad as mg
from tests import references as ref

CLASSIFICATION = [name for name in mg.metric_names() if "multi-class" in mg.metric(name).families]


@pytest.fixture
def two_classes() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(40, 2, generator=generator), torch.randint(0, 2, (40,), generator=generator)


@pytest.mark.parametrize("name", CLASSIFICATION)
def test_two_logits_are_the_binary_question(
    name: str, two_classes: tuple[torch.Tensor, torch.Tensor]
) -> None:
    scores, target = two_classes
    metric = mg.metric(name)
    assert metric(scores, target) == metric(scores[:, 1] - scores[:, 0], target)


def test_two_classes_with_average_are_averaged(
    two_classes: tuple[torch.Tensor, torch.Tensor],
) -> None:
    scores, target = two_classes
    expected = sklearn.metrics.f1_score(target, scores.argmax(-1), average="macro")
    assert mg.metric("f1", average="macro")(scores, target).item() == pytest.approx(expected)
    assert mg.metric("f1")(scores, target).item() == pytest.approx(
        sklearn.metrics.f1_score(target, scores.argmax(-1))
    )


@pytest.mark.parametrize("average", ["macro", "weighted"])
def test_auc_of_classes_equals_scikit_learn_as_a_whole(average: str) -> None:
    generator = torch.Generator().manual_seed(0)
    scores, target = (
        torch.randn(90, 5, generator=generator),
        torch.randint(0, 5, (90,), generator=generator),
    )
    probabilities = scores.double().softmax(-1)
    expected = sklearn.metrics.roc_auc_score(
        target, probabilities, multi_class="ovr", average=average
    )
    assert mg.metric("auc", average=average)(scores, target).item() == pytest.approx(
        expected, abs=1e-6
    )


def test_confident_models_are_still_ranked() -> None:
    """In float32 softmax rounds both positives to 1, and the negative between them, too."""
    scores = torch.tensor(
        [[40.0, 0.0, 0.0], [20.0, 0.0, 0.0], [30.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    )
    target = torch.tensor([0, 0, 1, 1, 2])
    exact = mg.metric("auc")(scores.double(), target)
    torch.testing.assert_close(mg.metric("auc")(scores, target).double(), exact)
    assert exact < 1


def test_a_label_mask_may_be_finer_than_items() -> None:
    generator = torch.Generator().manual_seed(0)
    scores, target = (
        torch.randn(30, 3, generator=generator),
        torch.randint(0, 2, (30, 3), generator=generator),
    )
    where = torch.rand(30, 3, generator=generator) < 0.6
    for name in ("f1", "auc", "accuracy", "eer"):
        by_label = [mg.metric(name)(scores[w, i], target[w, i]) for i, w in enumerate(where.T)]
        value = mg.metric(name, multilabel=True)(scores, target, where=where)
        torch.testing.assert_close(value, torch.stack(by_label).mean())
        flat = mg.metric(name)(scores[where], target[where])
        torch.testing.assert_close(
            mg.metric(name, multilabel=True, average="micro")(scores, target, where=where), flat
        )


def test_thresholds_may_differ_between_labels() -> None:
    scores, target = torch.tensor([[0.5, 0.5], [2.0, 2.0]]), torch.tensor([[0, 1], [1, 1]])
    assert mg.metric("accuracy", multilabel=True, threshold=[1.0, 0.0])(scores, target) == 1
    assert mg.metric("accuracy", multilabel=True)(scores, target) == 0.75
    tensor = mg.metric("f1", multilabel=True, threshold=torch.tensor([1.0, 0.0]))
    assert tensor == mg.metric("f1", multilabel=True, threshold=(1.0, 0.0))
    with pytest.raises(ValueError, match="threshold has 3 values for the 2 labels"):
        mg.metric("f1", multilabel=True, threshold=[0, 0, 0])(scores, target)
    with pytest.raises(ValueError, match="one threshold per label needs multilabel=True"):
        mg.metric("f1", threshold=[0, 0])


@pytest.mark.parametrize(
    ("options", "scores", "target", "message"),
    [
        ({}, (4,), (5,), r"f1 takes .* got scores \[4\] and target \[5\]"),
        ({}, (4, 3), (4, 2), r"got scores \[4, 3\] and target \[4, 2\]"),
        (
            {"multilabel": True},
            (4, 3),
            (4,),
            r"as multilabel=True; got scores \[4, 3\] and target \[4\]",
        ),
        (
            {"multilabel": True},
            (4,),
            (4,),
            r"as multilabel=True; got scores \[4\] and target \[4\]",
        ),
    ],
)
def test_shapes_that_fit_no_task_are_refused(
    options: dict[str, bool], scores: tuple[int, ...], target: tuple[int, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        mg.metric("f1", **options)(torch.zeros(scores), torch.zeros(target))


def test_class_ten_of_ten_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"class indices 0 to 9, as scores has 10 classes; got 10 .*shape \[3\]"
    ):
        mg.metric("accuracy")(torch.zeros(3, 10), torch.tensor([1, 10, 3]))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("f1", {"average": "mean"}, "average must be one of macro, micro, weighted; got 'mean'"),
        (
            "mcc",
            {"average": "macro"},
            "mcc has one multi-class form, without average; got average='macro'",
        ),
        (
            "kappa",
            {"weights": "cubic"},
            "weights must be None, 'linear' or 'quadratic'; got 'cubic'",
        ),
        ("accuracy", {"k": 0}, "k must be 1 or more; got 0"),
        ("fbeta", {"beta": -1}, "beta must be above 0 and finite; got -1"),
        ("fbeta", {"beta": float("inf")}, "beta must be above 0 and finite; got inf"),
        ("partial_auc", {"max_fpr": 1.5}, "max_fpr must be above 0 and at most 1; got 1.5"),
        ("accuracy", {"k": 2, "multilabel": True}, "k is for classes, not for labels; got k=2"),
        ("hamming", {"multilabel": False}, "hamming has one multi-class form, without average"),
        ("partial_auc", {"max_fpr": 0}, "max_fpr must be above 0 and at most 1; got 0"),
        (
            "recall_at_precision",
            {"min_precision": 2},
            "min_precision must be above 0 and at most 1; got 2",
        ),
        (
            "precision_at_recall",
            {"min_recall": 0},
            "min_recall must be above 0 and at most 1; got 0",
        ),
        ("ndcg", {"gain": "cubic"}, "gain must be 'linear' or 'exponential'; got 'cubic'"),
        ("mrr", {"k": 0}, "k must be 1 or more; got 0"),
        ("pck", {"radius": -1}, "radius must be 0 or more; got -1"),
        ("bleu", {"smoothing": "more"}, "smoothing must be 'exp', .* got 'more'"),
        ("bleu", {"max_order": 0}, "max_order must be 1 or more; got 0"),
    ],
)
def test_wrong_options_are_refused(name: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        mg.metric(name, **options)


@pytest.mark.parametrize(
    ("name", "option"),
    [("accuracy", "k"), ("ndcg", "k"), ("precision_at_k", "k"), ("bleu", "max_order")],
)
@pytest.mark.parametrize("value", [2.5, "3", True])
def test_whole_numbers_are_asked_for(name: str, option: str, value: object) -> None:
    with pytest.raises(TypeError, match=f"{option} must be a whole number; got {value!r}"):
        mg.metric(name, **{option: value})


def test_hamming_is_the_share_of_all_labels_that_count() -> None:
    scores, target = torch.ones(3, 2), torch.tensor([[1, 0], [1, 0], [1, 1]])
    where = torch.tensor([[1, 1], [1, 0], [1, 0]])
    assert mg.metric("hamming")(scores, target, where=where) == 0.25
    assert mg.metric("error_rate", multilabel=True)(scores, target, where=where) == 0.5


def test_rows_that_swap_scores_tie_as_on_paper() -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randint(-3, 4, (60, 4), generator=generator).double() / 2
    target = torch.randint(0, 4, (60,), generator=generator)
    order = torch.tensor([2, 0, 3, 1])
    swapped, moved = scores[:, order], torch.argsort(order)[target]
    probabilities = scores.softmax(-1).numpy().round(12)
    for name, reference in (
        ("auc", ref.auc),
        ("average_precision", ref.average_precision),
        ("eer", ref.eer),
    ):
        value = mg.metric(name)(scores, target)
        assert mg.metric(name)(swapped, moved) == pytest.approx(value.item(), abs=1e-12)
        expected = [reference(probabilities[:, c], (target == c).long().numpy()) for c in range(4)]
        assert value.item() == pytest.approx(sum(expected) / 4, abs=1e-9)


def test_autocast_changes_nothing() -> None:
    generator = torch.Generator().manual_seed(0)
    scores, target = (
        torch.randn(200, 5, generator=generator),
        torch.randint(0, 5, (200,), generator=generator),
    )
    for name in CLASSIFICATION:
        for options in ({}, {"weights": "quadratic"}) if name == "kappa" else ({},):
            expected = mg.metric(name, **options)(scores, target)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                assert mg.metric(name, **options)(scores, target) == expected


def test_unsigned_and_eight_bit_types_are_taken() -> None:
    scores, target = torch.tensor([2.0, -1.0, 1.0]), torch.tensor([1, 0, 0])
    for dtype in (torch.uint8, torch.uint16, torch.uint32, torch.uint64):
        assert mg.metric("f1")(scores, target.to(dtype)) == mg.metric("f1")(scores, target)
    assert mg.metric("f1")(scores.to(torch.float8_e5m2), target) == mg.metric("f1")(scores, target)
    for kind in (">f4", ">i8", "float128", "float16"):
        assert mg.metric("f1")(
            np.asarray(scores).astype(kind), np.asarray(target)
        ) == pytest.approx(2 / 3)


def test_top_k_needs_more_than_k_classes() -> None:
    with pytest.raises(ValueError, match="always 1 on the 3 classes"):
        mg.metric("accuracy", k=3)(torch.zeros(2, 3), torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="with more than 2 classes"):
        mg.metric("accuracy", k=2)(torch.zeros(2, 2), torch.tensor([0, 1]))
