"""The one table of all metrics: every contract test runs over it. A new metric adds its rows here.

`CASES` has a row for every path through the code and meets every law. `VARIANTS` combine options
whose code is shared (a formula and an average, say): they only meet their reference.
"""

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


_ZERO = {"zero_division": 0}
_AVERAGED = {
    "precision": sk.precision_score,
    "recall": sk.recall_score,
    "f1": sk.f1_score,
    "jaccard": sk.jaccard_score,
    "fbeta": partial(sk.fbeta_score, beta=0.5),
}
_JOINT = {
    "mcc": sk.matthews_corrcoef,
    "kappa": sk.cohen_kappa_score,
    "balanced_accuracy": sk.balanced_accuracy_score,
    "gmean": ref.binary_gmean,
}


def _averaged(name: str, family: Family, average: str) -> Case:
    options = {"beta": 0.5} if name == "fbeta" else {}
    options |= {"average": average} | ({"multilabel": True} if family == "multi-label" else {})
    return Case(name, family, ref.decisions(_AVERAGED[name], average=average, **_ZERO), options)


def _labels(name: str, average: str) -> Case:
    options = {"multilabel": True, "average": average}
    return Case(name, "multi-label", ref.per_label(_JOINT[name], average), options)


def _confusion() -> list[Case]:
    f1 = ref.decisions(sk.f1_score, threshold=0.5, **_ZERO)
    cases = [
        Case("accuracy", "binary", ref.decisions(sk.accuracy_score)),
        Case("accuracy", "multi-class", ref.decisions(sk.accuracy_score)),
        Case("accuracy", "multi-class", ref.top_k(2), {"k": 2}),
        Case("error_rate", "binary", ref.decisions(sk.zero_one_loss)),
        Case("error_rate", "multi-class", ref.decisions(sk.zero_one_loss)),
        Case("hamming", "multi-label", ref.decisions(sk.hamming_loss)),
        Case("balanced_accuracy", "binary", ref.decisions(sk.balanced_accuracy_score)),
        Case("balanced_accuracy", "multi-class", ref.decisions(sk.balanced_accuracy_score)),
        Case("mcc", "binary", ref.decisions(sk.matthews_corrcoef)),
        Case("mcc", "multi-class", ref.decisions(sk.matthews_corrcoef)),
        Case("kappa", "binary", ref.decisions(sk.cohen_kappa_score)),
        Case("kappa", "multi-class", ref.decisions(sk.cohen_kappa_score)),
        Case("gmean", "binary", ref.gmean),
        Case("gmean", "multi-class", ref.gmean),
        Case("f1", "binary", f1, {"threshold": 0.5}),
        _labels("mcc", "weighted"),
        Case(
            "accuracy",
            "multi-label",
            ref.label_accuracy("macro"),
            {"multilabel": True, "average": "macro"},
        ),
    ]
    quadratic = ref.decisions(sk.cohen_kappa_score, weights="quadratic", labels=range(4))
    cases.append(Case("kappa", "multi-class", quadratic, {"weights": "quadratic"}))
    for name, fn in _AVERAGED.items():
        own = {"beta": 0.5} if name == "fbeta" else {}
        cases.append(Case(name, "binary", ref.decisions(fn, **_ZERO), own))
        cases.append(Case(name, "multi-class", ref.decisions(fn, average="macro", **_ZERO), own))
    families: tuple[Family, ...] = ("multi-class", "multi-label")
    cases += [
        _averaged("f1", each, average) for each in families for average in ("micro", "weighted")
    ]
    return [*cases, _averaged("jaccard", "multi-label", "macro")]


def _curve(
    name: str, family: Family, reference: Reference, average: str = "macro", **options: Any
) -> Case:
    if family == "binary":
        return Case(name, family, reference, options)
    negatives = name in ("auc", "partial_auc", "eer")
    rest = ref.one_against_rest(reference, average, negatives=negatives)
    options |= {"average": average} if average != "macro" else {}
    options |= {"multilabel": True} if family == "multi-label" else {}
    return Case(name, family, rest, options)


_PRECISE = partial(ref.recall_at_precision, min_precision=0.6)
_COMPLETE = partial(ref.precision_at_recall, min_recall=0.6)
_PARTIAL = partial(ref.auc, max_fpr=0.4)


def _curves() -> list[Case]:
    cases = [
        _curve("partial_auc", "binary", partial(ref.auc, max_fpr=0.1)),
        _curve(
            "average_precision", "binary", ref.interpolated_average_precision, interpolated=True
        ),
        _curve("auc", "multi-class", ref.auc, "micro"),
        _curve("auc", "multi-label", ref.auc, "weighted"),
    ]
    families: tuple[Family, ...] = ("binary", "multi-class", "multi-label")
    for family in families:
        cases.append(_curve("auc", family, ref.auc))
        cases.append(_curve("average_precision", family, ref.average_precision))
    for family in families[:2]:
        cases.append(_curve("eer", family, ref.eer))
        cases.append(_curve("partial_auc", family, _PARTIAL, max_fpr=0.4))
        cases.append(_curve("recall_at_precision", family, _PRECISE, min_precision=0.6))
        cases.append(_curve("precision_at_recall", family, _COMPLETE, min_recall=0.6))
    return cases


def _ranking() -> list[Case]:
    return [
        Case("ndcg", "ranking", ref.ndcg),
        Case("ndcg", "ranking", partial(ref.ndcg, k=3), {"k": 3}),
        Case("ndcg", "ranking", partial(ref.ndcg, exponential=True), {"gain": "exponential"}),
        Case("map", "ranking", ref.mean_average_precision),
        Case("map", "ranking", ref.mean_average_precision_at(3), {"k": 3}),
        Case("mrr", "ranking", ref.reciprocal_rank),
        Case("mrr", "ranking", partial(ref.reciprocal_rank, k=3), {"k": 3}),
        Case("precision_at_k", "binary", ref.precision_at(3), {"k": 3}, reaches_best=False),
        Case("precision_at_k", "ranking", ref.precision_at(10), reaches_best=False),
        Case("recall_at_k", "binary", ref.recall_at(3), {"k": 3}, reaches_best=False),
        Case("recall_at_k", "ranking", ref.recall_at(10)),
    ]


_SIGMAS = (0.3, 0.5, 0.8)


def _maps() -> list[Case]:
    return [
        Case("pck", "pose", ref.pck),
        Case("oks_ap", "pose", partial(ref.oks_ap, sigmas=_SIGMAS), {"sigmas": _SIGMAS}),
        Case("mean_iou", "segmentation", ref.segmentation(sk.jaccard_score, None)),
        Case(
            "mean_iou", "segmentation", ref.segmentation(sk.jaccard_score, 0), {"ignore_index": 0}
        ),
        Case("dice", "segmentation", ref.segmentation(sk.f1_score, None)),
        Case(
            "mean_iou",
            "segmentation",
            ref.per_image(ref.segmentation(sk.jaccard_score, None)),
            {"per_image": True},
        ),
    ]


def _text(name: str, family: Family, reference: Reference, **options: Any) -> Case:
    return Case(name, family, reference, {**options, "padding": 0})


def _texts() -> list[Case]:
    normalized = partial(ref.edit_distance, normalized=True)
    cases = [
        _text("edit_distance", "text", ref.edit_distance),
        _text("edit_distance", "text-references", normalized, normalized=True),
        _text("bleu", "text", ref.bleu),
    ]
    for smoothing in ("floor", "add-k", "none"):
        smoothed = partial(ref.bleu, smooth_method=smoothing)
        cases.append(_text("bleu", "text-references", smoothed, smoothing=smoothing))
    families: tuple[Family, ...] = ("text", "text-references")
    for family in families:
        cases.append(_text("exact_match", family, ref.exact_match))
        cases.append(_text("span_f1", family, ref.span_f1))
        cases.append(_text("rouge_l", family, ref.rouge_l))
        cases.append(_text("word_error_rate", family, ref.word_error_rate))
        cases.append(_text("character_error_rate", family, ref.character_error_rate))
    return cases


def _variants() -> list[Case]:
    linear = ref.decisions(sk.cohen_kappa_score, weights="linear", labels=range(4))
    labels = {"multilabel": True}
    cases = [
        Case("kappa", "multi-class", linear, {"weights": "linear"}),
        Case("error_rate", "multi-label", ref.decisions(sk.hamming_loss), labels),
        Case("fbeta", "binary", ref.decisions(sk.fbeta_score, beta=2, **_ZERO), {"beta": 2}),
        Case(
            "mean_iou", "segmentation", ref.segmentation(sk.jaccard_score, 3), {"ignore_index": 3}
        ),
        Case("dice", "segmentation", ref.segmentation(sk.f1_score, 0), {"ignore_index": 0}),
        Case(
            "dice",
            "segmentation",
            ref.per_image(ref.segmentation(sk.f1_score, 0), ignored=0),
            {"ignore_index": 0, "per_image": True},
        ),
        Case(
            "oks_ap",
            "pose",
            partial(ref.oks_ap, sigmas=[0.4] * 3, oks=0.75),
            {"sigmas": 0.4, "oks": 0.75},
        ),
        Case("precision_at_k", "ranking", ref.precision_at(3), {"k": 3}),
        Case("recall_at_k", "ranking", ref.recall_at(3), {"k": 3}),
        _curve("average_precision", "multi-class", ref.average_precision, "weighted"),
        _curve("eer", "multi-label", ref.eer, "micro"),
        _curve("partial_auc", "multi-label", _PARTIAL, max_fpr=0.4),
        _curve("recall_at_precision", "multi-label", _PRECISE, min_precision=0.6),
        _curve("precision_at_recall", "multi-label", _COMPLETE, min_recall=0.6),
        _text("edit_distance", "text-references", ref.edit_distance),
        _text("bleu", "text-references", ref.bleu),
        _text("bleu", "text", partial(ref.bleu, effective_order=True), effective_order=True),
        _text("bleu", "text", partial(ref.bleu, max_ngram_order=2), max_order=2),
    ]
    for average in ("micro", "weighted"):
        options = {"multilabel": True, "average": average}
        cases.append(Case("accuracy", "multi-label", ref.label_accuracy(average), options))
    for average in ("macro", "micro"):
        cases += [_labels(name, average) for name in _JOINT]
        cases += [_averaged(name, "multi-label", average) for name in ("precision", "recall")]
    cases.append(_averaged("fbeta", "multi-class", "weighted"))
    return cases


CASES = [*_confusion(), *_curves(), *_ranking(), *_maps(), *_texts()]
VARIANTS = _variants()
