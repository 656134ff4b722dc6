"""Losses that learn before a search: once, and within a budget."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

import metricgrad as mg
from metricgrad.training import lessons as module
from metricgrad.training.candidates import Candidate, candidates_of, learned_reloss
from metricgrad.training.data import FoldBatches
from metricgrad.training.lessons import Lessons
from tests.fitting import linear, made, quick
from tests.searches import split_of


def lessons_for(metric: Any = "jaccard", **more: Any) -> Lessons:
    x, y = made()
    return Lessons(mg.metric(metric), x[:64, 0], y[:64], split_of().batches, 3, **more)


class Slow:
    """A lesson that takes time to get ready, and then a tenth of a second for each step."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, ready: float = 0.0) -> None:
        self.now = 0.0
        self.ready = ready
        self.asked: list[int] = []
        monkeypatch.setattr("time.monotonic", lambda: self.now)

    def __call__(self, steps: int) -> Any:
        self.asked.append(steps)
        self.now += self.ready + 0.1 * steps
        self.ready = 0.0
        return f"taught {steps}"


@pytest.mark.parametrize(
    ("budget", "ready", "asked"),
    [
        (math.inf, 0.0, [300]),  # all of it, at once
        (1000.0, 0.0, [10, 300]),
        (81.0, 0.0, [10, 200]),  # a quarter of what is left
        (9.0, 0.0, [10, 20]),
        (4.0, 0.0, [10]),
        (61.0, 9.0, [10, 12, 115]),  # the first took too long to tell
        (15.0, 9.0, [10]),
    ],
)
def test_a_lesson_is_as_long_as_there_is_time(
    budget: float, ready: float, asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow(monkeypatch, ready)
    assert lessons_for(until=budget)._in_time(slow, 300) == f"taught {asked[-1]}"
    assert slow.asked == asked
    first = 1.0 + ready
    assert slow.now <= max(first, first + 0.25 * (budget - first)) + 1e-9


def test_a_resumed_lesson_has_as_many_steps(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    slow = Slow(monkeypatch)
    first = lessons_for(until=9.0, folder=tmp_path)._in_time(slow, 300)
    assert lessons_for(until=1e9, folder=tmp_path)._in_time(slow, 300) == first
    for content in ("301", "0", "null"):
        (tmp_path / "steps.json").write_text(content)
        with pytest.raises(ValueError, match=r"steps\.json must hold 1 to 300 steps; it holds"):
            lessons_for(until=9.0, folder=tmp_path)._in_time(slow, 300)


def test_reloss_learns_once_for_all_its_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_RELOSS_STEPS", 2)
    tried = candidates_of("reloss")
    cold, warm = lessons_for().taught(tried)
    assert isinstance(cold.given, mg.ReLoss)
    assert cold.given is warm.given
    assert cold.given.learned
    assert [str(cold), str(warm)] == [str(each) for each in tried]
    generator = torch.Generator().manual_seed(3)
    alone = learned_reloss(mg.metric("jaccard"), generator, {}, 2).state_dict()
    assert all(torch.equal(value, alone[name]) for name, value in cold.given.state_dict().items())
    (shipped, _) = lessons_for("f1").taught(tried)
    assert shipped.given is not None
    ships = mg.ReLoss.pretrained("f1").state_dict()
    assert all(
        torch.equal(value, ships[name]) for name, value in shipped.given.state_dict().items()
    )


def test_bilevel_learns_for_batches_of_its_size_and_classes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(mg.BilevelLoss, "learn_universal", lambda _, **given: asked.append(given))
    monkeypatch.setattr(module, "UNIVERSAL_STEPS", 5)
    lessons = lessons_for("f1")
    (candidate,) = lessons.taught(candidates_of("bilevel", {"distance": "l2"}))
    assert isinstance(candidate.given, mg.BilevelLoss)
    assert candidate.given.distance == "l2"
    assert isinstance(lessons.batches, FoldBatches)
    told = [{name: given[name] for name in ("steps", "size", "pool", "classes")} for given in asked]
    assert told == [{"steps": 5, "size": lessons.batches.size, "pool": 320, "classes": None}]
    assert not asked[0]["progress"]
    x, y = made()
    many = Lessons(mg.metric("accuracy"), x[:64], y[:64], lessons.batches, 0)
    many.taught(candidates_of("bilevel"))
    assert asked[1]["classes"] == 5


def test_losses_that_know_and_others_are_left_alone() -> None:
    known = mg.BilevelLoss("f1")
    known.universal = True
    for candidates in (
        [Candidate("bilevel", given=known)],
        [Candidate("reloss", given=mg.ReLoss.pretrained("f1"))],
        candidates_of("uniloss"),
    ):
        assert lessons_for().taught(candidates) is candidates


def test_a_fit_teaches_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not once for every round, fold and final training."""
    monkeypatch.setattr(module, "UNIVERSAL_STEPS", 3)
    taught: list[int] = []
    learn = mg.BilevelLoss.learn_universal

    def counted(self: mg.BilevelLoss, **given: Any) -> Any:
        taught.append(given["steps"])
        return learn(self, **given)

    monkeypatch.setattr(mg.BilevelLoss, "learn_universal", counted)
    found = quick(linear(), made(), method="bilevel", epochs=1, folds=2)
    assert found.folds == 2
    assert taught == [3]


def test_bilevel_refuses_before_it_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(mg.BilevelLoss, "learn_universal")
    with pytest.raises(ValueError, match="has no weight decay; pass decay=0"):
        quick(linear(), made(), method="bilevel", decay=0.1)
