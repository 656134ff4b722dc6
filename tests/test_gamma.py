"""Gamma: decisions s >= gamma, and its choice by cross-validation."""

from typing import Any

import pytest
import torch
from sklearn.metrics import f1_score
from torch import Tensor, nn

import metricgrad as mg
from metricgrad.training import choose_gamma, decides_at_least
from tests.trainings import QUICK, X, Y, network, seeded


@pytest.mark.parametrize("gamma", [-0.5, 0.0, 1e-30, 0.1, 3.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_score_of_gamma_is_positive(gamma: float, dtype: torch.dtype) -> None:
    exact = torch.tensor(gamma, dtype=torch.float32)
    around = [torch.nextafter(exact, torch.tensor(side)) for side in (-torch.inf, torch.inf)]
    scores = torch.stack([around[0], exact, around[1], exact - 1, exact + 1]).to(dtype)
    target = torch.tensor([1, 1, 0, 0, 1])
    metric = decides_at_least(mg.metric("f1"), gamma)
    expected = f1_score(target.numpy(), (scores >= exact).numpy())
    assert float(metric(scores, target)) == pytest.approx(expected)
    assert float(mg.metric("f1", threshold=float(exact))(scores, target)) != pytest.approx(expected)


def test_metrics_without_one_threshold_are_left_as_they_are() -> None:
    labels = mg.metric("f1", multilabel=True, threshold=[0.1, 0.2, 0.3])
    for metric in (mg.metric("auc"), labels, mg.from_function(lambda s, y: 0.5)):
        assert decides_at_least(metric) is metric


class Shifted(nn.Module):
    """A model that cannot move far: its scores are those of the first column plus 2."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        return x[:, 0] + 2 + self.bias


@pytest.mark.parametrize("start", ["scratch", "universal"])
def test_the_gamma_that_is_best_in_validation_is_chosen(start: str) -> None:
    """The model is right at 2.5 and can hardly move, so that every value is known."""
    target = X[:, 0] > 0.5
    options: dict[str, Any] = {"start": start, "gammas": [0.0, 2.5, 4.0]}
    options["universal"] = {**QUICK, "source": "broad"}
    found = choose_gamma(
        Shifted, "f1", X, target, iterations=1, folds=3, generator=seeded(), **options
    )
    assert found.gamma == 2.5
    assert found.means[2.5] == pytest.approx(1.0, abs=0.02)
    assert found.means[0.0] < 0.6
    error = choose_gamma(
        Shifted, "error_rate", X, target, iterations=1, folds=2, gammas=[4.0, 2.5, 0.0]
    )
    assert error.gamma == 2.5


def test_no_fold_is_seen_by_its_own_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Items of the fold that a model is tested on are never drawn for it."""
    drawn: list[Tensor] = []
    parts: list[Tensor] = []

    class Watched(mg.StackedTraining):
        def __init__(self, *args: Any, **options: Any) -> None:
            parts.extend(options["parts"])
            super().__init__(*args, **options)

        def _draw(self, number: int) -> Tensor:
            drawn.append(super()._draw(number))
            return drawn[-1]

    monkeypatch.setattr("metricgrad.training.gamma.StackedTraining", Watched)
    choose_gamma(
        network, "f1", X, Y, iterations=2, folds=3, gammas=[0.0, 0.5], generator=seeded(),
        start="scratch", batch=40,
    )  # fmt: skip
    assert [len(part) for part in parts] == [400] * 6
    assert len(torch.cat(parts).unique()) == len(X)
    for index in drawn:
        assert index.shape == (13, 6, 40)
        for run, part in enumerate(parts):
            assert torch.isin(index[:, run], part).all()
            assert all(Y[batch].sum() == 20 for batch in index[:, run])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metric": "auc"}, "such as 'f1', from one candidate or more; got auc"),
        ({"gammas": []}, r"got f1 and \[\]"),
        ({"folds": 1}, "folds must be 2 or more; got 1"),
    ],
)
def test_what_cannot_be_chosen_is_refused(options: dict[str, Any], message: str) -> None:
    given = {"metric": "f1", "x": X, "y": Y, "iterations": 1, **options}
    with pytest.raises(ValueError, match=message):
        choose_gamma(network, **given)
