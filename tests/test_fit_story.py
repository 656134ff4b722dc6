"""mg.fit, step by step: what each argument becomes, and the final training."""

import importlib
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import metricgrad as mg
from metricgrad.progress import progress
from metricgrad.training import finalists, trial_group
from metricgrad.training.arguments import example_of
from metricgrad.training.budget import TimePlan
from metricgrad.training.candidates import RATES, Candidate
from metricgrad.training.data import FoldBatches, Items, Loader
from metricgrad.training.decision import OtherSplits
from metricgrad.training.row_space import AsGiven
from metricgrad.training.search import Search
from metricgrad.training.split import SplitPlan, split_data
from metricgrad.training.trained import kept_score_sets
from metricgrad.training.trials import PlannedTrial, Trial, TrialSettings
from metricgrad.training.validation import ValidationItems
from tests.fitting import Squares, linear, made, quick

story = importlib.import_module("metricgrad.training.fit")

# ---------------------------------------------------------------------------
# what each argument becomes


class Reached(Exception):  # noqa: N818 (it is not an error)
    """The search was about to begin."""


def begun(
    monkeypatch: pytest.MonkeyPatch, data: Any = None, valid: Any = None, **options: Any
) -> tuple[Search, dict[str, list[Candidate]], list[float]]:
    """The search as `mg.fit` begins it, what is tried on both sides, and the learning rates."""
    sides: dict[str, list[Candidate]] = {}
    searches: list[Search] = []
    tried: list[list[float]] = []

    def halving(search: Search, name: str, candidates: list[Candidate], rates: list[float]) -> Any:
        sides[name] = candidates
        searches.append(search)
        tried.append(rates)
        return []

    def deciding(*_: Any, **__: Any) -> None:
        raise Reached

    monkeypatch.setattr(story, "successive_halving", halving)
    monkeypatch.setattr(story, "decide", deciding)
    usual = {"metric": "f1", "progress": False}
    with pytest.raises(Reached):
        mg.fit(linear(), made() if data is None else data, valid, **{**usual, **options})
    return searches[0], sides, tried[0]


def test_defaults_are_those_of_the_documentation(monkeypatch: pytest.MonkeyPatch) -> None:
    search, sides, rates = begun(monkeypatch)
    assert search.epochs == 20
    assert search.settings == TrialSettings(0, 0.0, 1.0, 0, None, None, None, {})
    assert search.folder is None
    assert search.deadline is None
    assert rates == list(RATES)
    assert len(search.split.folds) == 5
    assert isinstance(search.split.batches, FoldBatches)
    assert search.split.batches.size == 256
    assert search.split.validation.tune
    assert list(sides) == ["ordinary", "challengers"]
    assert [str(each) for each in sides["ordinary"]] == ["cross_entropy"]
    assert len(sides["challengers"]) == 8


def test_arguments_arrive(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    options = {"epochs": 7, "batch": 33, "rate": 0.2, "decay": 0.1, "clip": 0.5, "memory": 9,
               "folds": 3, "patience": 2, "seed": 11, "tune_threshold": False, "balanced": True,
               "folder": tmp_path / "new" / "folder"}  # fmt: skip
    search, _, rates = begun(monkeypatch, **options)
    assert search.epochs == 7
    assert rates == [0.2]
    settings = replace(search.settings, must_match={})
    assert settings == TrialSettings(11, 0.1, 0.5, 9, 2)
    assert len(search.split.folds) == 3
    assert isinstance(search.split.batches, FoldBatches)
    assert search.split.batches.size == 33
    assert search.split.batches.balanced
    assert search.split.batches._seed == 11
    assert not search.split.validation.tune
    assert search.folder == tmp_path / "new" / "folder"
    assert (tmp_path / "new" / "folder").is_dir()
    must_match = search.settings.must_match
    assert must_match["metric"]["name"] == "f1"
    assert must_match["balanced"] is True
    assert must_match["tune_threshold"] is False
    assert must_match["batch"] == 33
    assert must_match["method"] == "auto"
    assert len(must_match["data"]) == len(must_match["model"]) == 16
    expected = split_data(
        Items(*made()), None, SplitPlan(mg.metric("f1"), False, 33, True, 3, 0.2), 11
    )
    for one, other in zip(search.split.folds, expected.folds, strict=True):
        assert torch.equal(one.valid, other.valid)
    longer, _, _ = begun(monkeypatch, folds=1, share=0.4)
    assert len(longer.split.folds[0].valid) == 160
    assert begun(monkeypatch, clip=None)[0].settings.clip is None


def test_a_method_by_name_has_one_side(monkeypatch: pytest.MonkeyPatch) -> None:
    _, sides, _ = begun(monkeypatch, method="uniloss", options={"slope": 3.0})
    assert list(sides) == ["challengers"]
    assert {each.options["slope"] for each in sides["challengers"]} == {3.0}
    _, sides, _ = begun(monkeypatch, method="cross_entropy")
    assert list(sides) == ["ordinary"]
    _, sides, _ = begun(monkeypatch, method=mg.UniLoss("f1"))
    assert list(sides) == ["challengers"]


def test_a_memory_around_a_surrogate_is_the_fits_own(monkeypatch: pytest.MonkeyPatch) -> None:
    loss = mg.with_memory(mg.UniLoss("f1"), size=77)
    search, sides, _ = begun(monkeypatch, method=loss)
    assert search.settings.memory == 77
    assert sides["challengers"][0].given is loss.loss
    assert begun(monkeypatch, method=loss, memory=5)[0].settings.memory == 5


def test_a_budget_sets_epochs_and_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def planned(search: Search, sides: Any, rates: Any, budget: float) -> TimePlan:
        asked.append((search.epochs, len(sides), rates, budget))
        return TimePlan(6, 2.5)

    monkeypatch.setattr(story, "time_plan", planned)
    search, _, _ = begun(monkeypatch, budget=12.5, epochs=9)
    assert search.epochs == 6
    assert search.after == 2.5
    assert search.deadline == 12.5
    assert asked == [(9, 2, list(RATES), 12.5)]


def test_other_splits_are_made_only_for_auto_without_validation_data(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[OtherSplits | None] = []

    def deciding(*arguments: Any, stopped: bool) -> None:
        assert not stopped
        seen.append(arguments[-1])
        raise Reached

    monkeypatch.setattr(story, "successive_halving", lambda *_: [])
    monkeypatch.setattr(story, "decide", deciding)
    for data, valid, method in (
        (made(), None, "auto"),
        (made(), made(seed=3), "auto"),
        (made(), None, "cross_entropy"),
    ):
        with pytest.raises(Reached):
            mg.fit(linear(), data, valid, metric="f1", method=method, folds=None, seed=4)
    others, *rest = seen
    assert rest == [None, None]
    assert others is not None
    first = split_data(
        Items(*made()), None, SplitPlan(mg.metric("f1"), True, 256, False, 5, 0.2), 5
    )
    assert torch.equal(others.validation.items.target, first.validation.items.target)
    same = SplitPlan(mg.metric("f1"), True, 256, False, 5, 0.2)
    before = split_data(Items(*made()), None, same, 4)
    assert not torch.equal(others.validation.items.target, before.validation.items.target)


def test_progress_counts_the_epochs_of_all_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    totals: list[tuple[str, int, bool]] = []

    def shown(title: str, total: int, shown: bool) -> Any:
        totals.append((title, total, shown))
        return progress(title, total, False)

    monkeypatch.setattr(story, "to_progress", shown)
    begun(monkeypatch, method="cross_entropy", epochs=20)
    assert totals == [("training for f1", 24, False)]  # four rates for 4 epochs, two for 20


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0}, "epochs must be"),
        ({"batch": 1.5}, "batch must be"),
        ({"folds": 0}, "folds must be"),
        ({"patience": 0}, "patience must be 1 or more; got 0"),
        ({"memory": -1}, "memory must be 0 or more"),
        ({"rate": 0.0}, "rate must be above 0; got 0.0"),
        ({"clip": 0.0}, "clip must be above 0; got 0.0"),
        ({"budget": 0.0}, "budget must be above 0 seconds; got 0.0"),
        ({"share": 0.0}, "share must be between 0 and 1; got 0.0"),
        ({"share": 1.0}, "share must be between 0 and 1; got 1.0"),
        ({"decay": -0.1}, "decay must be 0 or more; got -0.1"),
        ({"rate": math.nan}, "rate must be above 0; got nan"),
        ({"options": {"slope": 1.0}}, "auto chooses them itself"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        quick(linear(), made(), **options)


def test_a_loader_draws_its_own_balanced_batches() -> None:
    loader = DataLoader(Squares(made()), 50)
    with pytest.raises(ValueError, match="give the loader a sampler instead"):
        quick(linear(), loader, made(), balanced=True)


def test_an_example_is_of_64_items_and_leaves_the_model_alone() -> None:
    model = nn.Sequential(nn.BatchNorm1d(5), linear())
    model.train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    for data in (Items(*made()), Items(*made(30)), Loader(DataLoader(Squares(made()), 40))):
        scores, example = example_of(model, data, mg.metric("f1"))
        number = 40 if isinstance(data, Loader) else min(64, len(data))
        assert scores.shape == example.y.shape == (number,)
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not scores.requires_grad


# ---------------------------------------------------------------------------
# the final training


def ended(
    monkeypatch: pytest.MonkeyPatch, values: list[float | None]
) -> tuple[dict[str, Tensor], list[int]]:
    """The final state where the attempts have these values, and the seeds of the attempts."""
    plan = SplitPlan(mg.metric("accuracy"), True, 50, False, 2, 0.2)
    items = Items(*made(100))
    search = Search(linear(), split_data(items, None, plan, 0), TrialSettings(seed=5), 20)
    planned = PlannedTrial(Candidate("focal"), 0.1)
    scores = torch.zeros(2, 50)
    trial = Trial(*planned, 8, 3, 0.75, None, scores, {}, torch.zeros(8, 2))
    seeds: list[int] = []
    made_up = iter(values)
    y = items.y

    def train_only(self: trial_group.TrialGroup, epochs: int) -> tuple[dict[str, Tensor], Tensor]:
        assert epochs == 3
        assert self.epochs == 8
        assert self.planned == [planned]
        batches = self.split.batches
        assert isinstance(batches, FoldBatches)
        assert batches._seed == self.settings.seed
        assert batches.size == 50
        assert torch.equal(self.split.folds[0].train, torch.arange(100))
        seeds.append(self.settings.seed)
        value = next(made_up)
        if value is None:
            return {"w": torch.tensor(-1.0)}, torch.full((1, 100), torch.nan)
        right = torch.arange(100) < round(100 * value)
        guess = torch.where(right, y, 1 - y)
        return {"w": torch.tensor(value)}, (2.0 * guess - 1).unsqueeze(0)

    monkeypatch.setattr(trial_group.TrialGroup, "train_only", train_only)
    return finalists._final_state(search, items, trial, plan, AsGiven(search.model)), seeds


@pytest.mark.parametrize(
    ("values", "chosen", "attempts"),
    [
        ([0.8], 0.8, 1),
        ([0.75], 0.75, 1),
        ([0.7, 0.76], 0.76, 2),
        ([0.7, 0.74, 0.72], 0.74, 3),
        ([0.7, 0.6, 0.9], 0.9, 3),
        ([None, 0.5, None], 0.5, 3),
        ([None, None, None], -1.0, 3),
    ],
)
def test_a_final_training_that_fails_is_repeated(
    values: list[float | None], chosen: float, attempts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has failed if it does worse on what it was trained on than the folds did on the rest."""
    state, seeds = ended(monkeypatch, values)
    assert state["w"].item() == pytest.approx(chosen)
    assert seeds == [5, 6, 7][:attempts]


def test_finalists_have_models_and_thresholds_of_their_own() -> None:
    found = quick(linear(), made(), folds=1, epochs=1)
    winner = found.decision.winner
    for finalist, trial in (
        (found.finalists.ordinary, found.decision.ordinary),
        (found.finalists.challenger, found.decision.challenger),
    ):
        assert trial is not None
        assert finalist is not None
        assert (finalist.model is found.model) == (trial is winner)
        assert finalist.threshold is trial.threshold
        assert not finalist.model.training
        for key, value in finalist.model.state_dict().items():
            assert torch.equal(value, trial.state[key])
        assert trial.scores.numel()
    others = [
        each
        for each in found.trials
        if each not in (found.decision.ordinary, found.decision.challenger)
    ]
    assert others
    assert all(each.scores.numel() == 0 and each.state == {} for each in others)
    assert found.contested
    assert not found.stopped
    assert 0 < found.seconds < 600
    assert found.trials[0].candidate.method == "cross_entropy"
    assert found.value == winner.value
    assert found.threshold is winner.threshold
    assert found.validation.target.shape == (1, 80)
    assert not quick(linear(), made(), folds=1, epochs=1, method="focal").contested


def test_score_sets_are_drawn_from_what_counts() -> None:
    live = torch.ones(2, 300, dtype=torch.bool)
    live[0, 100:] = False
    live[1, 100:] = False
    items = ValidationItems(torch.arange(600).reshape(2, 300), live)
    planned = PlannedTrial(Candidate("focal"), 0.1)

    def trial(value: float | None) -> Trial:
        scores = torch.arange(600).reshape(2, 300) + 0.5
        return Trial(*planned, 4, 2, value, None, scores, {}, torch.zeros(4, 2))

    found = kept_score_sets([trial(0.5), trial(None), trial(0.4)], items, 0)
    assert len(found) == 2
    for each in found:
        assert each.scores.shape == (170, 100)  # 512 in all, at most 128 items each
        assert torch.equal(each.scores - 0.5, each.target.float())
        assert (each.target % 300 < 100).all()
    many = ValidationItems(torch.zeros(1, 500), torch.ones(1, 500, dtype=torch.bool))
    wide = Trial(*planned, 4, 2, 0.5, None, torch.zeros(1, 500), {}, torch.zeros(4, 2))
    assert kept_score_sets([wide], many, 0)[0].scores.shape == (512, 128)
    assert kept_score_sets([wide] * 600, many, 0)[0].scores.shape == (1, 128)
    sets = ValidationItems(
        torch.zeros(1, 5, 2), torch.ones(1, 5, dtype=torch.bool), torch.ones(1, 5, 2)
    )
    assert kept_score_sets([wide], sets, 0) == []
