"""What estimators are made of: targets, networks and probabilities, on made-up values."""

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor, nn

import metricgrad as mg
from metricgrad.estimators.networks import calibrated, perceptron, widths
from metricgrad.estimators.target import Target, plain
from tests.made_fits import THRESHOLD, FakeFit

# --------------------------------------------------------------------------------------------------
# targets


def test_targets() -> None:
    f1 = mg.metric("f1")
    three = Target.of(np.array([5, 2, 9, 2]), f1, None)
    assert (three.kind, three.outputs, three.ordered.tolist()) == ("classes", 3, [2, 5, 9])
    assert three.encode([9, 2, 5]).tolist() == [2, 0, 1]
    two = Target.of(np.array([5, 2, 2]), f1, None)
    assert (two.kind, two.outputs, two.ordered.tolist(), two.order) == ("binary", 1, [2, 5], (0, 1))
    turned = Target.of(np.array([5, 2, 2]), f1, 2)
    assert (turned.ordered.tolist(), turned.order) == ([5, 2], (1, 0))
    assert turned.encode(pd.Series([5, 2])).tolist() == [0, 1]
    assert Target.of(np.array([5, 2, 2]), f1, 5).order == (0, 1)
    labels = Target.of(np.array([[1, 0, 0], [0, 1, 1]]), f1, None)
    assert (labels.kind, labels.outputs, labels.encode([[1, 0, 1]]).dtype) == (
        "labels", 3, torch.int64
    )  # fmt: skip
    with pytest.raises(ValueError, match=r"did not have: 3, 7; it had 2, 5"):
        two.encode(np.array([7, 3, 5]))
    with pytest.raises(ValueError, match=r"one class only, 4; pass one with two"):
        Target.of(np.array([4, 4]), f1, None)
    with pytest.raises(
        ValueError, match="ndcg is for two classes, and the target has 6: 0, 1, 2, 3, 4;"
    ):
        Target.of(np.arange(6), mg.metric("ndcg"), None)


def test_metrics_for_labels() -> None:
    labels = Target("labels", np.arange(2))
    found = labels.metric_for(mg.metric("fbeta", beta=2.0, average="micro"))
    assert found == mg.metric("fbeta", beta=2.0, average="micro", multilabel=True)
    hamming = mg.metric("hamming")
    assert labels.metric_for(hamming) is hamming
    own = mg.from_function(lambda scores, target: 0.0, name="own")
    assert labels.metric_for(own) == replace(own, set_dims=(2, 2))  # all labels in one call
    f1 = mg.metric("f1")
    assert Target("binary", np.arange(2)).metric_for(f1) is f1
    with pytest.raises(ValueError, match="mrr has no value for labels; pass a metric such as 'f1'"):
        labels.metric_for(mg.metric("mrr"))


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        (pd.Series([1, 0], dtype="Int64"), "int64"),
        (pd.Series([True, False], dtype="boolean"), "bool"),
        (np.array([True, 2], dtype=object), "int64"),
        (np.array(["a", 2], dtype=object), "object"),
        (np.array([0.5, 1.0]), "float64"),
    ],
)
def test_targets_lose_the_types_of_pandas(values: Any, dtype: str) -> None:
    assert plain(values).dtype == dtype
    assert plain(values).tolist() == list(values)


@pytest.mark.parametrize(
    "values",
    [
        pd.Series([1, None, None], dtype="Int64"),
        np.array(["a", None, np.nan], dtype=object),
        [["a", None], [None, "b"]],
    ],
)
def test_missing_targets_are_counted(values: Any) -> None:
    with pytest.raises(ValueError, match="the target has 2 missing values; leave their rows out"):
        plain(values)


def test_targets_in_several_columns_stay_a_table() -> None:
    frame = pd.DataFrame({"a": [0, 1], "b": [1, 1]})
    assert plain(frame) is frame
    assert plain([1, 2]) == [1, 2]


# --------------------------------------------------------------------------------------------------
# networks


def test_networks() -> None:
    net = perceptron(30, (20, 10), 3, 4).requires_grad_(False)
    assert [type(each).__name__ for each in net] == ["Linear", "ReLU", "Linear", "ReLU", "Linear"]
    shapes = [tuple(each.shape) for each in net.parameters()]
    assert shapes == [(20, 30), (20,), (10, 20), (10,), (3, 10), (3,)]
    for layer in net:
        if isinstance(layer, nn.Linear):  # started as scikit-learn starts its networks
            bound = (6 / (layer.in_features + layer.out_features)) ** 0.5
            assert 0.85 * bound < float(layer.weight.abs().max()) <= bound
            assert not layer.bias.any()
    linear: Any = perceptron(30, (), 1, 4).requires_grad_(False)
    assert len(linear) == 1
    assert float(linear[0].weight.abs().max()) <= 30**-0.5
    assert linear[0].bias.any()


def test_networks_follow_their_seed_and_leave_torchs_alone() -> None:
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    one, same, other = (
        nn.utils.parameters_to_vector(perceptron(3, (2,), 1, seed).parameters())
        for seed in (4, 4, 5)
    )
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert torch.rand(1) == expected


def test_widths() -> None:
    assert widths([8, np.int64(4)]) == (8, 4)
    assert widths(8) == widths(np.int32(8)) == (8,)
    assert widths(()) == ()
    for wrong in ((0,), (8, -1), (1.5,), "8", None, 2.0):
        with pytest.raises(ValueError, match=r"such as \(100, 30\), or .* got "):
            widths(wrong)


# --------------------------------------------------------------------------------------------------
# probabilities


def logistic(scores: np.ndarray, target: np.ndarray) -> tuple[float, float]:
    """Slope and shift of the logistic curve that fits best, with a penalty of slope^2 / 2e4."""

    def cost(line: np.ndarray) -> float:
        odds = np.where(target == 1, 1, -1) * (line[0] * scores + line[1])
        return float(np.logaddexp(0, -odds).sum() + line[0] ** 2 / 2e4)

    found = minimize(cost, [1.0, 0.0], tol=1e-12).x
    return float(found[0]), float(found[1])


def probabilities(
    kind: Any, metric: str, threshold: Tensor | None, made: dict[str, Tensor]
) -> tuple[float, Tensor]:
    """Steepness and cut of a fit whose validation scores are made up."""
    fit: Any = FakeFit(nn.Linear(1, 1), mg.metric(metric), threshold, **made)
    return calibrated(fit, kind)


def test_probabilities_are_fitted_on_the_validation_items() -> None:
    generator = torch.Generator().manual_seed(0)
    scores = 3 + torch.randn(2, 150, generator=generator)
    target = (scores + torch.randn(2, 150, generator=generator) > 3.5).long()
    live = torch.ones(2, 150, dtype=torch.bool)
    live[1, 100:] = False
    target[1, 100:] = 1 - target[1, 100:]  # padding, which must not count
    made = {"scores": scores, "target": target, "live": live}
    slope, shift = logistic(scores[live].numpy(), target[live].numpy())
    steepness, cut = probabilities("binary", "auc", None, made)
    assert steepness == pytest.approx(slope, rel=1e-3)
    assert float(cut) == pytest.approx(-shift / slope, rel=1e-3)
    assert abs(float(cut)) > 1
    steepness, cut = probabilities("binary", "f1", THRESHOLD, made)
    assert steepness == pytest.approx(slope, rel=1e-3)
    assert cut is THRESHOLD
    every = {**made, "live": torch.ones_like(live), "rows": {"sample_weight": live.double()}}
    weighed, _ = probabilities("binary", "auc", None, every)
    assert weighed == pytest.approx(slope, rel=1e-3)


def test_probabilities_of_scores_that_say_nothing() -> None:
    made = {"scores": torch.tensor([[2.0, 1.0, 4.0]]), "target": torch.tensor([[0, 1, 0]])}
    steepness, cut = probabilities("binary", "auc", None, made)
    assert (steepness, float(cut)) == (1.0, 0.0)
    flat = {"scores": torch.zeros(1, 4), "target": torch.tensor([[0, 1, 0, 0]])}
    steepness, cut = probabilities("binary", "auc", None, flat)
    assert (steepness, float(cut)) == (1.0, 0.0)
    for kind in ("classes", "labels"):
        found = probabilities(kind, "f1", None, made)
        assert (found[0], float(found[1])) == (1.0, 0.0)
        assert probabilities(kind, "f1", THRESHOLD, made)[1] is THRESHOLD


def test_thresholds_of_wide_tables_hold_for_new_rows() -> None:
    """New rows have what training rows do not span, so neither may lose it."""
    generator = np.random.default_rng(0)
    y = generator.integers(0, 2, 400)
    x = generator.normal(size=(400, 1200)) + np.outer(y - 0.5, generator.normal(size=1200)) / 3
    quick = {"method": "cross_entropy", "rate": 0.01, "epochs": 4, "random_state": 0}
    model = mg.MetricClassifier("f1", **quick).fit(x[:100], y[:100])
    assert model.score(x[100:], y[100:]) > 0.95
