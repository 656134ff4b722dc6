"""Trials of models that are trained along with their losses."""

from typing import Any

import pytest
import torch

from metricgrad.training.candidates import Candidate
from metricgrad.training.group_kinds import JointTrialGroup
from metricgrad.training.trial_group import TrialGroup
from tests.fitting import made
from tests.searches import group_of


@pytest.fixture
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metricgrad.training.group_kinds.UNIVERSAL_STEPS", 3)


@pytest.mark.usefixtures("quickly")
def test_joint_trials_advance_as_far_as_others() -> None:
    """Three steps of the model an iteration: 25 batches are nine iterations."""
    planned = [(Candidate("bilevel"), 0.1), (Candidate("bilevel"), 0.01)]
    group = group_of(*planned, folds=2, epochs=2, cls=JointTrialGroup, seed=3, clip=0.5)
    assert isinstance(group, JointTrialGroup)
    plans = [run._settings for run in group._runs]
    assert [plan.model_rate for plan in plans] == [0.1, 0.1, 0.01, 0.01]
    assert {plan.model_steps for plan in plans} == {3}
    assert {plan.decay for plan in plans} == {18}
    assert {plan.clip for plan in plans} == {0.5}
    assert {plan.batch for plan in plans} == {50}
    folds = group.split.folds
    for row, run in enumerate(group._runs):
        assert len(run.y) == len(folds[row % 2].train)
        assert torch.equal(run.y, made(200)[1][folds[row % 2].train])
        assert run.loss.universal
    group._epoch = 1
    losses = group._train()
    assert {run.iteration for run in group._runs} == {9}
    assert losses.shape == (2,)
    vectors = group._stack.weights()["vector"]
    assert not torch.equal(vectors[0], vectors[1])


@pytest.mark.usefixtures("quickly")
def test_joint_trials_go_on_from_a_checkpoint(tmp_path: Any) -> None:
    def fresh() -> TrialGroup:
        return group_of((Candidate("bilevel"), 0.1), epochs=2, cls=JointTrialGroup, folds=2)

    (whole,) = fresh().run()
    path = tmp_path / "trials.safetensors"
    fresh().run(path, only=1)
    started = fresh()
    (resumed,) = started.run(path)
    assert resumed.curve[1].tolist() == whole.curve[1].tolist()
    assert started._epoch == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"memory": 8}, r"pass train=\(x, y\) in memory, and memory=0"),
        ({"decay": 0.5}, r"has no weight decay; pass decay=0\. Got 0\.5"),
        ({"balanced": True}, "pass balanced=False"),
        ({"optimizer": torch.optim.SGD}, "leave out optimizer and schedule"),
    ],
)
def test_joint_trials_refuse_what_would_have_no_effect(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        group_of((Candidate("bilevel"), 0.1), cls=JointTrialGroup, **options)
