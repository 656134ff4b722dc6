"""mg.fit with a device, an optimizer and a schedule of the user's own."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

import metricgrad as mg
from metricgrad.training import data, optimizers
from metricgrad.training.candidates import Candidate
from metricgrad.training.optimizers import Separate
from metricgrad.training.stack import Stack
from tests.fitting import linear, made, quick, same, weights
from tests.searches import group_of
from tests.test_fit_resumes import stop_after


def sgd(parameters: Any, rate: float) -> torch.optim.SGD:
    return torch.optim.SGD(parameters, rate, momentum=0.9)


def cosine(optimizer: Any, steps: int) -> lr_scheduler.CosineAnnealingLR:
    return lr_scheduler.CosineAnnealingLR(optimizer, steps)


def stairs(optimizer: Any, steps: int) -> lr_scheduler.MultiStepLR:
    return lr_scheduler.MultiStepLR(optimizer, [steps // 3, steps // 2], 0.1)


def cycle(optimizer: Any, steps: int) -> lr_scheduler.OneCycleLR:
    return lr_scheduler.OneCycleLR(optimizer, 0.2, steps)


def normed() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Dropout(0.2), nn.Linear(4, 1))


def test_without_factories_the_models_are_stacked() -> None:
    plain = group_of((Candidate("cross_entropy"), 0.1))
    assert isinstance(plain._stack, Stack)
    factories: list[dict[str, Any]] = [{"optimizer": sgd}, {"schedule": cosine}]
    for own in factories:
        assert isinstance(group_of((Candidate("cross_entropy"), 0.1), **own)._stack, Separate)


@pytest.mark.parametrize(
    ("method", "given"), [("cross_entropy", None), ("uniloss", {"slope": 5.0})]
)
def test_adam_of_ones_own_gives_what_the_stack_gives(method: str, given: Any) -> None:
    """The same batches, rates, clipping and half cosine; only rounding differs."""

    def adam(parameters: Any, rate: float) -> torch.optim.Adam:
        return torch.optim.Adam(parameters, rate)

    options = {"method": method, "folds": 2, "options": given}
    whole = quick(linear(), made(), **options)
    own = quick(linear(), made(), optimizer=adam, **options)
    for one, other in zip(weights(whole), weights(own), strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-3)
    decayed = quick(linear(), made(), decay=0.3, **options)
    scheduled = quick(linear(), made(), decay=0.3, schedule=half_cosine, **options)
    for one, other in zip(weights(decayed), weights(scheduled), strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-3)


def half_cosine(optimizer: Any, steps: int) -> lr_scheduler.LambdaLR:
    """What mg.fit does without a schedule."""
    return lr_scheduler.LambdaLR(
        optimizer, lambda step: 0.5 + 0.5 * float(torch.tensor(torch.pi * step / steps).cos())
    )


def test_one_model_is_trained_as_a_plain_loop_trains_it() -> None:
    """Momentum, clipping and a schedule of 3 epochs, against a loop that is written out."""
    group = group_of(
        (Candidate("cross_entropy"), 0.1), epochs=3, optimizer=sgd, schedule=stairs, clip=0.05
    )
    found, _ = group.train_only(3)
    model = linear()
    optimizer = sgd(model.parameters(), 0.1)
    steps = group.split.batches.steps
    schedule = stairs(optimizer, 3 * steps)
    loss = mg.baselines.CrossEntropy()
    for epoch in range(3):
        for batch in group.split.batches.epoch(epoch, 1):
            optimizer.zero_grad()
            loss(model(batch.x[0]).squeeze(-1), batch.y[0]).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.05)
            optimizer.step()
            schedule.step()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(found[name], value)


def test_a_schedule_starts_anew_after_a_warm_start() -> None:
    made_for: list[int] = []

    def schedule(optimizer: Any, steps: int) -> lr_scheduler.LRScheduler:
        assert optimizer.param_groups[0]["lr"] == 0.1
        made_for.append(steps)
        return cosine(optimizer, steps)

    group = group_of(
        (Candidate("uniloss", {}, warm_start=True), 0.1), epochs=5, optimizer=sgd, schedule=schedule
    )
    group.run()
    steps = group.split.batches.steps
    assert made_for == [2 * steps, 2 * steps, 3 * steps]  # looked at, warm start, metric


@pytest.mark.parametrize(
    ("method", "schedule"),
    [
        ("cross_entropy", stairs),
        ("smooth_ap", None),
        ("smooth_ap", cosine),
        ("smooth_ap", stairs),
        ("smooth_ap", cycle),
    ],
)
def test_a_training_that_was_killed_goes_on_exactly(
    method: str, schedule: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Smooth AP also has a trial with a warm start, whose schedule begins anew half way."""
    monkeypatch.setattr(data, "_PASSES", (8, 8))  # batches of an epoch
    options = {"method": method, "folds": 2, "epochs": 8, "optimizer": sgd, "schedule": schedule}
    whole = quick(normed(), made(), **options)
    for looks in (2, 6):
        folder = tmp_path / str(looks)
        with monkeypatch.context() as patch:
            stop_after(patch, looks, RuntimeError)
            with pytest.raises(RuntimeError):
                quick(normed(), made(), folder=folder, **options)
        resumed = quick(normed(), made(), folder=folder, **options)
        assert same(whole, resumed)
        assert [torch.nan_to_num(each.curve).tolist() for each in whole.trials] == [
            torch.nan_to_num(each.curve).tolist() for each in resumed.trials
        ]


def test_another_optimizer_does_not_continue_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"method": "cross_entropy", "folds": 1, "folder": tmp_path}
    with monkeypatch.context() as patch:
        stop_after(patch, 2, RuntimeError)
        with pytest.raises(RuntimeError):
            quick(linear(), made(), optimizer=sgd, **options)
    for other in (torch.optim.SGD, None):
        with pytest.raises(ValueError, match=r"with optimizer=.SGD .*'momentum': 0\.9"):
            quick(linear(), made(), optimizer=other, **options)


def test_state_is_stored_with_its_types() -> None:
    tensors: list[torch.Tensor] = []
    state = {0: (0.5, None), "a": [True, {3: torch.tensor([1.0])}], "b": "text"}
    encoded = optimizers._encoded(state, tensors)
    named = {str(number): each for number, each in enumerate(tensors)}
    assert optimizers._decoded(encoded, named) == state
    with pytest.raises(TypeError, match=r"has a function\. Leave out folder"):
        optimizers._encoded({"f": lambda: None}, [])


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"device": "meta"}, ValueError, "device 'meta' holds no numbers to train; pass 'cpu'"),
        ({"device": "moon"}, ValueError, "device 'moon' cannot be used: .* Pass 'cpu'"),
        ({"optimizer": lambda p, r: 3}, TypeError, "torch.optim.Optimizer, .* it returned int"),
        ({"schedule": lambda o, s: 3}, TypeError, "-> LRScheduler .* it returned int"),
        (
            {"schedule": lambda o, s: lr_scheduler.ReduceLROnPlateau(o)},
            TypeError,
            "needs no value to step, .* it returned ReduceLROnPlateau",
        ),
        (
            {"optimizer": sgd, "decay": 0.1},
            ValueError,
            "has its own weight decay; .* Got decay=0.1",
        ),
    ],
)
def test_what_cannot_be_used_is_refused(
    options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        quick(linear(), made(), method="cross_entropy", folds=1, **options)


def test_a_model_that_holds_no_numbers_is_refused() -> None:
    with pytest.raises(ValueError, match="device 'meta' holds no numbers"):
        quick(nn.Linear(5, 1, device="meta"), made(), method="cross_entropy", folds=1)


@pytest.mark.parametrize("device", ["cuda", "cpu", torch.device("cpu")])
def test_training_on_a_device(device: Any) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        with pytest.raises(ValueError, match=r"device 'cuda' cannot be used: .* Pass 'cpu'"):
            quick(linear(), made(), device=device)
        return
    options = {"method": "metric_loss", "folds": 1}
    found = quick(linear(), made(), device=device, **options)
    assert next(found.model.parameters()).device.type == torch.device(device).type
    assert found.scores(made()[0]).device.type == "cpu"
    if torch.device(device).type == "cpu":
        assert same(found, quick(linear(), made(), **options))
