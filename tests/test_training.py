"""Training a model and its learned loss together: Algorithm 1, with checkpoints and a guard."""

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import metricgrad as mg
from metricgrad.training import TrainingError
from metricgrad.training.algorithm import Alternation, Guard
from metricgrad.training.drawing import Batches
from tests.trainings import (
    QUICK,
    TASKS,
    X,
    Y,
    accuracy,
    explode,
    failing,
    fresh,
    joint,
    learned,
    network,
    same,
    seeded,
)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Batches(Y[:0], 5, True), "there is no training data"),
        (lambda: Batches(Y, 0, True), "batch must be 1 or more; got 0"),
        (lambda: Batches(torch.arange(9), 5, True), "a batch of 5 cannot hold each of 9 classes"),
        (
            lambda: Batches(X, 5, True),
            r"one class index per item; got torch.float32 of shape \[600, 6\]",
        ),
        (lambda: joint(start="anew"), "start must be 'universal' or 'scratch'; got 'anew'"),
        (
            lambda: joint(refine=False),
            "from scratch and is not refined never learns; pass refine=True",
        ),
        (lambda: joint(loss=learned()), "has learned from made-up sets already; pass a fresh one"),
        (lambda: joint(loss=mg.UniLoss("f1")), "loss must be a BilevelLoss, .* got UniLoss"),
        (
            lambda: joint(data=(X, Y[:5])),
            "x and y must have the same number of items; got 600 and 5",
        ),
        (lambda: joint(clip=0.0), "clip must be above 0; got 0.0"),
        (lambda: joint(model_rate=-1.0), "model_rate must be above 0; got -1.0"),
        (lambda: joint(loss_steps=0), "loss_steps must be 1 or more; got 0"),
        (lambda: joint(decay=0), "decay must be 1 or more; got 0"),
        (
            lambda: joint(balanced=True, stratified=False),
            "balanced=True gives every class an equal share .* with stratified=False",
        ),
        (lambda: joint(head_start=-1), "head_start must be 0 or more; got -1"),
        (
            lambda: joint(start="universal", refine=False, head_start=2),
            "not refined cannot learn before the model; got head_start=2 and refine=False",
        ),
        (lambda: joint(balanced=True, data=(X, X[:, 0])), "need one class index per item"),
        (lambda: joint(nn.Flatten(0)), "there is nothing to train"),
        (lambda: joint().advance(0), "iterations must be 1 or more; got 0"),
    ],
)
def test_what_cannot_begin_is_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        make()


def plainly(run: mg.JointTraining, drawn: list[Tensor]) -> None:
    """Algorithm 1 as the paper writes it, batch by batch, on a copy of a run's model and loss."""
    model, loss, plan = run.model, run.loss, run._settings
    adams = [
        torch.optim.Adam(model.parameters(), plan.model_rate),
        torch.optim.Adam(loss.parameters(), plan.loss_rate),
    ]
    for index in drawn:
        for count, batch in enumerate(index):
            refined = count >= plan.model_steps
            scores = model.train(not refined)(run.x[batch])
            model.zero_grad()
            loss.zero_grad()
            (loss.misfit if refined else loss)(scores, run.y[batch]).backward()
            nn.utils.clip_grad_norm_(
                (loss if refined else model).parameters(), plan.clip or torch.inf
            )
            adams[refined].step()


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(("dtype", "clip"), [(torch.float32, 0.1), (torch.float64, None)])
def test_the_fast_algorithm_is_the_plain_one(
    task: str, dtype: torch.dtype, clip: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dropout included; batch normalisation in float64, where rounding does not drive a bias."""
    metric, y = TASKS[task]
    options: dict[str, Any] = {"outputs": y[0].numel() if task != "classes" else 3, "dropout": 0.2}
    models = [network(norm=dtype == torch.float64, **options).to(dtype) for _ in range(2)]
    runs = [
        joint(model, fresh(metric).to(dtype), data=(X.to(dtype), y), clip=clip) for model in models
    ]
    drawn: list[Tensor] = []
    draw = runs[0]._draw
    monkeypatch.setattr(runs[0], "_draw", lambda number: drawn.append(draw(number)) or drawn[-1])
    found = runs[0].advance(8, progress=False)
    with torch.random.fork_rng(devices=[]):
        torch.set_rng_state(runs[1]._dropout)
        plainly(runs[1], drawn)
    assert [len(index) for index in drawn] == [13] * 8
    assert found.iteration == 8
    for one, other in ((runs[0].model, runs[1].model), (runs[0].loss, runs[1].loss)):
        torch.testing.assert_close(
            dict(one.state_dict()), dict(other.state_dict()), rtol=0, atol=1e-5
        )


@pytest.mark.parametrize(
    ("start", "refine"), [("universal", False), ("universal", True), ("scratch", True)]
)
def test_the_loss_is_taught_and_refined_as_asked(start: str, refine: bool) -> None:
    """SL-U, SL-R and SL-S; a loss that has learned is not taught again."""
    for loss in [fresh()] if start == "scratch" else [fresh(), learned()]:
        model, universal = network(), {**QUICK, "generator": seeded()}
        found = joint(model, loss, start=start, refine=refine, universal=universal).advance(
            3, progress=False
        )
        assert loss.universal == (start == "universal")
        assert same(dict(loss.state_dict()), dict(learned().state_dict())) == (not refine)
        assert not same(dict(model.state_dict()), dict(network().state_dict()))
        assert [part != part for part in found] == [False, False, not refine, not refine]  # NaN
        assert all(each.requires_grad and each.grad is None for each in loss.parameters())


@pytest.mark.parametrize(("stop", "end"), [(0, 4), (7, 20), (57, 104)])
@pytest.mark.parametrize("start", ["universal", "scratch"])
def test_a_resumed_training_is_an_uninterrupted_one(
    stop: int, end: int, start: str, tmp_path: Path
) -> None:
    def make(seed: int) -> mg.JointTraining:
        model = network(seed, dropout=0.3)
        return joint(
            model, fresh(seed=seed), start=start, universal=QUICK, decay=200, generator=seeded(seed)
        )

    whole, first, second = make(0), make(0), make(1)
    whole.advance(end, progress=False)
    if stop:
        first.advance(stop, progress=False)
    first.save(tmp_path / "run.safetensors")
    first.advance(1, progress=False)
    second.resume(tmp_path / "run.safetensors")
    assert second.iteration == stop
    second.advance(end - stop, progress=False)
    assert same(second.state(), whole.state())


def test_other_checkpoints_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    joint().save(path)
    (tmp_path / "text").write_text("no tensors")
    save_file({"a": torch.zeros(1)}, tmp_path / "tensors")
    deeper = nn.Sequential(*network(norm=False), nn.Linear(1, 1))
    frozen = network(norm=False)
    frozen[0].requires_grad_(False)
    joint(deeper).save(tmp_path / "deeper")
    for run, name, message in [
        (joint(), "text", "is not a whole safetensors file"),
        (joint(), "tensors", "has tensors but is not a training checkpoint"),
        (
            joint(batch=50),
            path,
            "was written by a training run with batch=40; this run has batch=50",
        ),
        (joint(decay=9), path, "with decay=None; this run has decay=9"),
        (joint(loss=fresh("mcc")), path, "was written by a training run with loss="),
        (
            joint(deeper),
            path,
            r"belongs to another model: model.3.bias has shape \[1\] here, none there",
        ),
        (
            joint(),
            "deeper",
            r"belongs to another model: model.3.bias has shape none here, \[1\] there",
        ),
        (
            joint(frozen),
            path,
            r"belongs to another model: model_adam.mean has shape \[9\] here, \[65\] there",
        ),
    ]:
        before = run.state()
        with pytest.raises(ValueError, match=message):
            run.resume(tmp_path / name)
        assert same(run.state(), before)
    with pytest.raises(FileNotFoundError, match=r"there is no training checkpoint .*nowhere"):
        joint().resume(tmp_path / "nowhere")


def test_the_surroundings_are_left_as_they_were() -> None:
    model = network(dropout=0.2)
    for training in (True, False):
        model.train(training)[1].eval()
        run, modes, state = (
            joint(model),
            [each.training for each in model.modules()],
            torch.get_rng_state(),
        )
        run.advance(2, progress=False)
        assert [each.training for each in model.modules()] == modes
        assert torch.equal(state, torch.get_rng_state())


def test_batches_without_a_value_are_left_out_with_one_warning() -> None:
    calls = itertools.count()
    metric = mg.from_function(
        lambda s, y: torch.nan if next(calls) % 3 == 0 else accuracy(s, y), best=1.0, worst=0.0
    )
    run = joint(loss=fresh(metric))
    with pytest.warns(
        UserWarning, match=r"function gave NaN on 4 of 10 batches of 40 items"
    ) as caught:
        found = run.advance(5, progress=False)
    assert len(caught) == 1
    assert 0 < found.truth < 1
    assert all(each.isfinite().all() for each in run.loss.parameters())


@pytest.mark.parametrize(
    ("with_what", "message"),
    [
        (lambda: torch.nan, "function gave NaN on all 10 batches of a round, at iteration 57;"),
        (explode, r"function raised KeyError on set 1 of 10 .* 'no such thing', at iteration 57;"),
        (
            lambda: None,
            "function on set 1 of 10 .* must give one number; got NoneType None, at iteration 57;",
        ),
    ],
)
def test_a_training_that_stops_is_at_its_last_good_state(
    with_what: Callable[[], Any], message: str
) -> None:
    metric, faults = failing(560, with_what)
    run, healthy = (joint(network(dropout=0.2), fresh(each)) for each in (metric, accuracy))
    with pytest.raises(TrainingError, match=f"{message} model and loss are back at iteration 50"):
        run.advance(100, progress=False)
    faults.clear()
    healthy.advance(50, progress=False)
    assert same(run.state(), healthy.state())
    assert run.advance(10, progress=False) == healthy.advance(10, progress=False)


def test_a_constant_metric_is_told() -> None:
    run = joint(loss=fresh(mg.from_function(lambda s, y: 0.25, best=1.0, worst=0.0)))
    run.advance(99, progress=False)
    with pytest.warns(
        UserWarning,
        match=r"function, as a loss, was 0.75 on all of the first 1000 batches of 40 items",
    ):
        run.advance(1, progress=False)
    run.advance(1, progress=False)


class Rooted(nn.Linear):
    """Finite scores whose gradient is not: the root of 0."""

    def forward(self, x: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return (0 * super().forward(x)).abs().sqrt()


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (network(), {"model_rate": 1e30, "clip": None}, "scores has .* NaN or infinite values"),
        (
            network(),
            {"loss_rate": 1e30, "clip": None, "model_steps": 1},
            "the surrogate's (misfit|value) .*is not finite",
        ),
        (
            Rooted(6, 1),
            {"start": "universal", "refine": False, "model_steps": 1},
            "a parameter of the model or .* is not finite",
        ),
    ],
)
def test_what_diverges_is_stopped_and_mended(
    model: nn.Module, options: dict[str, Any], message: str
) -> None:
    run = joint(model, learned() if "start" in options else fresh(), **options)
    before = run.state()
    with pytest.raises(
        TrainingError, match=f"{message}.* back at iteration 0. If they diverged, pass lower rates"
    ):
        run.advance(1 if "start" in options else 40, progress=False)
    assert same(run.state(), before)
    assert all(
        each.requires_grad and each.grad is None
        for each in (*model.parameters(), *run.loss.parameters())
    )


def test_a_misfit_far_off_is_borne_for_a_while() -> None:
    guard, far = Guard("f1", 40), torch.full((10,), 1e3)
    for _ in range(49):
        guard.check_misfit(far)
    again = Guard("f1", 40)
    again.restore(guard.state())
    with pytest.raises(
        TrainingError, match="misfit has been above 100 for 50 rounds and is now 1e"
    ):
        again.check_misfit(far)
    guard.check_misfit(far / 1e3)
    guard.check_misfit(far)


def test_rates_fall_along_a_cosine() -> None:
    shares = [Alternation(decay=10).share(iteration) for iteration in (0, 5, 10, 20)]
    assert shares == pytest.approx([1.0, 0.5, 0.0, 0.0])
    assert Alternation().share(10**6) == 1.0
    run = joint(decay=3)
    run.advance(3, progress=False)
    before = run.model.get_parameter("0.weight").clone()
    run.advance(2, progress=False)
    assert torch.equal(run.model.get_parameter("0.weight"), before)


def test_a_model_learns() -> None:
    auc, model = mg.metric("auc"), network(dropout=0.1)
    before = auc(model.eval()(X).squeeze(-1), Y)
    run = joint(
        model,
        fresh("auc"),
        start="universal",
        universal={"steps": 300, "pool": 2048},
        model_rate=1e-2,
    )
    first, last = run.advance(10, progress=False), run.advance(150, progress=False)
    after = auc(model.eval()(X).squeeze(-1), Y)
    assert after > max(0.9, before + 0.1)
    assert last.truth < first.truth
    assert last.misfit < 0.1


def test_the_papers_settings() -> None:
    run = mg.JointTraining.as_published(
        network(), fresh(), X, Y, universal={"steps": 7}, model_steps=2
    )
    plan = Alternation(
        model_steps=2,
        loss_steps=10,
        model_rate=1e-5,
        loss_rate=1e-5,
        clip=1e-5,
        batch=100,
        decay=None,
        balanced=True,
    )
    assert run._settings == plan
    assert run._universal == {"size": 100, "source": "paper", "steps": 7}
    assert all(Y[batch].sum() == 50 for batch in run._draw(5))
    scores = torch.tensor([0.0, -1.0])
    assert run.loss.metric(scores, torch.tensor([1, 0])) == 1  # as s >= 0
    assert mg.metric("f1")(scores, torch.tensor([1, 0])) == 0
    kept = mg.JointTraining.as_published(network(), fresh(), X, Y, balanced=False, clip=2.0)
    assert (kept._settings.balanced, kept._settings.clip) == (False, 2.0)
    with pytest.raises(TypeError, match="loss must be a BilevelLoss"):
        mg.JointTraining.as_published(network(), mg.UniLoss("f1"), X, Y)  # pyright: ignore


def test_only_the_loss_learns_before_the_model() -> None:
    """The model's batch norms learn, too, as its scores are what the loss learns from."""
    run = joint(network(), head_start=3)
    weights = network().state_dict()
    before = dict(fresh().state_dict())
    found = run.advance(3, progress=False)
    assert not same(dict(run.loss.state_dict()), before)
    assert all(part == part for part in found)  # no NaN
    for name, each in run.model.state_dict().items():
        assert torch.equal(each, weights[name]) == ("running" not in name and "num" not in name)
    run.advance(1, progress=False)
    assert not torch.equal(run.model.state_dict()["0.weight"], weights["0.weight"])
    stacked = mg.StackedTraining(
        [network()], [fresh()], X, Y, start="scratch", batch=40, head_start=1
    )
    stacked.advance(1, progress=False)
    assert torch.equal(stacked.models[0].get_parameter("0.weight"), weights["0.weight"])
    assert not same(dict(stacked.losses[0].state_dict()), before)


@pytest.mark.parametrize("task", TASKS)
def test_a_universal_start_knows_the_number_of_classes(task: str) -> None:
    metric, target = TASKS[task]
    outputs = 1 if task == "binary" else 3
    run = joint(
        network(outputs=outputs),
        fresh(metric),
        data=(X, target),
        start="universal",
        universal=QUICK,
    )
    drawn: list[tuple[int, ...]] = []
    estimate = run.loss.estimate
    run.loss.estimate = lambda elements: (
        drawn.append(elements.items.shape[1:]),
        estimate(elements),
    )[1]
    run.advance(1, progress=False)
    assert drawn[0] == ((40, 2) if task == "binary" else (3, 40, 2))


def test_an_interrupted_training_is_at_its_last_good_state() -> None:
    def interrupt() -> float:
        raise KeyboardInterrupt

    metric, _ = failing(1000, interrupt)
    run = joint(loss=fresh(metric), loss_steps=10)
    with pytest.raises(KeyboardInterrupt):
        run.advance(200, progress=False)
    assert run.iteration == 100
    assert all(each.requires_grad and each.grad is None for each in run.model.parameters())
    healthy = joint(loss=fresh(accuracy), loss_steps=10)
    healthy.advance(100, progress=False)
    assert same(run.state(), healthy.state())


def test_parameters_of_two_dtypes_are_refused() -> None:
    with pytest.raises(
        ValueError,
        match=r"must have one dtype; got torch.float32 and torch.float64. Pass model.float\(\)",
    ):
        joint(nn.Sequential(nn.Linear(6, 2), nn.Linear(2, 1).double()))


def test_one_bad_parameter_is_enough_to_stop() -> None:
    guard = Guard("f1", 10)
    guard.check_parameters(torch.tensor([1.0, 2.0]))
    with pytest.raises(TrainingError, match="a parameter of the model or of the surrogate"):
        guard.check_parameters(torch.ones(3), torch.tensor([1.0, math.nan]))
