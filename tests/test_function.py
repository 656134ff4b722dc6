"""Any callable as a metric: scikit-learn, torchmetrics, NumPy and torch as they stand."""

import functools
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import sklearn.metrics as sk
import torch
import torchmetrics
import torchmetrics.classification
from torchmetrics.functional.classification import binary_f1_score, multiclass_accuracy

import metricgrad as mg


@pytest.fixture
def sets() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(2, 3, 30, generator=generator), torch.randint(
        0, 2, (2, 3, 30), generator=generator
    )


@pytest.fixture
def classes() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(4, 30, 3, generator=generator), torch.arange(30).repeat(4, 1) % 3


def confusion_f1(s: Any, y: Any) -> Any:
    return 2 * (y[s > 0] == 1).sum() / ((s > 0).sum() + (y == 1).sum())


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (lambda s, y: sk.fbeta_score(y, s > 0, beta=1), "f1"),
        (lambda s, y: sk.roc_auc_score(y, s), "auc"),
        (sk.f1_score, "f1"),
        (sk.roc_auc_score, "auc"),
        (sk.average_precision_score, "average_precision"),
        (sk.cohen_kappa_score, "kappa"),
        (sk.ndcg_score, "ndcg"),
        (functools.partial(sk.fbeta_score, beta=1), "f1"),
        (sk.get_scorer("f1"), "f1"),
        (sk.get_scorer("f1")._score_func, "f1"),
        (sk.make_scorer(sk.fbeta_score, beta=1), "f1"),
        (binary_f1_score, "f1"),
        (torchmetrics.classification.BinaryF1Score(), "f1"),
        (torchmetrics.AUROC(task="binary"), "auc"),
        (confusion_f1, "f1"),
        (lambda s, y: float(confusion_f1(s, y)), "f1"),
        (lambda s, y: np.mean((s > 0) == y), "accuracy"),
        (lambda s, y: ((s > 0) == y).float().mean(), "accuracy"),
        (lambda s, y: y[s.argsort()[::-1][:10]].sum() / 10, "precision_at_k"),
    ],
)
def test_binary_functions_work_as_they_stand(
    function: Any, name: str, sets: tuple[torch.Tensor, torch.Tensor]
) -> None:
    value = mg.from_function(function)(*sets)
    assert value.shape == (2, 3)
    torch.testing.assert_close(value, mg.metric(name)(*sets), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("function", "name", "options"),
    [
        (sk.accuracy_score, "accuracy", {}),
        (functools.partial(sk.f1_score, average="macro"), "f1", {}),
        (functools.partial(sk.roc_auc_score, multi_class="ovr"), "auc", {}),
        (functools.partial(sk.top_k_accuracy_score, k=2), "accuracy", {"k": 2}),
        (functools.partial(multiclass_accuracy, num_classes=3, average="micro"), "accuracy", {}),
        (torchmetrics.classification.MulticlassF1Score(num_classes=3), "f1", {}),
        (lambda s, y: (s.argmax(-1) == y).mean(dtype=float), "accuracy", {}),
    ],
)
def test_multi_class_functions_work_as_they_stand(
    function: Any, name: str, options: dict[str, Any], classes: tuple[torch.Tensor, torch.Tensor]
) -> None:
    value = mg.from_function(function)(*classes)
    torch.testing.assert_close(value, mg.metric(name, **options)(*classes), rtol=0, atol=1e-6)


def test_losses_see_probabilities_and_regression_sees_scores(
    sets: tuple[torch.Tensor, torch.Tensor],
) -> None:
    scores, target = sets[0][0, 0], sets[1][0, 0]
    entropy = torch.nn.functional.binary_cross_entropy_with_logits(scores, target.float())
    log_loss = mg.from_function(sk.log_loss, higher_is_better=False)
    torch.testing.assert_close(log_loss(scores, target), entropy, rtol=0, atol=1e-5)
    squared = mg.from_function(sk.mean_squared_error, higher_is_better=False)
    torch.testing.assert_close(squared(scores, target), ((scores - target) ** 2).mean())


def test_other_shapes_are_named_by_their_dimensions() -> None:
    generator = torch.Generator().manual_seed(0)
    scores, target = (
        torch.randn(2, 5, 4, generator=generator),
        torch.randint(0, 2, (2, 5, 4), generator=generator),
    )
    hamming = mg.from_function(sk.hamming_loss, higher_is_better=False, multilabel=True)
    torch.testing.assert_close(hamming(scores, target), mg.metric("hamming")(scores, target))
    pixels = mg.from_function(lambda s, y: (s.argmax(1) == y).double().mean(), set_dims=(4, 3))
    maps, labels = (
        torch.randn(2, 1, 3, 4, 4, generator=generator),
        torch.zeros(2, 1, 4, 4, dtype=torch.int64),
    )
    torch.testing.assert_close(pixels(maps, labels), (maps.argmax(2) == 0).float().mean((1, 2, 3)))
    with pytest.raises(
        ValueError, match=r"sets of 4 dimensions of scores and 3 of target; got scores \[4\]"
    ):
        pixels(torch.zeros(4), torch.zeros(4))
    with pytest.raises(
        ValueError, match=r"one call, pass set_dims=\(5, 5\); got scores \[2, 1, 3, 4, 4\] and"
    ):
        mg.from_function(lambda s, y: 0.0)(maps, labels.unsqueeze(-1))


def test_only_items_that_count_are_seen(sets: tuple[torch.Tensor, torch.Tensor]) -> None:
    where = torch.rand(2, 3, 30, generator=torch.Generator().manual_seed(1)) < 0.5
    seen = mg.from_function(sk.f1_score)(*sets, where=where)
    torch.testing.assert_close(seen, mg.metric("f1")(*sets, where=where))
    groups = torch.arange(30) % 3
    flat = sets[0][0, 0], sets[1][0, 0]
    torch.testing.assert_close(
        mg.from_function(sk.f1_score)(*flat, groups=groups), mg.metric("f1")(*flat, groups=groups)
    )


def test_a_torchmetrics_object_keeps_its_own_state(sets: tuple[torch.Tensor, torch.Tensor]) -> None:
    theirs = torchmetrics.classification.BinaryAccuracy()
    theirs.update(torch.tensor([0.9, 0.2]), torch.tensor([1, 1]))
    mg.from_function(theirs)(*sets)
    assert theirs.compute() == 0.5


def test_what_a_function_raises_is_shown_with_the_shapes() -> None:
    def broken(scores: Any, target: Any) -> float:
        if len(scores) == 3 and target.sum() == 0:
            raise KeyError("no positives")
        return 1.0

    message = r"broken raised KeyError on set 2 of 2 \(scores \[3\], target \[3\]\): 'no positives'"
    with pytest.raises(RuntimeError, match=message) as error:
        mg.from_function(broken)(torch.zeros(2, 3), torch.tensor([[0, 1, 0], [0, 0, 0]]))
    assert isinstance(error.value.__cause__, KeyError)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (None, "got NoneType None"),
        ("0.5", "got str '0.5'"),
        ((0.5, 0.1), r"got tuple \(0.5, 0.1\)"),
        (torch.zeros(3), r"got Tensor of shape \[3\]"),
        (np.zeros((2, 2)), r"got ndarray of shape \[2, 2\]"),
        (1 + 2j, r"got complex \(1\+2j\)"),
    ],
)
def test_what_is_no_number_is_refused(result: Any, message: str) -> None:
    metric = mg.from_function(lambda s, y: result)
    with pytest.raises(
        TypeError,
        match=r"function on set 1 of 1 \(scores \[3\], target \[3\]\) must give one number; "
        + message,
    ):
        metric(torch.zeros(3), torch.zeros(3))


@pytest.mark.parametrize(
    "result", [1, 0.5, True, np.float32(0.5), np.array([0.5]), torch.tensor([[0.5]])]
)
def test_numbers_of_any_kind_are_taken(result: Any) -> None:
    assert mg.from_function(lambda s, y: result)(torch.zeros(3), torch.zeros(3)) == (
        result if isinstance(result, int) else 0.5
    )


def test_nan_is_passed_on() -> None:
    assert mg.from_function(lambda s, y: float("nan"))(torch.zeros(3), torch.zeros(3)).isnan()


def test_scorers_of_own_functions_get_target_first() -> None:
    scores, target = torch.tensor([-2.0, 1.0, 3.0, -1.0]), torch.tensor([0, 1, 1, 1])
    own = mg.from_function(sk.make_scorer(lambda a, b: float(np.mean(a)) + 10 * float(np.mean(b))))
    assert own(scores, target) == pytest.approx(0.75 + 10 * 0.5)
    chances = mg.from_function(
        sk.make_scorer(lambda y_true, y_pred: np.mean(y_pred), response_method="predict_proba")
    )
    assert chances(scores, target).item() == pytest.approx(scores.sigmoid().mean().item())


def test_torchmetrics_does_not_mistake_small_logits_for_probabilities() -> None:
    scores, target = torch.tensor([[0.2, 0.3], [-0.2, 0.3]]), torch.tensor([[1, 1], [0, 1]])
    assert mg.from_function(binary_f1_score)(scores, target).tolist() == [1, 1]
    error = mg.from_function(torchmetrics.MeanSquaredError(), higher_is_better=False)
    assert error(torch.tensor([-1.0, 2.0, 3.0]), torch.tensor([1.0, 2.0, 2.0])) == pytest.approx(
        5 / 3
    )


def test_hinge_loss_sees_decision_values(classes: tuple[torch.Tensor, torch.Tensor]) -> None:
    expected = [sk.hinge_loss(y.numpy(), s.numpy()) for s, y in zip(*classes, strict=True)]
    value = mg.from_function(sk.hinge_loss, higher_is_better=False)(*classes)
    np.testing.assert_allclose(value.numpy(), expected, atol=1e-6)


def test_a_function_cannot_change_the_users_data() -> None:
    def careless(scores: Any, target: Any) -> float:
        scores -= 5
        return float(scores.sum())

    scores = torch.zeros(3)
    for arrays in (True, False):
        mg.from_function(careless, arrays=arrays)(scores, torch.zeros(3))
    assert not scores.any()


def test_the_direction_must_not_contradict_the_function() -> None:
    with pytest.raises(
        ValueError,
        match="hamming_loss says of itself that lower is better; pass higher_is_better=False",
    ):
        mg.from_function(sk.hamming_loss)
    with pytest.raises(ValueError, match="f1_score says of itself that higher is better"):
        mg.from_function(sk.f1_score, higher_is_better=False)
    with pytest.raises(ValueError, match="lower is better"):
        mg.from_function(torchmetrics.HammingDistance(task="binary"))
    with pytest.raises(ValueError, match="lower is better"):
        mg.from_function(sk.get_scorer("neg_log_loss"))


def test_functions_with_turned_arguments_are_refused() -> None:
    def cost(y_true: Any, y_pred: Any) -> float:
        return 0.0

    with pytest.raises(
        ValueError,
        match=r"cost takes 'y_true' first.* lambda scores, target: cost\(target, scores > 0\)",
    ):
        mg.from_function(cost)
    with pytest.raises(ValueError, match="not a target and what a classifier says of it"):
        mg.from_function(sk.silhouette_score)
    with pytest.raises(TypeError, match=r"takes a callable .* got int: 3"):
        mg.from_function(3)  # type: ignore[arg-type]


def test_facts_of_a_function() -> None:
    metric = mg.from_function(confusion_f1, best=1.0, worst=0.0)
    assert (metric.name, metric.best, metric.worst, metric.higher_is_better) == (
        "confusion_f1",
        1.0,
        0.0,
        True,
    )
    unbounded = mg.metric(lambda s, y: s.sum(), higher_is_better=False, name="sum")
    assert (unbounded.name, unbounded.best, unbounded.worst) == ("sum", -torch.inf, torch.inf)
    labels = mg.from_function(confusion_f1, multilabel=True)
    maps = mg.from_function(confusion_f1, set_dims=(4, 3))
    assert [each.layout for each in (metric, labels, maps)] == ["any", "labels", "any"]
    assert [each.has_threshold for each in (metric, labels, maps)] == [True, False, False]
    assert metric.takes_classes
    assert metric.decided_by == "anything"
    assert not metric.portable
    assert not metric.scale_free
    scores, target = torch.tensor([3.0, 1.0, 2.0]), torch.tensor([1, 0, 1])
    moved, given = metric.at_threshold(torch.tensor(1.5), scores)
    assert moved(given, target) == 1
    assert metric.item_scores(scores.unsqueeze(-1), target).shape == (3,)


def test_arrays_or_tensors_may_be_demanded() -> None:
    kinds: list[type] = []

    def watch(scores: Any, target: Any) -> float:
        kinds.append(type(scores))
        return 0.0

    for arrays in (None, True, False):
        mg.from_function(watch, arrays=arrays)(torch.zeros(3), torch.zeros(3))
    assert kinds == [torch.Tensor, np.ndarray, torch.Tensor]


def test_the_library_imports_nothing_optional() -> None:
    optional = {"torchmetrics", "pandas", "rich", "typer", "matplotlib", "sacrebleu"}
    code = f"import sys, metricgrad; print(sorted({optional} & set(sys.modules)))"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"
