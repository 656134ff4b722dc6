"""Many trainings at once are trainings of their own."""

from pathlib import Path
from typing import Any

import pytest
import torch

import metricgrad as mg
from metricgrad.training import TrainingError
from metricgrad.training.data import Batches
from tests.trainings import QUICK, X, Y, accuracy, explode, failing, fresh, network, same, seeded


def test_stacked_runs_are_runs_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """With batch normalisation, own rates, and all kinds of metrics, unbounded ones among them."""
    metrics = [
        "f1",
        accuracy,
        "auc",
        "mcc",
        "eer",
        lambda s, y: -100 * float((s * -y).sum()),
    ]  # no bool
    rates = [1e-2, 1e-3, 3e-3, 2e-3, 1e-4, 1e-2]
    draws = [
        torch.stack([Batches(Y, 40, True).draw(13, seeded(9 * i + r)) for r in range(6)], 1)
        for i in range(5)
    ]
    models = [network(seed).double() for seed in range(6)]
    losses = [fresh(metric, seed).double() for seed, metric in enumerate(metrics)]
    x, y = X.double(), Y.long()
    options: dict[str, Any] = {"start": "scratch", "batch": 40, "clip": 0.5}
    stacked = mg.StackedTraining(
        models, losses, x, y, model_rates=rates, loss_rates=rates[::-1], **options
    )
    queue = iter(draws)
    monkeypatch.setattr(stacked, "_draw", lambda number: next(queue))
    found = stacked.advance(5, progress=False)
    for r in range(6):
        model, loss = network(r).double(), fresh(metrics[r], r).double()
        alone = mg.JointTraining(
            model, loss, x, y, model_rate=rates[r], loss_rate=rates[::-1][r], **options
        )
        queue = iter([index[:, r] for index in draws])
        monkeypatch.setattr(alone, "_draw", lambda number, queue=queue: next(queue))
        expected = alone.advance(5, progress=False)
        torch.testing.assert_close(
            dict(models[r].state_dict()), dict(model.state_dict()), rtol=1e-6, atol=1e-6
        )
        torch.testing.assert_close(
            dict(losses[r].state_dict()), dict(loss.state_dict()), rtol=1e-6, atol=1e-6
        )
        assert [part[r].item() for part in found] == pytest.approx(expected[1:], rel=1e-5)


def test_stacked_models_are_left_in_order() -> None:
    models, losses = (
        [network(seed, dropout=0.2) for seed in range(3)],
        [fresh(name) for name in ("f1", "auc", "mcc")],
    )
    for model in models:
        model[0].requires_grad_(False)
    models[1].eval()
    run = mg.StackedTraining(
        models, losses, X, Y, batch=40, start="scratch", model_rates=[1e-1, 1e-2, 1e-3]
    )
    state = torch.get_rng_state()
    run.advance(2, progress=False)
    assert torch.equal(state, torch.get_rng_state())
    assert [model.training for model in models] == [True, False, True]
    for seed, model in enumerate(models):
        before, after = network(seed, dropout=0.2).state_dict(), model.state_dict()
        assert [
            name for name in ("0.weight", "4.weight") if torch.equal(before[name], after[name])
        ] == ["0.weight"]
        assert after["1.num_batches_tracked"] == 6
    state, weights = run.state(), models[0].get_parameter("4.weight").clone()
    run.advance(2, progress=False)
    run.restore(state)
    assert torch.equal(models[0].get_parameter("4.weight"), weights)


def test_a_stacked_training_that_stops_is_at_its_last_good_state() -> None:
    taught = [fresh(failing(256 + after, explode)[0], seed) for seed, after in enumerate((20, 40))]
    run = mg.StackedTraining([network(0), network(1)], taught, X, Y, universal=QUICK, batch=40)
    with pytest.raises(
        TrainingError, match=r"raised KeyError .* at iteration 3; .* back at iteration 0"
    ):
        run.advance(5, progress=False)
    assert all(loss.universal and loss.scale != 1 for loss in taught)
    assert same(dict(run.models[1].state_dict()), dict(network(1).state_dict()))


@pytest.mark.parametrize(
    ("models", "losses", "options", "message"),
    [
        ([0, 1, 2], ["f1", "auc"], {}, "losses must be one for each model; got 2 for 3 models"),
        (
            [0, 1],
            ["f1", "f1"],
            {"model_rates": [0.1]},
            "model_rates must be one for each model; got 1 for 2",
        ),
        (
            [0, 1],
            ["f1", "f1"],
            {"loss_rates": [0.1, 0.0]},
            r"loss_rates must be above 0; got \[0.1, 0.0\]",
        ),
        (
            [0, 1],
            ["f1", mg.metric("f1", multilabel=True)],
            {},
            "stacked losses must be of binary metrics",
        ),
        (
            [0, 1],
            ["f1", mg.BilevelLoss("f1", hidden=((3,), (3,)))],
            {},
            "with the same hidden widths",
        ),
        ([0, network(norm=False)], ["f1", "f1"], {}, "stacked models must be of one architecture"),
        (
            [network(dropout=0.1), network(dropout=0.2)],
            ["f1", "f1"],
            {},
            "activations and dropout included",
        ),
        (
            [0, network().requires_grad_(False)],
            ["f1", "f1"],
            {},
            "number 1 has other parameters than the first",
        ),
    ],
)
def test_unequal_stacks_are_refused(
    models: list[Any], losses: list[Any], options: Any, message: str
) -> None:
    built = [network(each) if isinstance(each, int) else each for each in models]
    given = [each if isinstance(each, mg.BilevelLoss) else fresh(each) for each in losses]
    with pytest.raises(ValueError, match=message):
        mg.StackedTraining(built, given, X, Y, start="scratch", **options)


def test_runs_of_one_stack_may_start_differently() -> None:
    losses = [fresh("f1"), fresh("f1")]
    run = mg.StackedTraining(
        [network(), network()], losses, X, Y, start=["scratch", "universal"], universal=QUICK,
        batch=40,
    )  # fmt: skip
    run.teach()
    assert [loss.universal for loss in losses] == [False, True]
    assert same(dict(losses[0].state_dict()), dict(fresh("f1").state_dict()))
    with pytest.raises(ValueError, match="start must be one for each model; got 1 for 2 models"):
        mg.StackedTraining([network(), network()], losses, X, Y, start=["scratch"])


def test_targets_in_a_column_are_one_for_each_item() -> None:
    """Models with one output return `[N, 1]`, and targets often come like that, too."""

    def trained(y: torch.Tensor, stacked: bool) -> torch.Tensor:
        model = network(0)
        loss = mg.BilevelLoss("f1", generator=seeded())
        options: dict[str, Any] = {"start": "scratch", "batch": 40, "generator": seeded()}
        if stacked:
            run = mg.StackedTraining([model], [loss], X, y, **options)
        else:
            run = mg.JointTraining(model, loss, X, y, **options)
        run.advance(2, progress=False)
        return torch.nn.utils.parameters_to_vector(model.parameters()).detach()

    for stacked in (False, True):
        assert torch.equal(trained(Y.unsqueeze(-1), stacked), trained(Y, stacked))


def test_a_resumed_stack_is_an_uninterrupted_one(tmp_path: Path) -> None:
    """With parts of their own, dropout and universal starts, after a kill between checkpoints."""

    def make(seed: int) -> mg.StackedTraining:
        models = [network(seed + each, dropout=0.3) for each in range(2)]
        losses = [fresh(name, seed) for name in ("f1", "auc")]
        parts = [torch.arange(300), torch.arange(200, 600)]
        return mg.StackedTraining(
            models, losses, X, Y, universal=QUICK, batch=40, parts=parts, generator=seeded(seed)
        )

    whole = make(0)
    whole.advance(6, progress=False)
    killed = make(0)
    killed.advance(2, progress=False)
    killed.save(tmp_path / "run.safetensors")
    killed.advance(3, progress=False)  # lost
    again = make(7)
    again.resume(tmp_path / "run.safetensors")
    assert all(loss.universal for loss in again.losses)
    again.advance(4, progress=False)
    assert same(again.state(), whole.state())
    for ours, theirs in zip(again.models, whole.models, strict=True):
        assert same(dict(ours.state_dict()), dict(theirs.state_dict()))
    other = mg.StackedTraining(
        whole.models, [fresh("f1"), fresh("mcc")], X, Y, start="scratch", batch=40
    )
    with pytest.raises(ValueError, match="was written by a training run with universal=True"):
        other.resume(tmp_path / "run.safetensors")
