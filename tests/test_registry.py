"""Metrics by name."""

import pytest
import torch

import metricgrad as mg


def test_names_are_those_of_the_contract() -> None:
    names = """accuracy error_rate balanced_accuracy precision recall fbeta f1 jaccard mcc kappa gmean auc partial_auc
    average_precision eer precision_at_k recall_at_k recall_at_precision hamming ndcg map mrr mean_iou dice pck span_f1
    exact_match bleu rouge_l edit_distance word_error_rate"""
    assert set(mg.metric_names()) == set(names.split())


def test_a_metric_passes_through_and_a_callable_is_wrapped() -> None:
    f1 = mg.metric("f1")
    assert mg.metric(f1) is f1
    assert mg.metric(lambda s, y: 0.25)(torch.zeros(2), torch.zeros(2)) == 0.25
    with pytest.raises(TypeError, match=r"options go with a name; F1.* got threshold besides"):
        mg.metric(f1, threshold=1)


def test_wrong_names_and_options_get_a_hint() -> None:
    with pytest.raises(ValueError, match=r"there is no metric named 'roc_auc'; did you mean .*auc"):
        mg.metric("roc_auc")
    with pytest.raises(ValueError, match="there is no metric named 'zzz'; names: accuracy, "):
        mg.metric("zzz")
    with pytest.raises(
        TypeError, match="f1 has no option treshold; it takes average, multilabel, threshold"
    ):
        mg.metric("f1", treshold=0.5)


def test_a_class_is_no_metric() -> None:
    with pytest.raises(
        TypeError, match=r"pass a metric's name or an instance, .* got the class F1"
    ):
        mg.metric(type(mg.metric("f1")))


def test_metrics_are_frozen_and_readable() -> None:
    assert repr(mg.metric("ndcg", k=5)) == "Ndcg(k=5, gain='linear')"
    with pytest.raises(AttributeError):
        mg.metric("ndcg").k = 3  # type: ignore[attr-defined]
