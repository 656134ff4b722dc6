"""What the benchmarks against other libraries do without them: formulas, rows, tables."""

import ast
import itertools
import math
from pathlib import Path

import pytest
import torch
from sklearn.metrics import f1_score, ndcg_score
from torch import Tensor

from benchmarks import table
from benchmarks.data import Part
from benchmarks.peers import first_result, formulas, libauc, lists, tables
from benchmarks.rankings import Queries

PROGRAMS = Path(first_result.__file__).parent / "programs"
LISTS = {
    "list_mle": formulas.list_mle,
    "rank_net": formulas.rank_net,
    "squared_error": formulas.squared_error,
    "neural_ndcg": formulas.neural_ndcg,
}


@pytest.fixture
def lists_of_documents() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(6, 7, generator=generator)
    grades = torch.randint(0, 3, (6, 7), generator=generator).float()
    where = torch.arange(7) < torch.tensor([7, 5, 4, 7, 3, 6])[:, None]
    return scores, grades * where, where


def test_any_loss_becomes_f1_as_it_is_amplified() -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(60, generator=generator)
    target = torch.arange(60) % 3 == 0
    found = formulas.any_loss(scores, target, amplification=1e5).item()
    assert found == pytest.approx(1 - f1_score(target, scores > 0), abs=1e-4)
    soft = 1 / (1 + torch.exp(-73 * (1 / (1 + torch.exp(-scores)) - 0.5)))
    expected = 1 - 2 * soft[target].sum() / (soft.sum() + target.sum())
    assert formulas.any_loss(scores, target).item() == pytest.approx(expected.item(), abs=1e-6)


def test_losses_of_lists_are_their_formulas(
    lists_of_documents: tuple[Tensor, Tensor, Tensor],
) -> None:
    mle = []
    pairs = []
    for scores, grades, where in zip(*(part.tolist() for part in lists_of_documents), strict=True):
        known = [
            (-grade, place, score)
            for place, (score, grade, live) in enumerate(zip(scores, grades, where, strict=True))
            if live
        ]
        ranked = [score for _, _, score in sorted(known)]
        rest = [
            math.log(sum(math.exp(each) for each in ranked[place:])) for place in range(len(ranked))
        ]
        mle.append(sum(rest) - sum(ranked))
        pairs += [
            math.log1p(math.exp(other[2] - one[2]))
            for one, other in itertools.permutations(known, 2)
            if one[0] < other[0]
        ]
    assert formulas.list_mle(*lists_of_documents).item() == pytest.approx(sum(mle) / 6, rel=1e-5)
    expected = sum(pairs) / len(pairs)
    assert formulas.rank_net(*lists_of_documents).item() == pytest.approx(expected, rel=1e-5)


def test_neural_ndcg_is_ndcg_when_it_sorts_sharply(
    lists_of_documents: tuple[Tensor, Tensor, Tensor],
) -> None:
    scores, grades, where = lists_of_documents
    expected = [
        ndcg_score([(2 ** target[live] - 1).tolist()], [score[live].tolist()], k=4)
        for score, target, live in zip(scores, grades, where, strict=True)
        if target[live].any()
    ]
    found = formulas.neural_ndcg(scores, grades, where, temperature=1e-3, k=4).item()
    assert found == pytest.approx(1 - sum(expected) / len(expected), abs=1e-4)


@pytest.mark.parametrize("name", LISTS)
def test_padding_does_not_count_and_gradients_are_finite(
    name: str, lists_of_documents: tuple[Tensor, Tensor, Tensor]
) -> None:
    scores, grades, where = lists_of_documents
    scores = scores.clone().requires_grad_()
    value = LISTS[name](scores, grades, where)
    changed = LISTS[name](scores.where(where, 9.0), grades.where(where, 2.0), where)
    assert changed.item() == pytest.approx(value.item(), rel=1e-5)
    value.backward()
    assert scores.grad is not None
    assert scores.grad.isfinite().all()
    assert (scores.grad[~where] == 0).all()
    assert scores.grad[where].abs().sum() > 0


def test_batches_have_a_share_of_positives_and_use_all_rows() -> None:
    train = Part(torch.zeros(50, 1), (torch.arange(50) % 5 == 0).long())
    settings = {"batch": 8, "sampling_rate": 0.25}
    found = list(libauc.batches(train, settings, 5, seed=0))
    assert [int(train.y[batch].sum()) for batch in found] == [2] * 5
    drawn = torch.cat(found)
    assert sorted(drawn[train.y[drawn] == 1].tolist()) == list(range(0, 50, 5))
    assert len(drawn[train.y[drawn] == 0].unique()) == 30
    again = torch.cat(list(libauc.batches(train, settings, 5, seed=0)))
    assert again.equal(drawn)
    assert not torch.cat(list(libauc.batches(train, settings, 5, seed=1))).equal(drawn)


@pytest.mark.parametrize(
    ("method", "metric", "grid"),
    [
        ("sklearn_logistic", "f1", {"C": [0.01, 1.0]}),
        ("sklearn_trees", "average_precision", {"learning_rate": [0.1], "leaves": [7]}),
        ("any_loss", "f1", {"learning_rate": [0.03]}),
    ],
)
def test_rows_that_need_no_other_library_run(
    method: str, metric: str, grid: dict[str, list[float]]
) -> None:
    settings = {
        **{"dataset": "digits", "hidden": [], "metric": metric, "method": method, "grid": grid},
        **{"batch": 64, "steps": 150, "optimizer": "adam", "evaluations": 3},
    }
    found = tables.run(settings, 0, None, [])
    assert found["value"] > 0.5
    assert found["valid"] == max(trial["valid"] for trial in found["trials"])
    assert len(found["trials"]) == math.prod(map(len, grid.values()))


def test_queries_know_their_place() -> None:
    part = Queries(torch.zeros(5, 2, 3), torch.zeros(5, 2), torch.ones(5, 2, dtype=torch.bool))
    chosen = lists._numbered(part).at(torch.tensor([4, 1]))
    assert chosen.place is not None
    assert chosen.place.tolist() == [4, 1]
    assert chosen.x.shape == (2, 2, 3)


def test_rows_run_where_they_say() -> None:
    runs = table.table("peers").runs("small", seeds=1)
    columns = {run.column.rpartition("_")[2] for run in runs if run.row == "libauc_aucm"}
    assert columns == {"auc", "pauc"}
    assert {run.column for run in runs if run.row == "any_loss"} == {
        column for column in table.table("peers").columns if column.endswith("_f1")
    }
    assert len({run.column for run in runs if run.row == "uniloss"}) == 24


def test_programs_of_first_results_exist_and_are_counted() -> None:
    rows = table.table("peers_first").rows
    for settings in rows.values():
        path = PROGRAMS / f"{settings['program']}.py"
        ast.parse(path.read_text())
        assert 5 < first_result.lines(path) < 40
    assert {path.stem for path in PROGRAMS.glob("*.py")} == {
        settings["program"] for settings in rows.values()
    }
