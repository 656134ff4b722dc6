"""Metrics by name."""

from typing import Any

import pytest
import torch

import metricgrad as mg
from metricgrad.metrics.registry import ALIASES, metric_options


def test_names_are_those_of_the_contract() -> None:
    names = """accuracy error_rate balanced_accuracy precision recall fbeta f1 jaccard mcc kappa
    gmean auc partial_auc average_precision eer precision_at_k recall_at_k recall_at_precision
    precision_at_recall
    hamming ndcg map mrr mean_iou dice pck oks_ap span_f1 exact_match bleu rouge_l edit_distance
    word_error_rate character_error_rate"""
    assert set(mg.metric_names()) == set(names.split())


def test_a_metric_passes_through_and_a_callable_is_wrapped() -> None:
    f1 = mg.metric("f1")
    assert mg.metric(f1) is f1
    assert mg.metric(lambda s, y: 0.25)(torch.zeros(2), torch.zeros(2)) == 0.25
    message = r"such as metric\('f1', threshold=1\); got threshold=1 beside the finished metric F1"
    with pytest.raises(TypeError, match=message):
        mg.metric(f1, threshold=1)


@pytest.mark.parametrize(
    ("typed", "name", "options"),
    [
        ("acc", "accuracy", {}),
        ("f1_score", "f1", {}),
        ("F1", "f1", {}),
        ("f2", "fbeta", {"beta": 2.0}),
        ("f0.5", "fbeta", {"beta": 0.5}),
        ("matthews_corrcoef", "mcc", {}),
        ("QWK", "kappa", {"weights": "quadratic"}),
        ("roc_auc", "auc", {}),
        ("ROC AUC", "auc", {}),
        ("auroc", "auc", {}),
        ("roc_auc_score", "auc", {}),
        ("ap", "average_precision", {}),
        ("auprc", "average_precision", {}),
        ("pr_auc", "average_precision", {}),
        ("precision@10", "precision_at_k", {"k": 10}),
        ("recall@5", "recall_at_k", {"k": 5}),
        ("ndcg@10", "ndcg", {"k": 10}),
        ("MAP@3", "map", {"k": 3}),
        ("mIoU", "mean_iou", {}),
        ("rouge-l", "rouge_l", {}),
        ("wer", "word_error_rate", {}),
        ("cer", "character_error_rate", {}),
    ],
)
def test_names_that_people_type_are_understood(
    typed: str, name: str, options: dict[str, Any]
) -> None:
    assert mg.metric(typed) == mg.metric(name, **options)


def test_aliases_are_other_spellings_of_the_names() -> None:
    names = mg.metric_names()
    assert not set(ALIASES) & set(names)
    for spelling, (name, _) in ALIASES.items():
        assert mg.metric(spelling).name == name
    assert mg.metric("ndcg@10", gain="exponential") == mg.metric("ndcg", k=10, gain="exponential")
    with pytest.raises(TypeError, match="'ndcg@10' says k=10 already; got k twice"):
        mg.metric("ndcg@10", k=5)


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("iou", r"'iou'; did you mean mean_iou \(label maps\) or jaccard \(binary"),
        ("mAP", r"'mAP'; did you mean map \(ranked lists\) or average_precision \(binary"),
        ("specificity", "recall of -scores and 1 - target"),
        ("top_k_accuracy", "accuracy with k=..."),
        ("acuracy", r"did you mean accuracy\?"),
        ("f1score", "did you mean f1"),
        ("f1@10", r"there is no metric named 'f1@10'; did you mean f1\?"),
        ("dice_score", r"did you mean dice\?"),
        ("macro_f1", "'macro_f1'; did you mean f1 with average='macro'"),
        ("f1_score_weighted", "did you mean f1 with average='weighted'"),
        ("micro_average", "'micro_average'; names: accuracy, "),
        ("hit_rate", "did you mean recall_at_k, which is the same where one item is relevant"),
        ("HR@10", "'HR@10'; did you mean recall_at_k"),
        ("logloss", r"'logloss'; cross-entropy is a loss .*train on mg\.baselines\.CrossEntropy"),
        ("rmse", "there is no metric named 'rmse'; names: accuracy, "),
        ("zzz", "there is no metric named 'zzz'; names: accuracy, "),
    ],
)
def test_unclear_names_get_a_hint(typed: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        mg.metric(typed)


def test_wrong_options_get_a_hint() -> None:
    for name in ("f1", "f1_score"):
        with pytest.raises(
            TypeError, match="f1 has no option treshold; it takes average, multilabel, threshold"
        ):
            mg.metric(name, treshold=0.5)


def test_a_class_is_no_metric() -> None:
    with pytest.raises(
        TypeError, match=r"pass a metric's name or an instance, .* got the class F1"
    ):
        mg.metric(type(mg.metric("f1")))


def test_metrics_are_frozen_and_readable() -> None:
    assert repr(mg.metric("ndcg", k=5)) == "Ndcg(k=5, gain='linear')"
    with pytest.raises(AttributeError):
        mg.metric("ndcg").k = 3  # type: ignore[attr-defined]


def test_facts_of_metrics() -> None:
    made = [mg.metric(name) for name in mg.metric_names()]
    assert all(set(each.published) <= set(metric_options(type(each))) for each in made)
    assert {each.name for each in made if each.published} == {"average_precision"}
    assert mg.metric("f1").binary_or_classes
    assert not mg.metric("f1", multilabel=True).binary_or_classes
    assert not mg.metric("recall_at_k").binary_or_classes  # no classes
    assert not mg.metric("ndcg").binary_or_classes
