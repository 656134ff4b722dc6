"""Data of the items in a metric of one's own: amounts, costs and weights beside the target."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import sklearn.metrics as sk
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

import metricgrad as mg
from metricgrad import baselines
from metricgrad.training.data import Items, fingerprint


def profit(scores: Tensor, target: Tensor, amount: Tensor) -> Tensor:
    """What it earns to contact everybody with a positive score, at a cost of 1."""
    return ((scores > 0) * (target * amount - 1)).mean()


def best_two(scores: Tensor, target: Tensor, amount: Tensor, cost: Any = 1.0) -> Tensor:
    """The profit of the two highest scores, with costs of 1 unless others are given."""
    chosen = scores.topk(2).indices
    return (target * amount - cost * torch.ones_like(amount))[chosen].sum()


def with_arrays(scores: np.ndarray, target: np.ndarray, amount: np.ndarray) -> float:
    """The same profit, in NumPy alone."""
    assert isinstance(amount, np.ndarray)
    return float(np.where(scores > 0, target * amount - 1, 0.0).mean())


def made(*shape: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Scores, target and amounts of sets."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(*shape, generator=generator, dtype=torch.float64)
    target = torch.randint(0, 2, shape, generator=generator)
    return scores, target, 5 * torch.rand(*shape, generator=generator, dtype=torch.float64)


def value_and_gradient(value: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    return value.detach(), torch.autograd.grad(value, scores)[0]


def closed_over(fn: Callable[..., Any], **rows: Tensor) -> Callable[[Tensor, Tensor], Any]:
    """The same function, with the data of one set in its closure."""
    return lambda scores, target: fn(scores, target, **rows)


@pytest.mark.parametrize("given", [profit, best_two], ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("masked", [False, True])
def test_the_loss_is_that_of_a_function_that_closes_over_the_data(
    given: Callable[..., Any], masked: bool
) -> None:
    scores, target, amount = made(4, 7)
    scores.requires_grad_()
    where = torch.rand(4, 7, generator=torch.Generator().manual_seed(1)) < 0.7
    where[:, :3] = True
    flags = where if masked else torch.ones_like(where)
    each = []
    for own, truth, worth, live in zip(scores, target, amount, flags, strict=True):
        loss = mg.UniLoss(closed_over(given, amount=worth[live]))
        each.append(loss(own[live], truth[live]))
    expected = value_and_gradient(torch.stack(each).mean(), scores)
    loss = mg.UniLoss(given)
    for _ in range(2):  # nothing is left bound after a call
        spoiled = amount.masked_fill(~where, torch.nan) if masked else amount
        value = loss(scores, target, where if masked else None, amount=spoiled)
        torch.testing.assert_close(value_and_gradient(value, scores), expected)
        assert not loss.metric.rows
    assert type(loss.metric).__name__ == "WatchedMetric"
    np.testing.assert_allclose(
        mg.metric(given)(scores, target, where=flags, amount=amount).numpy(),
        -torch.stack(each).detach().numpy(),
    )


def test_a_black_box_gets_the_data_of_its_set() -> None:
    scores, target, amount = made(5, 6, seed=2)
    scores.requires_grad_()
    watched = value_and_gradient(mg.UniLoss(profit)(scores, target, amount=amount), scores)
    loss = mg.UniLoss(mg.reexpress(with_arrays, watch=False))
    value = loss(scores, target, amount=amount)
    torch.testing.assert_close(value_and_gradient(value, scores), watched)
    other = torch.rand_like(amount)  # values of other amounts must not be remembered
    value = loss(scores, target, amount=other)
    expected = mg.UniLoss(profit)(scores, target, amount=other)
    torch.testing.assert_close(
        value_and_gradient(value, scores), value_and_gradient(expected, scores)
    )


def test_a_black_box_never_takes_items_with_equal_labels_for_alike() -> None:
    for seed in range(8):  # a few tries on a small set may not show that they differ
        scores, target, amount = made(12, seed=seed)
        amount[:-1] = 3.0
        scores.requires_grad_()
        loss = mg.UniLoss(mg.reexpress(with_arrays, watch=False))
        value = loss(scores, target, amount=amount)
        expected = mg.UniLoss(profit)(scores, target, amount=amount)
        torch.testing.assert_close(
            value_and_gradient(value, scores), value_and_gradient(expected, scores)
        )


def test_a_black_box_that_shows_no_comparisons_has_its_own_value() -> None:
    scores, target, amount = made(5)
    amount[:-1] = 1.0
    loss = mg.UniLoss(mg.reexpress(with_arrays, watch=False))
    assert loss(scores, target, amount=amount) == -profit(scores, target, amount)


def test_a_function_on_sight_becomes_a_black_box_with_its_data(caplog: Any) -> None:
    scores, target, amount = made(2, 6)
    loss = mg.UniLoss(with_arrays)
    value = loss(scores, target, amount=amount)
    torch.testing.assert_close(value, mg.UniLoss(profit)(scores, target, amount=amount))
    assert type(loss.metric).__name__ == "BlackBoxMetric"
    assert not loss.metric.rows
    assert "black box" in caplog.text


def test_classes_of_a_black_box() -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(9, 3, generator=generator, requires_grad=True)
    target = torch.arange(9) % 3

    def weighted(scores: Tensor, target: Tensor, weight: Tensor) -> Tensor:
        return ((scores.argmax(-1) == target) * weight).sum() / weight.sum()

    loss = mg.UniLoss(mg.reexpress(weighted, best=1.0, watch=False))
    for seed in range(2):
        weight = torch.rand(9, generator=torch.Generator().manual_seed(seed))
        value = value_and_gradient(loss(scores, target, weight=weight), scores)
        closed = mg.reexpress(closed_over(weighted, weight=weight), best=1.0, watch=False)
        expected = value_and_gradient(mg.UniLoss(closed)(scores, target), scores)
        torch.testing.assert_close(value, expected)


@pytest.mark.parametrize("interpolation", ["multilinear", "idw"])
def test_the_relaxed_loss_has_the_right_gradient(interpolation: Any) -> None:
    scores, target, amount = made(2, 6)
    loss = mg.UniLoss(profit, interpolation=interpolation)
    source = torch.Generator()

    def relaxed(values: Tensor) -> Tensor:
        loss.generator = source.manual_seed(0)
        return loss.relaxed(values, target, amount=amount)

    assert torch.autograd.gradcheck(relaxed, (scores.requires_grad_(),))
    first = torch.autograd.grad(relaxed(scores).mean(), scores)[0]
    second = torch.autograd.grad(loss(scores, target, amount=amount), scores)[0]
    assert interpolation == "idw" or torch.allclose(first, second)


def test_groups_split_the_data_too() -> None:
    scores, target, amount = made(12)
    scores.requires_grad_()
    ids = torch.tensor([3, 1, 3, 3, 1, 8, 8, 3, 1, 3, 3, 8])
    each = [
        mg.UniLoss(profit)(scores[ids == one], target[ids == one], amount=amount[ids == one])
        for one in (1, 3, 8)
    ]
    value = mg.UniLoss(profit)(scores, target, groups=ids, amount=amount)
    torch.testing.assert_close(
        value_and_gradient(value, scores), value_and_gradient(torch.stack(each).mean(), scores)
    )
    found = mg.from_function(profit)(scores, target, groups=ids, amount=amount)
    torch.testing.assert_close(found, -torch.stack(each).detach())


def test_two_columns_are_joined_with_the_same_items() -> None:
    scores, target, amount = made(8)
    scores.requires_grad_()
    rows = {"amount": amount, "cost": amount.flip(0)}
    value = mg.UniLoss(best_two)(scores, target, **rows)
    expected = mg.UniLoss(closed_over(best_two, **rows))(scores, target)
    torch.testing.assert_close(
        value_and_gradient(value, scores), value_and_gradient(expected, scores)
    )


def test_parameters_with_a_default_may_be_left_out() -> None:
    scores, target, amount = made(3, 8)
    metric = mg.reexpress(best_two)
    assert metric.row_names.every == ("amount", "cost")
    assert metric.row_names.required == ("amount",)
    plain = metric(scores, target, amount=amount)
    torch.testing.assert_close(
        metric(scores, target, amount=amount, cost=torch.full((3, 8), 2.0)), plain - 2
    )
    assert "topk" in metric.explain(scores, target, amount=amount)


def test_an_item_may_have_several_values() -> None:
    def cost(scores: Tensor, target: Tensor, costs: Tensor) -> Tensor:
        return costs.gather(-1, scores.argmax(-1, keepdim=True)).mean()

    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(2, 5, 3, generator=generator)
    costs = torch.rand(2, 5, 3, generator=generator)
    metric = mg.reexpress(cost, higher_is_better=False)
    target = torch.zeros(2, 5).long()
    expected = costs.gather(-1, scores.argmax(-1, keepdim=True)).mean((-1, -2))
    torch.testing.assert_close(metric(scores, target, costs=costs), expected)
    torch.testing.assert_close(mg.UniLoss(metric)(scores, target, costs=costs), expected.mean())


def test_scikit_learn_takes_its_weights() -> None:
    scores, target, weight = made(30)
    value = mg.from_function(sk.f1_score)(scores, target, sample_weight=weight)
    expected = sk.f1_score(target, scores > 0, sample_weight=weight)
    assert value.item() == pytest.approx(expected)
    assert not mg.from_function(sk.cohen_kappa_score).row_names.required


def test_other_losses_around_it_pass_the_data_on() -> None:
    scores, target, amount = made(2, 8)
    both = mg.with_ordinary(mg.UniLoss(profit), 0.5)
    alone = mg.UniLoss(profit)(scores, target, amount=amount)
    ordinary = baselines.CrossEntropy()(scores, target)
    torch.testing.assert_close(both(scores, target, amount=amount), alone + 0.5 * ordinary)
    memory = mg.with_memory(mg.UniLoss(profit))
    with pytest.raises(ValueError, match="past items alone; got amount"):
        memory(scores[0], target[0], amount=amount[0])
    assert memory.eval()(scores, target, amount=amount) == alone


@pytest.mark.parametrize("given", [profit, with_arrays], ids=lambda fn: fn.__name__)
def test_a_metric_loss_passes_the_data_on(given: Callable[..., Any]) -> None:
    scores, target, amount = made(12)
    scores.requires_grad_()
    loss = mg.MetricLoss(given)
    expected = mg.MetricLoss(closed_over(profit, amount=amount))
    for _ in range(3):
        value = loss(scores, target, amount=amount)
        torch.testing.assert_close(
            value_and_gradient(value, scores),
            value_and_gradient(expected(scores, target), scores),
        )
        assert not loss.metric.rows
        assert not loss.by_metric.metric.rows


def test_a_metric_loss_splits_the_data_by_groups() -> None:
    scores, target, amount = made(12)
    scores.requires_grad_()
    ids = torch.arange(12) % 3
    value = mg.MetricLoss(profit)(scores, target, groups=ids, amount=amount)
    sets = [each.reshape(4, 3).T for each in (scores, target, amount)]
    expected = mg.MetricLoss(profit)(*sets[:2], amount=sets[2])
    torch.testing.assert_close(
        value_and_gradient(value, scores), value_and_gradient(expected, scores)
    )
    with pytest.raises(TypeError, match="f1 takes sample_weight besides scores and target; got am"):
        mg.MetricLoss("f1")(scores, target, groups=ids, amount=amount)


def test_a_function_with_data_is_refused_the_wrong_way_round() -> None:
    def loss_of_money(scores: Tensor, target: Tensor, amount: Tensor) -> Tensor:
        return -profit(scores, target, amount)

    scores, target, amount = made(12)
    with pytest.raises(ValueError, match=r"loss_of_money is .* would train backwards"):
        mg.UniLoss(loss_of_money)(scores.requires_grad_(), target, amount=1 + amount)
    data = (scores.detach().float().unsqueeze(-1), target, 1 + amount)
    with pytest.raises(ValueError, match=r"loss_of_money is .* would train backwards"):
        mg.fit(torch.nn.Linear(1, 1), data, metric=loss_of_money, folds=1, **UNILOSS)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("worth", [0.2, 3.0])
def test_costs_above_the_amounts_do_not_turn_the_direction(share: float, worth: float) -> None:
    def net(scores: Tensor, target: Tensor, amount: Tensor, cost: Tensor) -> Tensor:
        return ((scores > 0) * (target * amount - cost)).sum()

    def spent(scores: Tensor, target: Tensor, amount: Tensor, cost: Tensor) -> Tensor:
        return -net(scores, target, amount, cost)

    scores, _, amount = made(40)
    target = (torch.arange(40) < 40 * share).long()
    rows = {"amount": worth * amount, "cost": 2.0 + target}  # those who respond cost more
    mg.UniLoss(net)(scores.requires_grad_(), target, **rows)
    known = {"amount": worth * amount * target, "cost": 1.0 + 0 * target}  # once somebody buys
    mg.UniLoss(net)(scores, target, **known)
    for given in (rows, known):
        with pytest.raises(ValueError, match=r"spent is .* would train backwards"):
            mg.UniLoss(spent)(scores, target, **given)


@pytest.mark.parametrize("normalised", [True, False])
def test_amounts_of_positives_alone_tell_the_direction(normalised: bool) -> None:
    def missed(scores: Tensor, target: Tensor, amount: Tensor) -> Tensor:
        lost = ((scores <= 0) * target * amount).sum()
        return lost / (target * amount).sum() if normalised else lost

    scores, target, amount = made(20)
    with pytest.raises(ValueError, match=r"missed is 0 .* would train backwards"):
        mg.UniLoss(missed)(scores.requires_grad_(), target, amount=amount * target)


def test_the_best_offsets_know_the_data() -> None:
    def earned(scores: Tensor, target: Tensor, amount: Tensor) -> Tensor:
        return ((scores.argmax(-1) == target) * amount).mean()

    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(60, 3, generator=generator)
    target = torch.randint(0, 3, (60,), generator=generator)
    worth = torch.tensor([1.0, 2.0, 5.0])
    for draws in (0, 8):  # draws must take the amounts along with their items
        found = mg.best_offsets(scores, target, earned, draws=draws, amount=worth[target])
        same = mg.best_offsets(scores, target, lambda s, y: earned(s, y, worth[y]), draws=draws)
        assert torch.equal(found, same)
        assert earned(scores + found, target, worth[target]) > earned(scores, target, worth[target])
    with pytest.raises(TypeError, match="earned takes amount besides scores and target"):
        mg.best_offsets(scores, target, earned)


def test_what_is_wrong_is_told() -> None:
    scores, target, amount = made(2, 6)
    for call in (mg.metric(profit), mg.UniLoss(profit), mg.UniLoss(with_arrays)):
        with pytest.raises(TypeError, match=r"takes amount besides .* \(scores, target, amount="):
            call(scores, target)
        with pytest.raises(TypeError, match="takes amount besides scores and target; got cost"):
            call(scores, target, amount=amount, cost=amount)
        with pytest.raises(ValueError, match=r"amount must have .* \[2, 6\] .*; got \[2, 5\]"):
            call(scores, target, amount=amount[:, 1:])
        with pytest.raises(ValueError, match=r"amount must have .* \[2, 6\] .*; got \[6\]"):
            call(scores, target, amount=amount[0])
        with pytest.raises(ValueError, match="amount is NaN for 2 of 12 items; fill"):
            call(scores, target, amount=amount.index_fill(1, torch.tensor(0), torch.nan))
    with pytest.raises(TypeError, match=r"takes amount besides .* \(scores, target, amount="):
        mg.UniLoss(profit)(scores, target, amount)  # the third argument is where
    with pytest.raises(TypeError, match=r"ndcg takes scores and target alone\. .*; got amount"):
        mg.metric("ndcg")(scores, target, amount=amount)
    for loss in (mg.UniLoss("f1"), baselines.CrossEntropy()):
        with pytest.raises(TypeError, match=r"takes sample_weight besides .*; got amount"):
            loss(scores, target, amount=amount)
    with pytest.raises(TypeError, match="SoftFBeta takes scores and target alone here; got amount"):
        baselines.SoftFBeta()(scores, target, amount=amount)
    for learned in (mg.ReLoss, mg.BilevelLoss):
        with pytest.raises(ValueError, match=r"have no amount; take mg\.UniLoss"):
            learned(profit)
        assert not learned.fits(mg.metric(profit), "binary")
    with pytest.raises(ValueError, match="has a parameter 'groups'"):
        mg.from_function(lambda scores, target, groups: 0.0)
    assert not mg.from_function(lambda scores, target, where=None: 0.0).row_names


def test_a_metric_with_data_is_copied_and_pickled() -> None:
    scores, target, amount = made(6)
    metric = mg.reexpress(profit).with_rows({"amount": amount})
    for same in (copy.deepcopy(metric), pickle.loads(pickle.dumps(mg.from_function(profit)))):
        own = same if same.rows else same.with_rows({"amount": amount})
        torch.testing.assert_close(own(scores, target), metric(scores, target))


def test_the_best_threshold_knows_the_data() -> None:
    scores, target, amount = made(2, 20)
    found = mg.best_threshold(scores, target, profit, amount=amount)
    for own, truth, worth, threshold in zip(scores, target, amount, found, strict=True):
        tried = torch.cat([own - 1e-9, own + 1e-9])
        best = max(float(profit(own - each, truth, worth)) for each in tried)
        assert profit(own - threshold, truth, worth) == pytest.approx(best)


def customers(number: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Features, responses and amounts; those who respond most often spend the least."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(number, 4, generator=generator)
    responds = torch.rand(number, generator=generator) < torch.sigmoid(1.5 * x[:, 0] + x[:, 1] - 2)
    return x, responds.long(), 2 * torch.exp(1.2 * (x[:, 2] - 0.8 * x[:, 0]))


class Customers(Dataset[Any]):
    """The same one by one, with the amount by name."""

    def __len__(self) -> int:
        return 600

    def __getitem__(self, index: int) -> Any:
        x, y, amount = customers(600, 0)
        return x[index], y[index], {"amount": amount[index]}


QUICK: dict[str, Any] = {"rate": 0.05, "epochs": 3, "progress": False}
UNILOSS: dict[str, Any] = {"method": "uniloss", "options": {"slope": 2.0}, **QUICK}


def test_fit_earns_more_than_cross_entropy_with_a_tuned_threshold() -> None:
    train, (x, y, amount) = customers(3000, 0), customers(10_000, 1)
    found = {}
    for name, options in (("ordinary", {"method": "cross_entropy", **QUICK}), ("own", UNILOSS)):
        torch.manual_seed(0)
        fit = mg.fit(torch.nn.Linear(4, 1), train, metric=profit, **options)
        assert fit.threshold is not None
        found[name] = fit.measure(x, y, amount=amount)
        own = profit(fit.scores(x) - fit.threshold, y, amount)
        assert found[name] == pytest.approx(float(own), rel=1e-5)
    assert found["own"] > found["ordinary"] + 0.05


@pytest.mark.parametrize("folds", [1, 3])
def test_validation_data_keeps_its_amounts(folds: int) -> None:
    x, y, amount = customers(400, 0)
    fit = mg.fit(torch.nn.Linear(4, 1), (x, y, amount), metric=profit, folds=folds, **UNILOSS)
    live = fit.validation.live
    trial = fit.decision.winner
    assert fit.threshold is not None
    pooled = trial.scores[live] - fit.threshold
    expected = profit(pooled, fit.validation.target[live], fit.validation.rows["amount"][live])
    assert fit.value == pytest.approx(float(expected), rel=1e-5)
    assert fit.score_sets == []


def test_auto_compares_losses_for_a_metric_with_amounts() -> None:
    options = {**QUICK, "epochs": 1, "batch": 64}
    fit = mg.fit(torch.nn.Linear(4, 1), customers(200, 0), metric=profit, folds=1, **options)
    assert fit.decision.ordinary is not None
    assert fit.decision.challenger is not None
    tried = {trial.candidate.method for trial in fit.trials}
    assert {"cross_entropy", "metric_loss", "uniloss"} <= tried


def test_data_of_every_kind_has_room_for_amounts() -> None:
    train, valid = customers(600, 0), customers(300, 1)
    named = (*train[:2], {"amount": train[2].numpy()})
    loaders = [DataLoader(TensorDataset(*each), 100) for each in (train, valid)]
    kinds: list[Any] = [
        (train, valid),
        (named, valid),
        (TensorDataset(*train), valid),
        (Customers(), valid),
        loaders,
    ]
    values = []
    for given, held in kinds:
        torch.manual_seed(0)
        options = {**UNILOSS, "epochs": 1}
        values.append(mg.fit(torch.nn.Linear(4, 1), given, held, metric=profit, **options).value)
    assert values[0] == values[1] == values[2]
    assert all(np.isfinite(values))


def test_wrong_data_of_a_fit_is_told() -> None:
    x, y, amount = customers(60, 0)
    model = torch.nn.Linear(4, 1)
    for data, message in (
        ((x, y), r"profit takes amount besides scores and target; .* \(x, y, amount\)"),
        ((x, y, amount, amount), "profit takes amount after x and y; got 4 parts"),
        ((x, y, {"cost": amount}), "profit takes amount besides scores and target; got cost"),
        ((x, y, amount[1:]), r"amount must have a value for each item, shape \[60\]"),
        (DataLoader(TensorDataset(x, y), 20), r"profit takes amount besides .* \(x, y, amount\)"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            mg.fit(model, data, (x, y, amount), metric=profit, **UNILOSS)
    with pytest.raises(TypeError, match="f1 takes sample_weight after x and y; got 4 parts"):
        mg.fit(model, (x, y, amount, amount), metric="f1", **UNILOSS)
    with pytest.raises(ValueError, match="without amount, which profit takes; pass memory=0"):
        mg.fit(model, (x, y, amount), metric=profit, memory=64, **UNILOSS)
    with pytest.raises(ValueError, match=r"have no amount; take mg\.UniLoss"):
        mg.fit(model, (x, y, amount), metric=profit, method="bilevel", **QUICK)


def test_amounts_belong_to_the_fingerprint() -> None:
    x, y, amount = customers(20, 0)
    one, other = (Items(x, y, rows={"amount": each}) for each in (amount, amount + 1))
    assert len({fingerprint(one), fingerprint(other), fingerprint(Items(x, y))}) == 3


def test_a_classifier_takes_amounts_by_name() -> None:
    (x, y, amount), test = customers(800, 0), customers(500, 1)
    options: dict[str, Any] = {"hidden": (), "epochs": 1, "rate": 0.05, "folds": 1}
    options |= {"options": {"slope": 2.0}, "random_state": 0}
    model = mg.MetricClassifier(profit, method="uniloss", **options)
    numbers = np.arange(0, 800, 2)
    model.fit(x.numpy(), y.numpy(), rows=numbers, amount=amount.numpy())
    decided = torch.as_tensor(model.predict(test[0].numpy())) - 0.5
    assert model.score(test[0].numpy(), test[1].numpy(), amount=test[2].numpy()) == pytest.approx(
        float(profit(decided, test[1], test[2])), rel=1e-5
    )
    part = mg.MetricClassifier(profit, method="uniloss", **options)
    part.fit(x[::2].numpy(), y[::2].numpy(), amount=amount[::2].numpy())
    assert part.fit_.value == model.fit_.value
    with pytest.raises(TypeError, match="profit takes amount besides scores and target"):
        model.score(test[0].numpy(), test[1].numpy())


def test_a_classifier_takes_weights_where_its_metric_does() -> None:
    x, y, weight = (each.numpy() for each in customers(300, 0))
    options = {"hidden": (), "epochs": 1, "rate": 0.05, "random_state": 0}
    model = mg.MetricClassifier(sk.f1_score, method="cross_entropy", **options)
    model.fit(x, y, sample_weight=weight)
    expected = sk.f1_score(y, model.predict(x), sample_weight=weight)
    assert model.score(x, y, sample_weight=weight) == pytest.approx(expected, rel=1e-5)


def test_amounts_of_items_that_have_several_labels() -> None:
    def worth(scores: Tensor, target: Tensor, amount: Tensor) -> Tensor:
        return (((scores > 0) & (target > 0)).any(-1) * amount).mean(-1)

    metric = mg.from_function(worth, set_dims=(2, 2))
    scores = torch.tensor([[1.0, -1.0], [-1.0, -1.0], [1.0, 1.0]])
    target = torch.tensor([[1, 0], [1, 1], [0, 1]])
    amount = torch.tensor([2.0, 4.0, 7.0])
    assert metric(scores, target, amount=amount) == pytest.approx(3.0)
    with pytest.raises(ValueError, match="amount"):
        metric(scores, target, amount=amount[:2])
