"""What training leaves behind: scores, decisions, the metric, and what a Fit tells about itself."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import metricgrad as mg
from metricgrad.training.candidates import Candidate, method_names
from metricgrad.training.decision import Decision
from metricgrad.training.labels import label
from metricgrad.training.trained import Finalists, Fit, Trained
from metricgrad.training.trials import Trial
from metricgrad.training.validation import ValidationItems
from tests.fitting import linear, made


def trial_of(method: str, value: float | None, rate: float = 0.1, **options: Any) -> Trial:
    return Trial(
        Candidate(method, options),
        rate,
        20,
        12,
        value,
        None,
        torch.zeros(1, 2),
        {},
        torch.zeros(20, 2),
        folds=5,
    )


def result(decision: Decision, **more: Any) -> Fit:
    usual: dict[str, Any] = {
        "model": linear(),
        "metric": mg.metric("f1"),
        "threshold": torch.tensor(0.31256),
        "value": decision.winner.value,
        "finalists": Finalists(),
        "trials": [each for each in (decision.ordinary, decision.challenger) if each is not None],
        "validation": ValidationItems(torch.zeros(1, 2), torch.ones(1, 2) > 0),
        "score_sets": [],
        "folds": 5,
        "seconds": 12.34,
        "contested": True,
    }
    return Fit(decision=decision, **{**usual, **more})


PLAIN = trial_of("cross_entropy", 0.81)
BEST = trial_of("uniloss", 0.85, slope=8.0)


@pytest.mark.parametrize(
    ("decision", "more", "told"),
    [
        (
            Decision(BEST, PLAIN, BEST, 0.03, 0.0084, again=True),
            {},
            "UniLoss (slope 8) is better than cross-entropy: F1 0.8500 for UniLoss (slope 8) and "
            "0.8100 for cross-entropy, by 5-fold cross-validation. On other splits of the data the "
            "gain is 0.0300. A gain below 0.0084 could be chance.",
        ),
        (
            Decision(PLAIN, PLAIN, BEST, 0.04, 0.05),
            {"folds": 1},
            "No difference is shown between cross-entropy and the best challenger, UniLoss "
            "(slope 8): F1 0.8500 for UniLoss (slope 8) and 0.8100 for cross-entropy, on "
            "validation data. A gain below 0.0500 could be chance.",
        ),
        (
            Decision(PLAIN, PLAIN, trial_of("focal", 0.75), -0.06, 0.05),
            {"folds": 1},
            "The best challenger, focal loss, is worse than cross-entropy: F1 0.7500 for focal "
            "loss and 0.8100 for cross-entropy, on validation data. A gain below 0.0500 could be "
            "chance.",
        ),
        (
            Decision(PLAIN, PLAIN, BEST, 0.04, 0.01),
            {},
            "UniLoss (slope 8) may be better, but it was not compared again on other splits: F1 "
            "0.8500 for UniLoss (slope 8) and 0.8100 for cross-entropy, by 5-fold "
            "cross-validation. A gain below 0.0100 could be chance.",
        ),
        (
            Decision(trial_of("list_net", 0.4), trial_of("list_net", 0.4), BEST, 0.0, 0.1),
            {},
            "No difference is shown between ListNet and the best challenger",
        ),
        (
            Decision(PLAIN, PLAIN, None),
            {},
            "cross-entropy: F1 0.8100 by 5-fold cross-validation. There was no time for a "
            "challenger.",
        ),
        (
            Decision(BEST, None, BEST),
            {"contested": False, "folds": 1},
            "UniLoss (slope 8): F1 0.8500 on validation data.",
        ),
    ],
)
def test_a_verdict_says_what_won_and_what_could_be_chance(
    decision: Decision, more: dict[str, Any], told: str
) -> None:
    if decision.ordinary is not None and decision.ordinary.candidate.method == "list_net":
        assert told in result(decision, **more).verdict()
        return
    assert result(decision, **more).verdict() == told


def test_every_metric_and_method_has_a_label() -> None:
    for name in [*mg.metric_names(), *method_names()]:
        assert "_" not in label(name)
    assert label("average_precision") == "average precision"
    assert label("cross_entropy") == "cross-entropy"
    assert label("profit_of_mail (slope 2)") == "profit_of_mail (slope 2)"


def test_a_fit_is_shown_on_a_screen() -> None:
    decision = Decision(BEST, PLAIN, BEST, 0.03, 0.0084, again=True)
    values = (0.5, None, 0.84, 0.6, 0.7, 0.3)
    others = [trial_of("focal", each, 0.001 * rate) for rate, each in enumerate(values, 1)]
    others.append(replace(others[0], value=0.99, folds=2))  # not measured on the same items
    found = result(decision, trials=[PLAIN, *others, BEST])
    head, *verdict = repr(found).splitlines()[:4]
    assert head == "Fit: F1 0.8500, trained on UniLoss (slope 8), threshold 0.3126"
    assert " ".join(verdict) == found.verdict()
    assert repr(found).splitlines()[4:] == [
        "",
        "F1      trial              rate   best epoch",
        "0.8500  UniLoss (slope 8)  0.1    12 of 20",
        "0.8400  focal loss         0.003  12 of 20",
        "0.8100  cross-entropy      0.1    12 of 20",
        "0.7000  focal loss         0.005  12 of 20",
        "0.6000  focal loss         0.004  12 of 20",
        "",
        "9 trials, 5 folds, 12.3 s",
    ]
    lower = result(decision, metric=mg.metric("error_rate"), trials=[PLAIN, *others, BEST])
    assert repr(lower).splitlines()[6].startswith("0.3000")


def test_what_was_trained_twice_is_shown_once() -> None:
    """Where epochs are few, all rounds of a search are equally long."""
    again = [trial_of("focal", value) for value in (0.5, 0.6, 0.7)]
    longer = replace(again[0], epochs=40, value=0.4)
    better = replace(PLAIN, value=0.99)  # a later round of the one that was compared
    decision = Decision(PLAIN, PLAIN, BEST, 0.03, 0.05)
    found = result(decision, trials=[PLAIN, better, *again, longer, BEST])
    shown = [line.split()[0] for line in repr(found).splitlines() if " of " in line[-9:]]
    assert shown == ["0.8500", "0.8100", "0.7000", "0.4000"]
    assert repr(found).endswith("7 trials, 5 folds, 12.3 s")
    assert max(map(len, repr(found).splitlines())) <= 100


def test_a_fit_is_shown_in_a_notebook() -> None:
    decision = Decision(BEST, None, BEST)
    found = result(decision, folds=1, stopped=True, threshold=None, contested=False)
    page = found._repr_html_()
    assert page.startswith("<p><b>Fit: F1 0.8500, trained on UniLoss (slope 8)</b><br>UniLoss")
    assert "<tr><td>0.8500</td><td>UniLoss (slope 8)</td><td>0.1</td><td>12 of 20</td></tr>" in page
    assert page.endswith("<p>1 trial, one split, 12.3 s, stopped early</p>")
    each = torch.tensor([0.25, -1.5, 0.5])
    labels = result(decision, metric=mg.metric("f1", multilabel=True), threshold=each)
    assert "3 thresholds from -1.5 to 0.5" in repr(labels)
    classes = result(decision, threshold=each)
    assert "3 offsets from -0.5 to 1.5" in repr(classes)
    risky = result(Decision(trial_of("<b>", 0.5), None, trial_of("<b>", 0.5)))
    assert "<b>)" not in risky._repr_html_()
    assert "trained on &lt;b&gt;" in risky._repr_html_()


def test_what_was_trained_scores_decides_and_measures() -> None:
    x, y = made(50)
    model = nn.Sequential(nn.Dropout(0.5), linear())
    model.train()
    cut = torch.tensor(0.2)
    trained = Trained(model=model, metric=mg.metric("f1"), threshold=cut)
    scores = trained.scores(x.numpy())
    assert torch.equal(scores, linear()(x).squeeze(-1).detach())
    assert model.training
    assert torch.equal(trained.predict(x), (scores > 0.2).long())
    expected = mg.metric("f1", threshold=0.2)(scores, y).item()
    assert trained.measure(x, y) == trained.measure(x, y.unsqueeze(-1)) == expected
    plain = Trained(model=model, metric=mg.metric("f1"), threshold=None)
    assert torch.equal(plain.predict(x), (scores > 0).long())
    two = Trained(model=linear(2), metric=mg.metric("f1"), threshold=None)
    both = linear(2)(x).detach()
    torch.testing.assert_close(two.scores(x), both[:, 1] - both[:, 0])
    three = Trained(model=linear(3), metric=mg.metric("accuracy"), threshold=None)
    assert torch.equal(three.predict(x), linear(3)(x).argmax(-1))
    assert three.scores(x).shape == (50, 3)
    labels = Trained(
        model=linear(2), metric=mg.metric("f1", multilabel=True), threshold=torch.tensor([0.1, 9.0])
    )
    assert labels.scores(x).shape == (50, 2)
    assert torch.equal(labels.predict(x), (both > torch.tensor([0.1, 9.0])).long())
    single = Trained(model=linear(1), metric=mg.metric("f1", multilabel=True), threshold=None)
    assert single.scores(x).shape == (50, 1)
