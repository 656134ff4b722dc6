"""Wide tables in the space of their rows: the same network, and honest validation."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import metricgrad as mg
from metricgrad.training.data import FoldBatches, Items
from metricgrad.training.row_space import AsGiven, RowSpace, TableItems, space_for
from metricgrad.training.split import Split, SplitPlan, split_data, unsplit
from tests.trainings import seeded

COLUMNS = 120
PLAN = SplitPlan(mg.metric("f1"), True, 16, False, 5, 0.2)


def wide(items: int = 30) -> TableItems:
    x = torch.randn(items, COLUMNS, generator=seeded())
    return TableItems(x, torch.arange(items) % 2)


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(COLUMNS, 4), nn.ReLU(), nn.Linear(4, 1))


def space(items: Items) -> RowSpace:
    found = space_for(network(), items, None)
    assert isinstance(found, RowSpace)
    return found


def items_of(split: Split) -> Items:
    assert isinstance(split.batches, FoldBatches)
    return split.batches.items


def columns_of(found: RowSpace, items: Items, train: Tensor) -> nn.Sequential:
    """The network of all columns that was trained on some of the items."""
    model = network()
    model.load_state_dict(found.outside(dict(found.model.state_dict()), items, train))
    return model


def test_the_network_of_all_columns_scores_as_that_of_the_coordinates() -> None:
    items = wide()
    found = space(items)
    split = split_data(items, None, PLAN, 0)
    inside = found.split(split)
    for fold, own in zip(split.folds, inside.folds, strict=True):
        model = columns_of(found, items, fold.train)
        for here, there in ((fold.train, own.train), (fold.valid, own.valid)):
            batch = items_of(inside).take(there)
            torch.testing.assert_close(found.model(batch.x), model(items.x[here]))
            assert torch.equal(batch.y, items.y[here])


def test_training_rows_keep_their_lengths_and_validation_rows_lose_what_is_new() -> None:
    items = wide()
    inside = space(items).split(split_data(items, None, PLAN, 0))
    lengths = items_of(inside).x.norm(dim=-1).unflatten(0, (5, 30))
    whole = items.x.norm(dim=-1)
    for number, fold in enumerate(split_data(items, None, PLAN, 0).folds):
        torch.testing.assert_close(lengths[number, fold.train], whole[fold.train])
        assert (lengths[number, fold.valid] < 0.8 * whole[fold.valid]).all()


def test_batches_and_validation_items_are_those_of_the_split() -> None:
    items = wide()
    amounts = replace(items, rows={"amount": torch.arange(30.0)})
    split = split_data(amounts, None, PLAN, 0)
    inside = space(amounts).split(split)
    for one, other in zip(split.batches.epoch(3, 2), inside.batches.epoch(3, 2), strict=True):
        assert torch.equal(one.y, other.y)
        assert torch.equal(one.rows["amount"], other.rows["amount"])
        assert other.x.shape == (10, 16, 30)
    for one, other in zip(split.data.batches(1), inside.data.batches(1), strict=True):
        assert torch.equal(one.y, other.y)
    assert len(inside.screening().folds) == len(split.screening().folds)


def test_validation_data_of_its_own_is_projected_like_new_rows() -> None:
    items = wide()
    held = Items(torch.randn(7, COLUMNS, generator=seeded(1)), torch.arange(7) % 2)
    found = space(items)
    split = found.split(split_data(items, held, replace(PLAN, folds=None), 0))
    (batch,) = split.data.batches(1)
    model = columns_of(found, items, torch.arange(30))
    torch.testing.assert_close(found.model(batch.x[0]), model(held.x))


def test_rows_that_repeat_others_leave_no_random_directions() -> None:
    items = wide()
    items.x[10:20] = items.x[:10]
    found = space(items)
    basis = found.basis(items.x)
    assert int((basis.norm(dim=0) > 0.5).sum()) == 20
    inside = found.split(unsplit(items, PLAN, 0))
    torch.testing.assert_close(items_of(inside).x.norm(dim=-1), items.x.norm(dim=-1))


@pytest.mark.parametrize("number", [60, 59])
def test_only_tables_with_more_than_twice_as_many_columns_as_rows(number: int) -> None:
    expected = RowSpace if number == 59 else AsGiven
    assert isinstance(space_for(network(), wide(number), None), expected)


def test_the_users_own_models_and_data_are_left_alone() -> None:
    items = wide()
    plain = Items(items.x, items.y)
    given = network()
    assert space_for(given, plain, None).model is given
    own = nn.Linear(COLUMNS, 1)
    assert space_for(own, items, None).model is own
    split = split_data(plain, None, PLAN, 0)
    kept = space_for(given, plain, None)
    assert kept.split(split) is split
    state = dict(given.state_dict())
    assert kept.outside(state, plain, torch.arange(3)) is state
