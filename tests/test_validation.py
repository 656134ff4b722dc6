"""Validation: the metric of folds at its best threshold, and what chance alone would give."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, f1_score
from torch import Tensor

import metricgrad as mg
from metricgrad.training import validation as module
from metricgrad.training.validation import ONE_SIGMA, Validation, ValidationItems, bootstrap
from tests.trainings import seeded


def made_up(
    metric: Any, number: int = 300, folds: int = 3, **options: Any
) -> tuple[Validation, Tensor, Tensor]:
    target = (torch.rand(folds, number, generator=seeded()) < 0.3).long()
    scores = torch.randn(folds, number, generator=seeded(1)) + target
    live = torch.ones(folds, number, dtype=torch.bool)
    live[0, -7:] = False
    return Validation(mg.metric(metric), ValidationItems(target, live), **options), scores, target


def right(scores: Tensor, target: Tensor) -> Tensor:
    """A user's own function that decides at 0."""
    return ((scores > 0) == (target > 0)).float().mean()


def test_decisions_are_pooled_and_orders_are_averaged() -> None:
    validation, scores, target = made_up("f1")
    value, threshold = validation.measure(scores)
    live = validation.items.live
    assert threshold is not None
    assert value == pytest.approx(f1_score(target[live], scores[live] > threshold))
    validation, scores, target = made_up("average_precision")
    value, threshold = validation.measure(scores)
    each = [average_precision_score(target[k][live[k]], scores[k][live[k]]) for k in range(3)]
    assert threshold is None
    assert value == pytest.approx(sum(each) / 3, abs=1e-5)
    # Two models, each with a scale of its own.
    perfect = torch.tensor([[4.0, 3, 2, 1], [0.4, 0.3, 0.2, 0.1]])
    target = torch.tensor([[1, 1, 0, 0], [1, 1, 0, 0]])
    items = ValidationItems(target, torch.ones(2, 4, dtype=torch.bool))
    assert Validation(mg.metric("recall_at_k", k=2), items).measure(perfect).value == 1


def test_padding_does_not_count() -> None:
    for metric in ("f1", "auc"):
        validation, scores, target = made_up(metric)
        value, threshold = validation.measure(scores)
        scores[0, -7:] = 1e6
        target[0, -7:] = 1 - target[0, -7:]
        again = validation.measure(scores)
        assert again.value == value
        assert (again.threshold is None) == (threshold is None)


def test_a_threshold_is_tuned_only_if_it_is_wanted_and_there_is_one() -> None:
    validation, scores, _ = made_up("f1")
    tuned = validation.measure(scores)
    plain = made_up("f1", tune=False)[0].measure(scores)
    assert plain.threshold is None
    assert plain.value == validation.value(scores, None)
    assert tuned.value > plain.value
    assert made_up("auc")[0].measure(scores).threshold is None
    classes = torch.randn(3, 300, 4, generator=seeded(2))
    assert made_up("accuracy")[0].measure(classes).threshold is None


def test_a_threshold_is_subtracted_from_the_scores_of_a_function() -> None:
    """A function decides at 0, so its scores are moved; other metrics move their threshold."""
    target = torch.tensor([[1, 1, 0, 0]])
    items = ValidationItems(target, torch.ones(1, 4, dtype=torch.bool))
    scores = torch.tensor([[5.0, 4.0, 3.0, 2.0]])
    cut = torch.tensor(3.5)
    for metric in (mg.from_function(right), mg.metric("accuracy")):
        validation = Validation(metric, items)
        assert validation.value(scores, None) == 0.5
        assert validation.value(scores, cut) == 1.0
        assert validation.value(scores, -cut) == 0.5
        found = validation.measure(scores)
        assert found.value == 1.0
        assert found.threshold is not None
        assert 3.0 <= found.threshold.item() <= 4.0
        draws = bootstrap(metric, cut, scores[0], target[0], seeded())
        assert (draws == 1).all()


def test_a_gain_knows_which_way_is_better() -> None:
    assert made_up("f1")[0].gain(0.7, 0.5) == pytest.approx(0.2)
    assert made_up("error_rate")[0].gain(0.7, 0.5) == pytest.approx(-0.2)


def test_items_that_are_sets_have_a_value_each() -> None:
    """The mean over queries with anything relevant; a threshold does not exist."""
    metric = mg.metric("ndcg")
    scores = torch.randn(2, 5, 6, generator=seeded())
    target = torch.randint(0, 3, (2, 5, 6), generator=seeded(1))
    where = torch.rand(2, 5, 6, generator=seeded(2)) < 0.8
    where[0, 0] = False
    target[1, 2] = 0
    live = torch.ones(2, 5, dtype=torch.bool)
    live[1, 4] = False
    validation = Validation(metric, ValidationItems(target, live, where))
    counted = [
        metric(scores[k, n], target[k, n], where=where[k, n]).item()
        for k in range(2)
        for n in range(5)
        if live[k, n] and (where[k, n] & (target[k, n] > 0)).any()
    ]
    assert validation.sets
    assert len(counted) == 7
    assert validation.measure(scores).value == pytest.approx(sum(counted) / 7, abs=1e-6)
    assert validation.measure(scores).threshold is None
    # Sets of decisions too have no threshold.
    binary = ValidationItems((target > 0).long(), live, where)
    assert Validation(mg.metric("f1"), binary).measure(scores).threshold is None
    assert not made_up("f1")[0].sets
    nothing = ValidationItems(torch.zeros_like(target), live, where)
    assert Validation(metric, nothing).measure(scores).value == 0


# ---------------------------------------------------------------------------
# what chance would give


def luck_with_numpy(
    validation: Validation,
    decisions: list[np.ndarray],
    generator: torch.Generator,
    quantile: float,
    draws: int,
) -> float:
    """The same quantile for accuracy, of the same draws, in plain NumPy."""
    live = validation.items.live
    target = validation.items.target.numpy()
    number = live.shape[1]
    place = torch.rand(draws, len(live), number, dtype=torch.float64, generator=generator)
    index = (place.numpy() * live.sum(1, keepdim=True).numpy()).astype(int).swapaxes(0, 1)

    def accuracy(each: np.ndarray, draw: int | None) -> float:
        rows = [
            (each[k] == target[k])[live[k].numpy() if draw is None else index[k, draw]]
            for k in range(len(live))
        ]
        return float(np.concatenate(rows).mean())

    whole = [accuracy(each, None) for each in decisions]
    highest = []
    for draw in range(draws):
        values = [accuracy(each, draw) for each in decisions]
        gains = [(v - values[0]) - (w - whole[0]) for v, w in zip(values, whole, strict=True)]
        highest.append(max(gains[1:]))
    return float(np.quantile(highest, quantile))


@pytest.mark.parametrize("quantile", [ONE_SIGMA, 0.95])
@pytest.mark.parametrize("models", [2, 4])
def test_luck_is_a_quantile_of_the_highest_centred_gain(models: int, quantile: float) -> None:
    validation, _, target = made_up("accuracy", 50)
    guesses = [
        torch.where(torch.rand(3, 50, generator=seeded(10 + k)) < 0.8, target, 1 - target)
        for k in range(models)
    ]
    scores = [2.0 * each - 1 for each in guesses]
    found = validation.luck(scores, [None] * models, seeded(5), quantile)
    decisions = [each.numpy() for each in guesses]
    expected = luck_with_numpy(validation, decisions, seeded(5), quantile, 200)
    assert found == pytest.approx(expected, abs=1e-6)
    wrong = Validation(mg.metric("error_rate"), validation.items)  # the same, the other way round
    assert wrong.luck(scores, [None] * models, seeded(5), quantile) == pytest.approx(
        expected, abs=1e-6
    )


def test_only_live_items_are_drawn_and_all_alike() -> None:
    live = torch.tensor([[True, False, True, True], [True, True, True, True]])
    drawn = module._drawn(live, 9_000, seeded())
    assert drawn.shape == (9_000, 2, 4)
    for fold, expected in ((0, [1 / 3, 0, 1 / 3, 1 / 3]), (1, [1 / 4] * 4)):
        shares = torch.bincount(drawn[:, fold].flatten(), minlength=4) / 36_000
        assert shares.tolist() == pytest.approx(expected, abs=0.01)


def test_luck_of_sets_draws_whole_sets() -> None:
    metric = mg.metric("ndcg")
    target = torch.randint(0, 3, (2, 20, 6), generator=seeded(1))
    where = torch.rand(2, 20, 6, generator=seeded(2)) < 0.8
    target[..., 0] = 1
    where[..., 0] = True  # every set has a value
    live = torch.ones(2, 20, dtype=torch.bool)
    validation = Validation(metric, ValidationItems(target, live, where))
    scores = [torch.randn(2, 20, 6, generator=seeded(3 + k)) for k in range(2)]
    found = validation.luck(scores, [None, None], seeded(5))
    gains = metric(scores[1], target, where=where) - metric(scores[0], target, where=where)
    place = torch.rand(200, 2, 20, dtype=torch.float64, generator=seeded(5))
    index = (20 * place).long().movedim(0, 1)
    means = torch.stack([gains[k][index[k]] for k in range(2)]).mean((0, 2)) - gains.mean()
    assert found == pytest.approx(torch.quantile(means.double(), ONE_SIGMA).item(), abs=1e-6)


def test_luck_uses_the_threshold_of_each() -> None:
    validation, scores, _ = made_up("f1", 60)
    zero = torch.zeros(())
    far = torch.tensor(0.5)
    same = validation.luck([scores, scores], [zero, zero], seeded())
    moved = validation.luck([scores, scores + 0.5], [zero, far], seeded())
    apart = validation.luck([scores, scores], [zero, far], seeded())
    assert same == pytest.approx(0, abs=1e-7)
    assert moved == pytest.approx(0, abs=1e-7)
    assert apart > 0.001


def test_the_usual_quantile_is_one_standard_deviation() -> None:
    assert pytest.approx(0.5 + 0.5 * math.erf(0.5**0.5), abs=1e-4) == ONE_SIGMA
    validation, scores, _ = made_up("accuracy", 60)
    pair = [scores, scores + 0.3]
    assert validation.luck(pair, [None, None], seeded()) == validation.luck(
        pair, [None, None], seeded(), ONE_SIGMA
    )


def test_luck_is_a_standard_error_for_one_challenger_and_more_for_many() -> None:
    """If two models differ in which items are right, the error of the difference is known."""
    validation, _, target = made_up("accuracy", 2000, 1)
    live = validation.items.live
    correct = torch.where(torch.rand(6, 1, 2000, generator=seeded(2)) < 0.8, 1, -1)
    scores = list((2 * target - 1) * correct.float())
    zero = torch.zeros(())
    pair = [(each > 0).long() == target for each in scores[:2]]
    exact = (pair[1].double() - pair[0].double())[live].std() / live.sum() ** 0.5
    one = validation.luck(scores[:2], [zero, zero], seeded())
    many = validation.luck(scores, [zero] * 6, seeded())
    assert one == pytest.approx(exact.item(), rel=0.25)
    assert many > 1.3 * one


def test_many_scores_are_drawn_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """At least 200 draws in all, and no more scores at once than there is room for."""
    validation, scores, target = made_up("accuracy", 50)
    sizes: list[int] = []
    values = Validation._values

    def counting(self: Validation, *arguments: Any) -> Tensor:
        found = values(self, *arguments)
        if len(arguments) == 3:
            sizes.append(len(found))
        return found

    monkeypatch.setattr(Validation, "_values", counting)
    for room, expected in ((150 * 60, [60] * 4), (10**9, [200]), (1, [1] * 200)):
        sizes.clear()
        monkeypatch.setattr(module, "_ELEMENTS", room)
        validation.luck([scores, -scores], [None, None], seeded())
        assert sizes[::2] == expected  # two models each
        draws = bootstrap(mg.metric("accuracy"), None, scores[0], target[0], seeded())
        assert 200 <= len(draws) <= 400


def test_bootstrap_draws_with_replacement() -> None:
    scores = torch.randn(40, generator=seeded())
    target = (torch.arange(40) % 2).long()
    metric = mg.metric("accuracy")
    draws = bootstrap(metric, None, scores, target, seeded(3))
    drawn = torch.randint(40, (200, 40), generator=seeded(3))
    expected = ((scores > 0).long() == target)[drawn].double().mean(-1)
    torch.testing.assert_close(draws.double(), expected, rtol=0, atol=1e-6)
    assert not draws.requires_grad
