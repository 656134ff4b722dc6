"""Candidates: which losses are tried for a metric, with which settings, and which of them fit."""

from typing import Any

import pytest
import torch
from torch import Tensor

import metricgrad as mg
from metricgrad.training import candidates as module
from metricgrad.training.candidates import (
    BASELINES,
    RATES,
    Candidate,
    candidates_of,
    challengers,
    fitting,
    method_names,
    ordinary_candidate,
    takes,
    target_kind,
    usual_methods,
)
from tests.trainings import seeded


def told(found: list[Candidate]) -> list[str]:
    return [str(each) for each in found]


UNILOSS = [
    "uniloss (slope 0.5)",
    "uniloss (slope 2)",
    "uniloss (slope 8)",
    "uniloss (slope 30)",
    "uniloss (slope 2, warm start)",
    "uniloss (slope 30, warm start)",
]


def test_learning_rates_are_those_of_the_documentation() -> None:
    assert RATES == (0.003, 0.01, 0.03, 0.1)


def test_uniloss_is_tried_with_four_slopes_and_two_of_them_warm() -> None:
    assert told(candidates_of("uniloss")) == UNILOSS
    assert told(candidates_of("uniloss", {"slope": 4.0})) == [
        "uniloss (slope 4)",
        "uniloss (slope 4, warm start)",
    ]
    assert told(candidates_of("uniloss", {"samples": 3}))[4] == (
        "uniloss (slope 2, samples 3, warm start)"
    )


def test_other_losses_are_tried_cold_and_warm() -> None:
    assert told(candidates_of("focal", {"gamma": 1.0})) == [
        "focal (gamma 1)",
        "focal (gamma 1, warm start)",
    ]
    # Cross-entropy would warm up on itself, and Algorithm 1 has a start of its own.
    assert told(candidates_of("cross_entropy")) == ["cross_entropy"]
    assert told(candidates_of("bilevel")) == ["bilevel"]


class OwnLossOfMine(mg.baselines.CrossEntropy):
    """A loss that the library does not know."""


def test_a_surrogate_is_tried_cold_and_warm_under_its_name() -> None:
    loss = mg.UniLoss("f1")
    found = candidates_of(loss)
    assert told(found) == ["uniloss", "uniloss (warm start)"]
    assert all(each.given is loss for each in found)
    assert told(candidates_of(mg.baselines.CrossEntropy())) == ["cross_entropy"]
    assert told(candidates_of(mg.BilevelLoss("f1"))) == ["bilevel"]
    assert told(candidates_of(OwnLossOfMine()))[0] == "own_loss_of_mine"
    copied = found[0].loss(mg.metric("f1"), 0)
    assert copied is not loss
    assert isinstance(copied, mg.UniLoss)


def test_the_names_of_methods_are_those_of_surrogates() -> None:
    names = method_names()
    assert {"cross_entropy", "uniloss", "reloss", "bilevel", "pairwise_ranking"} <= set(names)
    assert names == sorted(names)
    assert BASELINES["approx_ndcg"] is mg.baselines.ApproxNDCG
    with pytest.raises(ValueError, match="no method 'f1'; available: auto, approx_ndcg"):
        candidates_of("f1")


@pytest.mark.parametrize(
    ("metric", "more"),
    [
        ("f1", ["soft_f_beta"]),
        ("jaccard", ["soft_jaccard"]),
        ("mcc", ["soft_mcc"]),
        ("auc", ["uniloss (relaxation squared_hinge)", "pairwise_ranking"]),
        ("average_precision", ["uniloss (relaxation squared_hinge)", "smooth_ap"]),
        ("eer", ["uniloss (relaxation squared_hinge)"]),
        ("accuracy", []),
        ("ndcg", ["lambda_loss"]),
        ("map", ["smooth_ap"]),
        ("recall_at_k", []),
        ("mean_iou", []),
        (mg.metric("f1", multilabel=True), []),
        (mg.from_function(lambda scores, target: scores.sum()), []),
    ],
)
def test_challengers_are_ours_and_what_people_use(metric: Any, more: list[str]) -> None:
    assert told(challengers(mg.metric(metric))) == ["metric_loss", *UNILOSS, *more]


def test_a_comparison_has_the_usual_methods() -> None:
    papers = ["metric_loss", "uniloss", "reloss", "bilevel"]
    assert usual_methods(mg.metric("f1")) == ["cross_entropy", "soft_f_beta", "focal", *papers]
    assert usual_methods(mg.metric("kappa")) == ["cross_entropy", "focal", *papers]


def test_the_ordinary_loss_is_that_of_the_metric() -> None:
    assert str(ordinary_candidate(mg.metric("f1"))) == "cross_entropy"
    assert str(ordinary_candidate(mg.metric("ndcg"))) == "list_net"
    assert str(ordinary_candidate(mg.metric("f1"), sets=True)) == "list_net"
    assert str(ordinary_candidate(mg.metric("bleu", decode=lambda scores: scores))) == (
        "cross_entropy"
    )


# ---------------------------------------------------------------------------
# losses


def test_a_slope_becomes_a_scale_only_for_uniloss_and_metrics_without_one() -> None:
    f1 = mg.metric("f1")
    assert Candidate("uniloss", {"slope": 8.0}).scale(f1) == 8.0
    assert Candidate("uniloss").scale(f1) == 1.0
    assert Candidate("focal", {"slope": 8.0}).scale(f1) == 1.0
    assert Candidate("uniloss", {"slope": 8.0}).scale(mg.metric("f1", threshold=0.5)) == 1.0
    function = mg.from_function(lambda scores, target: scores.sum())
    assert Candidate("uniloss", {"slope": 8.0}).scale(function) == 1.0


def test_kin_share_everything_but_a_slope() -> None:
    f1 = mg.metric("f1")
    moved = mg.metric("f1", threshold=0.5)

    def alike(one: Candidate, other: Candidate, metric: mg.Metric = f1) -> bool:
        return one.kin(metric) == other.kin(metric)

    gentle = Candidate("uniloss", {"slope": 2.0})
    assert alike(gentle, Candidate("uniloss", {"slope": 8.0}))
    assert alike(gentle, Candidate("uniloss", {"slope": 1.0}))
    assert not alike(gentle, Candidate("uniloss", {"slope": 8.0}), moved)
    assert not alike(gentle, Candidate("uniloss", {"slope": 2.0}, warm_start=True))
    assert not alike(gentle, Candidate("uniloss", {"slope": 2.0, "samples": 3}))
    assert not alike(Candidate("focal"), Candidate("cross_entropy"))
    one, other = mg.UniLoss("f1"), mg.UniLoss("f1")
    assert not alike(Candidate("uniloss", given=one), Candidate("uniloss", given=other))
    assert alike(Candidate("focal", {"gamma": 1.0}), Candidate("focal", {"gamma": 1.0}))
    assert not alike(Candidate("focal", {"gamma": 1.0}), Candidate("focal", {"gamma": 2.0}))


def test_options_reach_the_loss() -> None:
    f1 = mg.metric("f1")
    assert "slope=1.0" in repr(Candidate("uniloss", {"slope": 8.0}).loss(f1, 0))
    assert "squared_hinge" in repr(
        Candidate("uniloss", {"relaxation": "squared_hinge"}).loss(mg.metric("auc"), 0)
    )
    focal = Candidate("focal", {"gamma": 0.5}).loss(f1, 0)
    assert focal.config()["gamma"] == 0.5
    bilevel = Candidate("bilevel").loss(mg.metric("mcc"), 3)
    assert isinstance(bilevel, mg.BilevelLoss)
    assert bilevel.metric.name == "mcc"
    same, other = (
        torch.cat([each.flatten() for each in Candidate("bilevel").loss(f1, seed).parameters()])
        for seed in (3, 4)
    )
    again = torch.cat([each.flatten() for each in Candidate("bilevel").loss(f1, 3).parameters()])
    assert torch.equal(same, again)
    assert not torch.equal(same, other)


def test_a_loss_that_ships_is_taken_and_others_are_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    learned: list[dict[str, Any]] = []
    monkeypatch.setattr(mg.ReLoss, "learn", lambda _, **options: learned.append(options))
    shipped = Candidate("reloss").loss(mg.metric("f1"), 0)
    assert isinstance(shipped, mg.ReLoss)
    assert not learned
    for number, (metric, options) in enumerate(
        [
            (mg.metric("f1", multilabel=True), {}),
            (mg.metric("jaccard"), {}),
            (mg.metric("f1"), {"penalty": 5.0}),
            (mg.from_function(lambda scores, target: scores.sum()), {}),
        ]
    ):
        Candidate("reloss", options).loss(metric, 5)
        assert len(learned) == number + 1
        assert not learned[-1]["progress"]
        assert learned[-1]["generator"].initial_seed() == 5


# ---------------------------------------------------------------------------
# kinds of targets

BINARY = (torch.randn(9, generator=seeded()), (torch.arange(9) % 2).long())
CLASSES = (torch.randn(9, 3, generator=seeded()), torch.arange(9) % 3)
GRADES = (torch.randn(9, generator=seeded()), torch.arange(9) % 4)
LABELS = (torch.randn(9, 3, generator=seeded()), torch.arange(27).reshape(9, 3) % 2)
MAPS = (torch.randn(2, 3, 4, 4, generator=seeded()), torch.arange(32).reshape(2, 4, 4) % 3)


@pytest.mark.parametrize(
    ("metric", "example", "kind"),
    [
        ("f1", BINARY, "binary"),
        ("f1", CLASSES, "classes"),
        ("ndcg", GRADES, "grades"),
        (mg.metric("f1", multilabel=True), LABELS, "labels"),
        ("ndcg", LABELS, "binary"),  # queries of three documents each
        ("mean_iou", MAPS, None),
    ],
)
def test_shapes_and_values_tell_the_kind(
    metric: Any, example: tuple[Tensor, Tensor], kind: str | None
) -> None:
    assert target_kind(mg.metric(metric), *example) == kind


def test_whether_a_method_fits_is_asked_of_its_loss() -> None:
    auc = mg.metric("auc")
    assert takes("pairwise_ranking", auc, "binary")
    assert not takes("pairwise_ranking", auc, "classes")
    assert takes("uniloss", auc, "classes")
    assert takes("cross_entropy", auc, "classes")
    # Maps and texts have none of these kinds.
    assert takes("uniloss", mg.metric("mean_iou"), None)
    assert takes("metric_loss", mg.metric("bleu"), None)
    assert not takes("uniloss", mg.metric("span_f1", decode=mg.decode_spans), None)
    assert not takes("uniloss", mg.metric("bleu", decode=lambda scores: scores.argmax(-1)), None)
    assert not takes("focal", mg.metric("mean_iou"), None)
    # Their ordinary loss is cross-entropy of pixels and places, or the squared error of heatmaps.
    assert takes("cross_entropy", mg.metric("mean_iou"), None)
    assert takes("heatmap_mse", mg.metric("pck"), None)
    assert not takes("cross_entropy", mg.metric("pck"), None)
    assert not takes("heatmap_mse", mg.metric("mean_iou"), None)


def test_cross_entropy_of_a_label_map_is_that_of_its_pixels() -> None:
    scores, target = MAPS
    loss = Candidate("cross_entropy").loss(mg.metric("mean_iou"), 0)
    pixels = torch.nn.functional.cross_entropy(scores, target)
    torch.testing.assert_close(loss(scores, target), pixels)


def test_candidates_that_do_not_fit_are_left_out() -> None:
    auc = mg.metric("auc")
    methods = {each.method for each in fitting(challengers(auc), auc, *CLASSES)}
    assert methods == {"metric_loss", "uniloss"}
    methods = {each.method for each in fitting(challengers(auc), auc, *BINARY)}
    assert methods == {"metric_loss", "uniloss", "pairwise_ranking"}
    assert len(fitting(challengers(auc), auc, *BINARY)) == 9


def test_a_function_that_comparisons_do_not_decide_has_no_uniloss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def smooth(scores: Tensor, target: Tensor) -> Tensor:
        return -((scores - target) ** 2).mean()

    def right(scores: Tensor, target: Tensor) -> Tensor:
        return ((scores > 0) == (target > 0)).float().mean()

    for function, number in ((smooth, 0), (right, 7)):
        metric = mg.from_function(function)
        assert len(fitting(challengers(metric), metric, *BINARY)) == number
    # A metric of ours is not asked by running it.
    monkeypatch.setattr(mg.UniLoss, "losses", None)
    assert module._is_decided(mg.metric("f1"), *BINARY)


def test_errors_of_a_function_are_not_hidden() -> None:
    def broken(scores: Tensor, target: Tensor) -> Tensor:
        raise TypeError("a mistake of the user")

    metric = mg.from_function(broken)
    with pytest.raises(RuntimeError, match=r"broken raised TypeError .*: a mistake of the user"):
        fitting(challengers(metric), metric, *BINARY)
