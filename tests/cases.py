"""The one table of all metrics: every contract test runs over it. A new metric adds its rows here."""

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import sklearn.metrics as sk

import metricgrad as mg
from tests import references as ref
from tests.references import Reference
from tests.sets import Family


@dataclass(frozen=True)
class Case:
    """A metric with options, on one family, and what it must equal there.

    `reaches_best` is False where ideal scores cannot reach the best value, as precision at k with
    fewer positives.
    """

    name: str
    family: Family
    reference: Reference
    options: dict[str, Any] = field(default_factory=dict)
    reaches_best: bool = True

    def __str__(self) -> str:
        options = ",".join(f"{key}={value}" for key, value in self.options.items())
        return f"{self.name}({options})-{self.family}"

    @property
    def metric(self) -> mg.Metric:
        return mg.metric(self.name, **self.options)


def _confusion() -> list[Case]:
    zero = {"zero_division": 0}
    cases = [
        Case("accuracy", "binary", ref.decisions(sk.accuracy_score)),
        Case("accuracy", "multi-class", ref.decisions(sk.accuracy_score)),
        Case("accuracy", "multi-class", ref.top_k(2), {"k": 2}),
        Case("error_rate", "binary", ref.decisions(sk.zero_one_loss)),
        Case("error_rate", "multi-class", ref.decisions(sk.zero_one_loss)),
        Case("error_rate", "multi-label", ref.decisions(sk.hamming_loss), {"multilabel": True}),
        Case("hamming", "multi-label", ref.decisions(sk.hamming_loss)),
        Case("balanced_accuracy", "binary", ref.decisions(sk.balanced_accuracy_score)),
        Case("balanced_accuracy", "multi-class", ref.decisions(sk.balanced_accuracy_score)),
        Case("mcc", "binary", ref.decisions(sk.matthews_corrcoef)),
        Case("mcc", "multi-class", ref.decisions(sk.matthews_corrcoef)),
        Case("kappa", "binary", ref.decisions(sk.cohen_kappa_score)),
        Case("kappa", "multi-class", ref.decisions(sk.cohen_kappa_score)),
        Case("gmean", "binary", ref.gmean),
        Case("gmean", "multi-class", ref.gmean),
        Case("f1", "binary", ref.decisions(sk.f1_score, threshold=0.5, **zero), {"threshold": 0.5}),
        Case("fbeta", "binary", ref.decisions(sk.fbeta_score, beta=2, **zero), {"beta": 2}),
    ]
    for weights in ("linear", "quadratic"):
        reference = ref.decisions(sk.cohen_kappa_score, weights=weights, labels=range(4))
        cases.append(Case("kappa", "multi-class", reference, {"weights": weights}))
    for average in ("macro", "micro", "weighted"):
        options = {"multilabel": True, "average": average}
        cases.append(Case("accuracy", "multi-label", ref.label_accuracy(average), options))
        for name, fn in [
            ("mcc", sk.matthews_corrcoef),
            ("kappa", sk.cohen_kappa_score),
            ("balanced_accuracy", sk.balanced_accuracy_score),
            ("gmean", ref.binary_gmean),
        ]:
            cases.append(Case(name, "multi-label", ref.per_label(fn, average), options))
    averaged = {
        "precision": sk.precision_score,
        "recall": sk.recall_score,
        "f1": sk.f1_score,
        "jaccard": sk.jaccard_score,
        "fbeta": partial(sk.fbeta_score, beta=0.5),
    }
    for name, fn in averaged.items():
        own = {"beta": 0.5} if name == "fbeta" else {}
        cases.append(Case(name, "binary", ref.decisions(fn, **zero), own))
        cases.append(Case(name, "multi-class", ref.decisions(fn, average="macro", **zero), own))
        for average in ("macro", "micro", "weighted"):
            reference = ref.decisions(fn, average=average, **zero)
            cases.append(Case(name, "multi-class", reference, {**own, "average": average}))
            cases.append(
                Case(
                    name, "multi-label", reference, {**own, "average": average, "multilabel": True}
                )
            )
    return cases


def _curves() -> list[Case]:
    precise = partial(ref.recall_at_precision, min_precision=0.6)
    binary: list[tuple[str, Reference, dict[str, Any], bool]] = [
        ("auc", ref.auc, {}, True),
        ("partial_auc", partial(ref.auc, max_fpr=0.1), {}, True),
        ("partial_auc", partial(ref.auc, max_fpr=0.4), {"max_fpr": 0.4}, True),
        ("average_precision", ref.average_precision, {}, False),
        ("average_precision", ref.interpolated_average_precision, {"interpolated": True}, False),
        ("eer", ref.eer, {}, True),
        ("recall_at_precision", precise, {"min_precision": 0.6}, False),
    ]
    cases = []
    for name, reference, options, negatives in binary:
        cases.append(Case(name, "binary", reference, options))
        rest = partial(ref.one_against_rest, reference, negatives=negatives)
        cases.append(Case(name, "multi-class", rest(), options))
        cases.append(Case(name, "multi-label", rest(), {**options, "multilabel": True}))
    for name, reference, negatives in [
        ("auc", ref.auc, True),
        ("average_precision", ref.average_precision, False),
        ("eer", ref.eer, True),
    ]:
        for average in ("micro", "weighted"):
            rest = ref.one_against_rest(reference, average, negatives=negatives)
            cases.append(Case(name, "multi-class", rest, {"average": average}))
            cases.append(Case(name, "multi-label", rest, {"average": average, "multilabel": True}))
    return cases


def _ranking() -> list[Case]:
    cases = [
        Case("ndcg", "ranking", ref.ndcg),
        Case("ndcg", "ranking", partial(ref.ndcg, k=3), {"k": 3}),
        Case("ndcg", "ranking", partial(ref.ndcg, exponential=True), {"gain": "exponential"}),
        Case("map", "ranking", ref.mean_average_precision),
        Case("map", "ranking", ref.mean_average_precision_at(3), {"k": 3}),
        Case("mrr", "ranking", ref.reciprocal_rank),
        Case("mrr", "ranking", partial(ref.reciprocal_rank, k=3), {"k": 3}),
    ]
    families: tuple[Family, ...] = ("binary", "ranking")
    for family in families:
        cases.append(
            Case("precision_at_k", family, ref.precision_at(3), {"k": 3}, reaches_best=False)
        )
        cases.append(Case("precision_at_k", family, ref.precision_at(10), reaches_best=False))
        cases.append(Case("recall_at_k", family, ref.recall_at(3), {"k": 3}, reaches_best=False))
        cases.append(Case("recall_at_k", family, ref.recall_at(10)))
    return cases


def _maps_and_text() -> list[Case]:
    cases = [Case("pck", "pose", ref.pck)]
    for ignore in (None, 0, 3):
        options = {} if ignore is None else {"ignore_index": ignore}
        cases.append(
            Case("mean_iou", "segmentation", ref.segmentation(sk.jaccard_score, ignore), options)
        )
        cases.append(Case("dice", "segmentation", ref.segmentation(sk.f1_score, ignore), options))
    text: list[tuple[str, Reference, dict[str, Any]]] = [
        ("exact_match", ref.exact_match, {}),
        ("span_f1", ref.span_f1, {}),
        ("rouge_l", ref.rouge_l, {}),
        ("edit_distance", ref.edit_distance, {}),
        ("edit_distance", partial(ref.edit_distance, normalized=True), {"normalized": True}),
        ("word_error_rate", ref.word_error_rate, {}),
        ("bleu", ref.bleu, {}),
        ("bleu", partial(ref.bleu, smooth_method="floor"), {"smoothing": "floor"}),
        ("bleu", partial(ref.bleu, smooth_method="add-k"), {"smoothing": "add-k"}),
        ("bleu", partial(ref.bleu, smooth_method="none"), {"smoothing": "none"}),
        ("bleu", partial(ref.bleu, effective_order=True), {"effective_order": True}),
        ("bleu", partial(ref.bleu, max_ngram_order=2), {"max_order": 2}),
    ]
    families: tuple[Family, ...] = ("text", "text-references")
    for family in families:
        cases += [
            Case(name, family, reference, {**options, "padding": 0})
            for name, reference, options in text
        ]
    return cases


CASES = [*_confusion(), *_curves(), *_ranking(), *_maps_and_text()]
