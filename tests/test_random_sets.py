"""Random score sets: how evenly the metric is spread, and what the sets are made of."""

from typing import Any

import pytest
import torch
from torch import Tensor

import metricgrad as mg
from metricgrad.surrogates import random_sets
from metricgrad.surrogates.score_sets import ScoreSets, known_values
from tests.test_layouts import LAYOUTS, sets_of
from tests.trainings import seeded

OURS = [name for name, layout in LAYOUTS.items() if layout.metric.portable or layout.shape]
BINS = 6


def spread(name: str, source: Any, sets: int = 192) -> tuple[Tensor, Tensor]:
    """Values of the metric, and the share of them in each of six equal bins of their range."""
    values = known_values(LAYOUTS[name].metric, ScoreSets(*sets_of(name, sets, source)))
    values = values[values.isfinite()]
    low, high = values.min().item(), values.max().item()
    return values, torch.histc(values, BINS, low, high) / len(values)


@pytest.mark.parametrize("name", OURS)
def test_uniform_sets_have_a_metric_that_is_spread_evenly(name: str) -> None:
    values, shares = spread(name, "uniform")
    assert values.max() - values.min() > 0.5
    assert shares.max() < 2.2 / BINS
    assert shares.min() > 0.35 / BINS


@pytest.mark.parametrize("name", ["binary, order", "grades", "maps", "tokens"])
def test_other_sets_are_less_even(name: str) -> None:
    """Or the selection would be for nothing."""
    assert spread(name, "broad")[1].std() > 1.5 * spread(name, "uniform")[1].std()


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_same_generator_draws_the_same_sets(name: str) -> None:
    one, other = (sets_of(name, 6) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    assert not torch.equal(one[0], sets_of(name, 6, seed=1)[0])


def test_texts_end_where_the_metric_sees_an_end() -> None:
    scores, target = sets_of("tokens", 40, "broad")  # end=0
    assert target.shape == scores.shape[:-1]
    lengths = (target != 0).sum(-1)
    assert lengths.min() == 1
    assert lengths.max() == 7
    first = (target == 0).int().argmax(-1)
    assert ((target == 0).any(-1) == (lengths < 7)).all()
    assert (first[lengths < 7] == lengths[lengths < 7]).all()  # no token after the end
    whole = sets_of("tokens, ratio", 40, "broad")[1]  # no end, no padding
    assert (whole >= 0).all()
    assert whole.unique().tolist() == [0, 1, 2, 3, 4]


def test_answers_are_positions_in_a_row() -> None:
    _, target = sets_of("spans", 60, "broad")
    for row in target.flatten(0, 1):
        places = row[row >= 0]
        assert places.tolist() == list(range(int(places[0]), int(places[-1]) + 1))
        assert (row[places] == places).all()


def test_joints_lie_on_the_map_and_have_a_size_if_the_metric_wants_one() -> None:
    for name, columns in (("poses", 2), ("poses, sized", 3)):
        _, target = sets_of(name, 60, "broad")
        assert target.shape[-1] == columns
        x, y = target[..., 0], target[..., 1]
        assert 0 <= x.min() < 0.5 < 5.5 < x.max() <= 6  # maps of 8 x 7
        assert 0 <= y.min() < 0.5 < 6.5 < y.max() <= 7


def test_grades_are_graded() -> None:
    assert sets_of("grades", 60, "uniform")[1].unique().tolist() == [0, 1, 2, 3, 4]


def test_grades_follow_the_scores_up_to_the_highest() -> None:
    """As they are drawn; `"uniform"` chooses sets by their NDCG, half of which are bad ones."""
    scores, grades = random_sets._grades(False, (400, 20), seeded())
    by_score = grades.gather(-1, scores.argsort(-1)).float().mean(0)
    fifths = torch.stack([part.mean() for part in by_score.chunk(5)])
    assert (fifths.diff() > 0.04).all()


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_a_share_of_the_sets_of_a_step_is_made_up(share: float, monkeypatch: Any) -> None:
    stored = sets_of("tokens", 60, "broad")
    stored[1][..., -1] = 0
    asked: list[int] = []
    from metricgrad.surrogates import score_sets

    draw = score_sets.Pool.draw

    def noted(pool: Any, number: int, generator: Any) -> Any:
        asked.append(number if pool.sources else 0)
        return draw(pool, number, generator)

    monkeypatch.setattr(score_sets.Pool, "draw", noted)
    loss = mg.ReLoss(LAYOUTS["tokens"].metric, generator=seeded())
    loss.learn([stored], steps=1, sets=20, share=share, generator=seeded())
    assert max(asked) == round(share * 20)
