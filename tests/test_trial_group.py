"""A group of trials: losses, learning rates, seeds, memories and checkpoints of many models."""

import math
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader

import metricgrad as mg
from metricgrad.surrogates.calls import mean_of_defined
from metricgrad.training.candidates import Candidate
from metricgrad.training.checkpoint import part_of
from metricgrad.training.data import Items, Loader
from metricgrad.training.split import SplitPlan, split_data
from metricgrad.training.stack import Stack
from metricgrad.training.trial_group import TrialGroup
from metricgrad.training.trials import PlannedTrial, TrialSettings
from tests.fitting import Squares, linear, made
from tests.searches import group_of


def recorded(group: TrialGroup, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What every step of the group is given: the values, and the share of the learning rate."""
    steps: list[dict[str, Any]] = []
    descend = group._stack.descend

    def watching(values: Tensor, share: float) -> None:
        steps.append({"values": values.detach().clone(), "share": share, "epoch": group._epoch})
        descend(values, share)

    monkeypatch.setattr(group._stack, "descend", watching)
    return steps


def test_a_slope_is_applied_once() -> None:
    """The loss of a candidate, on scores times its scale, is UniLoss with that slope."""
    scores = torch.randn(40, generator=torch.Generator().manual_seed(0))
    target = (torch.arange(40) % 3 == 0).long()
    for slope in (0.5, 1.0, 8.0):
        candidate = Candidate("uniloss", {"slope": slope})
        group = group_of((candidate, 0.1), (Candidate("uniloss", {"slope": 3.0}), 0.1))
        both = scores.repeat(2, 1).requires_grad_()
        own = Items(scores, target).take(torch.arange(40).repeat(2, 1))
        group._values(both, own).sum().backward()
        assert both.grad is not None
        for row, expected in enumerate((slope, 3.0)):
            plain = scores.clone().requires_grad_()
            mg.UniLoss("f1", slope=expected)(plain, target).backward()
            assert plain.grad is not None
            torch.testing.assert_close(both.grad[row], plain.grad)


def test_a_metric_with_a_threshold_of_its_own_keeps_its_slope() -> None:
    metric = mg.metric("f1", threshold=0.3)
    candidate = Candidate("uniloss", {"slope": 8.0})
    assert candidate.scale(metric) == 1.0
    assert "slope=8.0" in repr(candidate.loss(metric, 0))
    assert "slope=1.0" in repr(candidate.loss(mg.metric("f1"), 0))


def test_the_learning_rate_falls_by_half_a_cosine(monkeypatch: pytest.MonkeyPatch) -> None:
    group = group_of((Candidate("cross_entropy"), 0.1), epochs=2)
    steps = recorded(group, monkeypatch)
    group.run()
    assert len(steps) == 50  # an epoch has 25 batches at least
    shares = [0.5 + 0.5 * math.cos(math.pi * number / 50) for number in range(50)]
    assert [step["share"] for step in steps] == pytest.approx(shares)


def test_the_learning_rate_of_one_epoch_falls_too(monkeypatch: pytest.MonkeyPatch) -> None:
    group = group_of((Candidate("cross_entropy"), 0.1), epochs=1)
    steps = recorded(group, monkeypatch)
    group.run()
    shares = [0.5 + 0.5 * math.cos(math.pi * number / 25) for number in range(25)]
    assert [step["share"] for step in steps] == pytest.approx(shares)


def test_a_warm_start_begins_the_learning_rate_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    group = group_of((Candidate("uniloss", {"slope": 2.0}, warm_start=True), 0.1), epochs=5)
    steps = recorded(group, monkeypatch)
    (trial,) = group.run()
    warm = [0.5 + 0.5 * math.cos(math.pi * number / 50) for number in range(50)]  # two of five
    then = [0.5 + 0.5 * math.cos(math.pi * number / 75) for number in range(75)]
    assert [step["share"] for step in steps] == pytest.approx(warm + then)
    assert trial.epoch > 2
    assert trial.curve[:2, 1].isfinite().all()


def test_a_warm_start_is_on_the_ordinary_loss() -> None:
    scores = torch.randn(2, 30, generator=torch.Generator().manual_seed(0))
    target = (torch.arange(30) % 3 == 0).long().repeat(2, 1)
    group = group_of((Candidate("uniloss", {"slope": 2.0}, warm_start=True), 0.1), epochs=4)
    batch = Items(scores, target).take(torch.arange(2))
    usual = mg.baselines.CrossEntropy().per_set(scores, target)
    group._epoch = 1
    torch.testing.assert_close(group._values(scores, batch), usual)
    group._epoch = 2
    assert not torch.allclose(group._values(scores, batch), usual)


def test_models_are_trained_in_train_mode_and_scored_in_eval_mode(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group = group_of((Candidate("focal"), 0.1))
    modes: list[bool] = []
    forward = group._module.forward

    def watching(x: Tensor) -> Tensor:
        modes.append(group._module.training)
        return forward(x)

    monkeypatch.setattr(group._module, "forward", watching)
    group.run(only=1)
    assert modes == [False] + [True] * 25 + [False]


def test_a_loader_that_shuffles_by_the_seed_alone_may_validate() -> None:
    """It gives the same order each time; one with its own generator does not."""
    plan = SplitPlan(mg.metric("f1"), True, 50, False, None, 0.2)
    trials = [PlannedTrial(Candidate("focal"), 0.1)]

    def group_with(generator: torch.Generator | None) -> TrialGroup:
        valid = DataLoader(Squares(made(60)), 16, shuffle=True, generator=generator)
        split = split_data(Items(*made(100)), Loader(valid), plan, 0)
        return TrialGroup(linear(), trials, split, 1, TrialSettings())

    group = group_with(None)
    (trial,) = group.run()
    assert trial.scores.shape == (1, 60)
    assert trial.value == group._validation.measure(trial.scores).value
    with pytest.raises(ValueError, match="another order, each time; do not shuffle it"):
        group_with(torch.Generator()).run()


def test_every_model_has_its_own_rate_and_fold() -> None:
    one, other = Candidate("cross_entropy"), Candidate("cross_entropy")
    group = group_of((one, 0.1), (other, 0.01), folds=3)
    assert isinstance(group._stack, Stack)
    rates = torch.as_tensor(group._stack.rate).squeeze(-1)
    assert rates.tolist() == pytest.approx([0.1, 0.1, 0.1, 0.01, 0.01, 0.01])
    together = group.run()
    alone = group_of((other, 0.01), folds=3).run()
    assert [trial.rate for trial in together] == [0.1, 0.01]
    assert together[1].value == alone[0].value
    torch.testing.assert_close(together[1].scores, alone[0].scores, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(together[1].curve, alone[0].curve, rtol=1e-5, atol=1e-6)


def test_only_one_epoch_is_validated_if_it_is_known() -> None:
    whole, early = group_of((Candidate("focal"), 0.1)), group_of((Candidate("focal"), 0.1))
    (trial,) = early.run(only=3)
    assert trial.epoch == 3
    assert trial.epochs == 4
    assert trial.curve[:, 1].isfinite().tolist() == [False, False, True, False]
    torch.testing.assert_close(trial.curve[2], whole.run()[0].curve[2])
    # Patience does not end it.
    assert group_of((Candidate("focal"), 0.1), patience=1).run(only=3)[0].epoch == 3


def test_a_training_without_validation_is_the_same_training() -> None:
    (trial,) = group_of((Candidate("focal"), 0.1)).run(only=3)
    state, scores = group_of((Candidate("focal"), 0.1)).train_only(3)
    torch.testing.assert_close(scores, trial.scores)
    for name, value in trial.state.items():
        torch.testing.assert_close(state[name], value)


def test_epochs_and_seeds_have_their_own_dropout(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []
    groups = [group_of((Candidate("focal"), 0.1), seed=seed) for seed in (0, 1)]
    monkeypatch.setattr(torch, "manual_seed", seeds.append)
    for group in groups:
        for epoch in range(3):
            group._epoch = epoch
            group._train()
    assert seeds == [0, 1, 2, 7919, 7920, 7921]


def test_the_mean_loss_of_a_trial_is_over_batches_and_folds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group = group_of((Candidate("focal"), 0.1), (Candidate("focal"), 0.01), folds=2)
    steps = recorded(group, monkeypatch)
    losses = group._train()
    values = torch.stack([step["values"] for step in steps]).double().mean(0)
    torch.testing.assert_close(losses, torch.stack([values[:2].mean(), values[2:].mean()]))


def test_decay_and_clip_arrive() -> None:
    group = group_of((Candidate("focal"), 0.1), decay=0.25, clip=0.5)
    assert isinstance(group._stack, Stack)
    assert group._stack.decay == 0.25
    assert group._stack._clip == 0.5
    assert group_of((Candidate("focal"), 0.1), clip=None)._stack._clip is None


def test_every_model_has_a_memory_of_its_own() -> None:
    group = group_of((Candidate("smooth_ap"), 0.1), folds=2, memory=70)
    group.run(only=1)
    memories = [loss.state_dict() for loss in group._losses]
    assert len(memories) == 2
    assert any(
        not torch.equal(one, other)
        for one, other in zip(memories[0].values(), memories[1].values(), strict=True)
    )
    assert max(each.shape[0] for each in memories[0].values() if each.dim()) == 70


def test_progress_is_told_after_every_epoch() -> None:
    told: list[tuple[int, str]] = []
    group = group_of((Candidate("focal"), 0.1), (Candidate("focal"), 0.01), patience=1, epochs=40)
    trials = group.run(tell=lambda *each: told.append(each))
    done = [advance for advance, _ in told]
    assert sum(done) == 40
    assert done[:-1] == [1] * (len(done) - 1)
    assert done[-1] > 0
    best = max(trial.value or 0.0 for trial in trials)
    assert told[-2][1] == f"focal: f1 {best:.4f}"
    assert told[-1][1] == ""


def test_a_trial_that_diverges_has_no_value() -> None:
    group = group_of((Candidate("focal"), 0.1), (Candidate("focal"), math.inf), epochs=2)
    fine, diverged = group.run()
    assert fine.value is not None
    assert diverged.value is None
    assert diverged.threshold is None
    assert diverged.epoch == 0


def test_an_epoch_with_any_score_that_is_not_finite_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group = group_of((Candidate("focal"), 0.1), (Candidate("focal"), 0.01), folds=2, epochs=2)
    scores = group._scores()
    broken = scores.clone()
    broken[1, 0, 0] = torch.nan
    monkeypatch.setattr(group, "_scores", lambda: broken if group._epoch == 2 else scores)
    fine, partly = group.run()
    assert fine.curve[:, 1].isfinite().tolist() == [True, True]
    assert partly.curve[:, 1].isfinite().tolist() == [True, False]
    assert partly.epoch == 1
    assert partly.value is not None


def test_a_group_continues_from_a_checkpoint(tmp_path: Path) -> None:
    def fresh() -> TrialGroup:
        planned = [(Candidate("smooth_ap"), 0.1), (Candidate("smooth_ap"), 0.01)]
        return group_of(*planned, memory=30, folds=2)

    class Killed(Exception):  # noqa: N818 (it is not an error of ours)
        pass

    def kill(advance: int, note: str) -> None:
        raise Killed

    whole = fresh().run()
    path = tmp_path / "trials.safetensors"
    for _ in range(2):  # after the first epoch, and after the second
        with pytest.raises(Killed):
            fresh().run(path, kill)
    for one, other in zip(whole, fresh().run(path), strict=True):
        assert (one.value, one.epoch) == (other.value, other.epoch)
        assert torch.equal(one.scores, other.scores)
        assert torch.equal(one.curve, other.curve)
        assert one.threshold is not None
        assert other.threshold is not None
        assert torch.equal(one.threshold, other.threshold)


def test_a_checkpoint_names_what_a_run_depends_on() -> None:
    group = group_of(
        (Candidate("uniloss", {"slope": 2.0}), 0.1), folds=3, seed=4, must_match={"data": "abc"}
    )
    assert group._must_match() == {
        "entrants": [["uniloss (slope 2)", 0.1]],
        "epochs": 4,
        "metric": "f1",
        "batches": 25,
        "validation": [67, 67, 66],
        "seed": 4,
        "decay": 0.0,
        "clip": 1.0,
        "memory": 0,
        "patience": None,
        "optimizer": None,
        "schedule": None,
        "data": "abc",
    }
    group.run(only=1)
    names = {"crew.vector", "crew.mean", "best.scores", "best.threshold"}
    assert names | {"best.value", "best.recent", "best.epoch", "curve", "epoch"} <= set(
        group._state()
    )
    assert "best.vector" not in group._state()  # the models of folds are not needed again
    alone = group_of((Candidate("focal"), 0.1))
    alone.run(only=1)
    assert "best.vector" in alone._state()


def test_a_checkpoint_has_only_losses_that_change() -> None:
    learned = mg.ReLoss.pretrained("f1")
    for memory, kept in ((0, False), (30, True)):
        group = group_of((Candidate("reloss", given=learned), 0.1), memory=memory)
        group.run(only=1)
        assert any(name.startswith("loss.0.") for name in group._state()) == kept


def test_a_checkpoint_names_an_optimizer_by_what_was_made() -> None:
    class Factory:
        """Cannot be copied, as one that writes to an open file."""

        def __init__(self) -> None:
            self.lock = threading.Lock()

        def __call__(self, parameters: Any, rate: Any) -> Any:
            return torch.optim.SGD(parameters, rate, momentum=0.5)

    group = group_of((Candidate("focal"), 0.1), optimizer=Factory())
    found = group._must_match()
    assert found["optimizer"].startswith("SGD {")
    assert "'momentum': 0.5" in found["optimizer"]
    assert found["schedule"] is None


def test_the_mean_of_sets_leaves_out_those_without_a_value() -> None:
    values = torch.tensor([[1.0, 2.0, 9.0], [3.0, 9.0, 9.0], [9.0, 9.0, 9.0]])
    defined = torch.tensor([[True, True, False], [True, False, False], [False, False, False]])
    assert mean_of_defined(values, defined).tolist() == [1.5, 3.0, 0.0]
    assert mean_of_defined(values[0], defined[:, 0]).tolist() == [1.0, 2.0, 0.0]


def test_a_part_of_a_state_has_names_of_its_own() -> None:
    state = {"loss.1.w": torch.ones(1), "loss.10.w": torch.zeros(1), "crew.loss.1.": torch.ones(2)}
    assert set(part_of(state, "loss.1.")) == {"w"}
