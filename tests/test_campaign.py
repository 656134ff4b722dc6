"""The campaign's own checks can fail: a broken metric, a wrong loss, a traceback are reported."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import metricgrad as mg
from tests.cases import CASES
from tools.campaign import __main__ as campaign
from tools.campaign import files, functions, losses, sets
from tools.campaign.case import Case, Outcome, child, sentence


def test_a_broken_metric_is_reported() -> None:
    row = next(each for each in CASES if str(each) == "recall()-binary")
    assert sets.check(row, row.metric, 60, 0).failures == []
    found = sets.check(row, mg.metric("precision"), 60, 0)
    assert found.tried == "60 sets"
    assert found.text().startswith("failed: ")


@pytest.mark.parametrize("row", CASES, ids=str)
def test_every_metric_of_the_contract_has_a_formula(row: Any) -> None:
    scores, target, where, _ = sets.fuzzed(row.family, 2, sets.np.random.default_rng(0))
    formula = sets.formula(row, scores.astype(float), target, sets.live(where, target))
    assert (formula is None) == row.family.startswith("text")


class Broken(mg.baselines.CrossEntropy):
    """A loss that overflows, whose gradient has holes."""

    def losses(self, scores: Tensor, target: Tensor, where: Tensor | None) -> Any:
        squares = (scores**2).sqrt().sum() + (scores.double() ** 9).float().sum()
        return squares, torch.tensor(True)


def test_a_wrong_loss_is_reported() -> None:
    found = losses.check(Broken, ["binary"], 0)
    assert any("all scores 0: 40 of 40 entries" in each for each in found.failures)
    assert any("+-1e+30: the value is" in each for each in found.failures)
    assert losses.check(mg.baselines.CrossEntropy, ["binary"], 0).failures == []


def test_memory_that_grows_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = iter([100.0, 200.0])
    monkeypatch.setattr(losses, "resident", lambda: next(sizes))
    found = losses.check_memory(lambda: mg.UniLoss("f1"), 10, 0)
    assert found.text() == "failed: 100 MB more after 10 steps than after 2"


def above(threshold: float) -> Any:
    def accuracy(scores: Tensor, target: Tensor) -> Tensor:
        return ((scores > threshold) == (target > 0)).double().mean()

    return accuracy


def test_a_wrong_re_expression_is_reported() -> None:
    scores = torch.tensor([-1.0, 0.5, 2.0], dtype=torch.float64)
    target = torch.tensor([0, 1, 1])
    right = functions.check_moves(mg.reexpress(above(0.0)), above(0.0), scores, target)
    assert right == (4, [])
    _, wrong = functions.check_moves(mg.reexpress(above(0.0)), above(1.0), scores, target)
    assert any("and fn gives" in each for each in wrong)
    assert any("no bit flips where fn goes" in each for each in wrong)


def ends(code: int, text: str) -> Any:
    def task() -> None:
        print(text, end="")
        raise SystemExit(code)

    return task


def refuses() -> None:
    raise ValueError("the reason")


def test_tracebacks_and_silent_errors_are_reported() -> None:
    assert child(ends(0, "")).complaint() is None
    assert child(ends(2, "a sentence")).complaint() is None
    assert child(ends(2, "a sentence")).complaint((0,)) == "exit code 2: a sentence"
    assert child(ends(2, "")).complaint() == "exit code 2 without a sentence"
    assert child(refuses).complaint() == "exit code 1: ValueError: the reason"
    assert child(sentence(refuses)).complaint() is None


def test_a_child_can_be_killed() -> None:
    def endless() -> None:
        while True:
            pass

    assert child(endless, kill_after=0.05).killed


def test_damages_differ_from_the_file_and_repeat() -> None:
    content = bytes(range(200))
    found = files.damages(content, 0)
    assert found == files.damages(content, 0)
    assert all(damaged != content for _, damaged in found)
    assert len(found) == files.FLIPS + files.CUTS + 3


def test_the_table_keeps_other_themes(tmp_path: Path) -> None:
    cases = [Case("good", lambda: Outcome("9 sets")), Case("bad", lambda: Outcome("", ["a | b"]))]
    found = {case.name: case.run() for case in cases}
    rows = [(name, each["tried"], each["result"]) for name, each in found.items()]
    path = tmp_path / "table.md"
    campaign.write(path, "losses", 1, [("first", "", "ok")], 30.0)
    campaign.write(path, "sets", 0, rows, 200.0)
    text = path.read_text()
    assert "## sets: 1 of 2 cases failed (seed 0, 3 min)" in text
    assert "| good | 9 sets | ok |\n| bad |  | failed: a \\| b |\n" in text
    assert text.index("## sets") < text.index("## losses: 0 of 1 cases failed (seed 1, 1 min)")


def test_a_case_that_raises_has_failed() -> None:
    def broken() -> Outcome:
        raise KeyError("x")

    assert Case("broken", broken).run()["result"] == "failed: KeyError: 'x'"
