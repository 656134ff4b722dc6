"""Metrics by name: one name, one class, whatever the family of the scores.

Other libraries' names for the same metrics are understood, too (`ALIASES`): `roc_auc`, `f2` or
`ndcg@10` are a canonical name with options. A name that could mean several things is refused with
the choice spelled out (`_UNCLEAR`).
"""

import difflib
import re
from dataclasses import fields, is_dataclass
from typing import Any

import torch

from metricgrad.metrics.agreement import Accuracy, BalancedAccuracy, ErrorRate, GMean, Hamming, Mcc
from metricgrad.metrics.base import Metric
from metricgrad.metrics.bounded import PrecisionAtRecall, RecallAtPrecision
from metricgrad.metrics.confusion import F1, FBeta, Jaccard, Precision, Recall
from metricgrad.metrics.curves import Auc, AveragePrecision, Eer, PartialAuc
from metricgrad.metrics.function import FunctionMetric, from_function
from metricgrad.metrics.kappa import Kappa
from metricgrad.metrics.maps import Dice, MeanIou, Pck
from metricgrad.metrics.ndcg import Ndcg
from metricgrad.metrics.oks import OksAp
from metricgrad.metrics.ranking import Map, Mrr, PrecisionAtK, RecallAtK
from metricgrad.metrics.reexpression import ComparisonMetric
from metricgrad.metrics.text import (
    Bleu,
    CharacterErrorRate,
    EditDistance,
    ExactMatch,
    RougeL,
    SpanF1,
    WordErrorRate,
)
from metricgrad.metrics.token_decisions import TokenDecisions
from metricgrad.metrics.tokens import TextMetric, decode_spans

_CLASSES: tuple[type[Metric], ...] = (
    *(Accuracy, ErrorRate, BalancedAccuracy, Precision, Recall, FBeta, F1, Jaccard),
    *(Mcc, Kappa, GMean, Hamming),
    *(Auc, PartialAuc, AveragePrecision, Eer, RecallAtPrecision, PrecisionAtRecall),
    *(PrecisionAtK, RecallAtK, Ndcg, Map, Mrr),
    *(MeanIou, Dice, Pck, OksAp),
    *(SpanF1, ExactMatch, Bleu, RougeL, EditDistance, WordErrorRate, CharacterErrorRate),
)
_SPANS = "decode_spans"  # how a file names this function
_BY_NAME = {cls.name: cls for cls in _CLASSES}

# Other spellings of the names, as other libraries and papers have them.
_SPELLINGS = {
    "accuracy": "acc accuracy_score",
    "error_rate": "zero_one_loss",
    "balanced_accuracy": "balanced_accuracy_score",
    "precision": "precision_score ppv",
    "recall": "recall_score sensitivity tpr",
    "fbeta": "f_beta fbeta_score",
    "f1": "f1_score",
    "jaccard": "jaccard_score jaccard_index",
    "mcc": "matthews_corrcoef",
    "kappa": "cohen_kappa cohen_kappa_score",
    "gmean": "g_mean",
    "hamming": "hamming_loss",
    "auc": "auroc roc_auc roc_auc_score",
    "partial_auc": "pauc",
    "average_precision": "ap aupr auprc pr_auc average_precision_score",
    "eer": "equal_error_rate",
    "ndcg": "ndcg_score",
    "mrr": "mean_reciprocal_rank",
    "mean_iou": "miou",
    "oks_ap": "oks keypoint_ap",
    "exact_match": "em",
    "rouge_l": "rougel",
    "edit_distance": "levenshtein",
    "word_error_rate": "wer",
    "character_error_rate": "cer char_error_rate",
}
ALIASES: dict[str, tuple[str, dict[str, Any]]] = {
    spelling: (name, {}) for name, all_of in _SPELLINGS.items() for spelling in all_of.split()
} | {"qwk": ("kappa", {"weights": "quadratic"})}

# What could mean several things, or is not quite what is offered.
_BINARY_OR_MORE = "(binary scores, classes, labels)"
_UNCLEAR = {
    "mAP": f"did you mean map (ranked lists) or average_precision {_BINARY_OR_MORE}?",
    "iou": f"did you mean mean_iou (label maps) or jaccard {_BINARY_OR_MORE}?",
    "top_k_accuracy": "did you mean accuracy with k=...?",
    "specificity": "did you mean recall of -scores and 1 - target?",
    **dict.fromkeys(
        ("hit_rate", "hit_ratio", "hr"),
        "did you mean recall_at_k, which is the same where one item is relevant?",
    ),
    **dict.fromkeys(
        ("log_loss", "logloss", "cross_entropy", "crossentropy", "bce", "nll"),
        "cross-entropy is a loss with a gradient of its own: train on mg.baselines.CrossEntropy(), "
        "and measure it by mg.metric(sklearn.metrics.log_loss)",
    ),
}
_AVERAGES = ("macro", "micro", "weighted")

_ALIKE = 0.7  # how much of two names must agree for one to be a slip of the other
_ENDING = re.compile(r"@\d+$|_(score|metric|index)$")  # which no name here has
_F_NUMBER = re.compile(r"f(\d+(?:\.\d+)?)(?:_score)?")
_CUT_OFF = re.compile(r"(\w+)@(\d+)")


def metric_names() -> list[str]:
    """All canonical names that `metric` takes, by family.

    Example:
        >>> metric_names()[:3]
        ['accuracy', 'error_rate', 'balanced_accuracy']
    """
    return list(_BY_NAME)


def metric(spec: Any, **options: Any) -> Metric:
    """A metric from its name, such as `"f1"`, or from any callable.

    Args:
        spec: One of `metric_names()`, a common alias of one (`"roc_auc"`, `"f2"`, `"ndcg@10"`), a
            `Metric`, which passes through, or a callable `(scores, target) -> number`, which goes
            to `from_function`.
        **options: Options of the metric, such as `k=10` for `"ndcg"`; `metricgrad metrics NAME`
            lists them.

    Example:
        >>> metric("ndcg", k=10)
        Ndcg(k=10, gain='linear')
        >>> metric("ndcg@10") == metric("ndcg", k=10)
        True
    """
    if isinstance(spec, Metric):
        if options:
            written = ", ".join(f"{option}={value!r}" for option, value in options.items())
            raise TypeError(
                f"options go with a name, such as metric({spec.name!r}, {written}); got {written} "
                f"beside the finished metric {spec!r}"
            )
        return spec
    if isinstance(spec, type) and issubclass(spec, Metric):
        raise TypeError(
            f"pass a metric's name or an instance, such as metric({spec.name!r}); got the class "
            f"{spec.__name__}"
        )
    if not isinstance(spec, str):
        return from_function(spec, **options)
    name, implied = _resolve(spec)
    cls = _BY_NAME[name]
    known = metric_options(cls)
    unknown = [option for option in options if option not in known]
    if unknown:
        raise TypeError(f"{name} has no option {', '.join(unknown)}; it takes {', '.join(known)}")
    for option in implied.keys() & options.keys():
        raise TypeError(f"{spec!r} says {option}={implied[option]!r} already; got {option} twice")
    return cls(**implied, **options)


def _resolve(spelling: str) -> tuple[str, dict[str, Any]]:
    """The canonical name and the options that a spelling stands for."""
    plain = spelling.strip().lower().replace("-", "_").replace(" ", "_")
    word = plain.partition("@")[0]  # as in hit_rate@10
    unclear = _UNCLEAR.get(spelling) or _UNCLEAR.get(plain) or _UNCLEAR.get(word)
    if unclear is None:
        if plain in _BY_NAME:
            return plain, {}
        if plain in ALIASES:
            return ALIASES[plain]
        if beta := _F_NUMBER.fullmatch(plain):
            return "fbeta", {"beta": float(beta[1])}
        if cut := _CUT_OFF.fullmatch(plain):
            word, k = cut.groups()
            name = next((name for name in (f"{word}_at_k", word) if name in _BY_NAME), None)
            if name is not None and "k" in metric_options(_BY_NAME[name]):
                return name, {"k": int(k)}
    raise ValueError(f"there is no metric named {spelling!r}; {unclear or _nearest(plain)}")


def _nearest(plain: str) -> str:
    """What to write for a name with its average, up to three names spelled alike, or all names."""
    average = next((each for each in _AVERAGES if each in plain.split("_")), None)
    if average is not None:
        rest = "_".join(word for word in plain.split("_") if word != average)
        name = ALIASES.get(rest, (rest, {}))[0]
        if name in _BY_NAME and "average" in metric_options(_BY_NAME[name]):
            return f"did you mean {name} with average={average!r}?"
    known = [*_BY_NAME, *ALIASES]
    plain = _ENDING.sub("", plain)
    close = [plain] if plain in known else difflib.get_close_matches(plain, known, 6, _ALIKE)
    meant = list(dict.fromkeys(ALIASES[name][0] if name in ALIASES else name for name in close))
    return f"did you mean {' or '.join(meant[:3])}?" if meant else f"names: {', '.join(_BY_NAME)}"


def metric_options(cls: type[Metric]) -> dict[str, Any]:
    """The options of a metric class and their defaults; none if it is not a dataclass."""
    if not is_dataclass(cls):
        return {}
    return {option.name: option.default for option in fields(cls) if option.init}


def with_options(metric: Metric, **options: Any) -> Metric:
    """The same metric with other options; those that it does not have are left out."""
    known = metric_options(type(metric))
    changed = {option: value for option, value in options.items() if option in known}
    made = type(metric)(**{option: getattr(metric, option) for option in known} | changed)
    return made.with_rows(metric.rows) if metric.rows else made


def comparison_metric(
    spec: Any, *, generator: torch.Generator | None = None, **options: Any
) -> ComparisonMetric:
    """A metric that comparisons decide, from what `metric` takes, with options where it has them.

    A user's function is watched when it first runs, or else taken as a black box.
    """
    chosen = metric(spec)
    if isinstance(chosen, FunctionMetric):
        if not isinstance(chosen, ComparisonMetric):
            # Only a user's own function needs the package that watches it.
            from metricgrad.metrics.watching import on_sight

            chosen = on_sight(chosen, generator=generator)
    elif isinstance(chosen, TextMetric):
        chosen = TokenDecisions(metric=chosen)
    elif isinstance(chosen, ComparisonMetric):
        chosen = with_options(chosen, **options)
    if not isinstance(chosen, ComparisonMetric):
        raise TypeError(
            f"UniLoss needs a metric that is decided by comparing scores; {chosen.name} is not. "
            "Train on a learned surrogate, such as mg.ReLoss"
        )
    return chosen


def metric_config(metric: Metric) -> dict[str, Any]:
    """Name and options of a metric, ready for JSON; only the name of one that is not portable."""
    if not metric.portable:
        return {"function": metric.name}
    described = metric.described
    options = {option: getattr(described, option) for option in metric_options(type(described))}
    if options.get("decode") is decode_spans:
        options["decode"] = _SPANS
    return {"name": metric.name, "options": options}


def metric_from_config(config: dict[str, Any]) -> Metric:
    """The metric that `metric_config` described; ValueError for a function."""
    if "function" in config:
        raise ValueError(
            f"the file's metric is or contains your own function, {config['function']}, which "
            "cannot be stored in a file; pass it again: load(path, metric=...)"
        )
    name = config.get("name")
    options = config.get("options")
    if not isinstance(name, str) or not isinstance(options, dict):
        raise ValueError(f"{config!r:.60} does not describe a metric")
    if options.get("decode") == _SPANS:
        options = {**options, "decode": decode_spans}
    try:
        found = metric(name, **options)
    except TypeError as error:
        raise ValueError(f"{config!r:.60} does not describe a metric: {error}") from None
    for option, usual in metric_options(type(found)).items():
        if isinstance(usual, bool) and not isinstance(options.get(option, usual), bool):
            raise ValueError(
                f"{option} of {name} must be true or false; got {options[option]!r:.40}"
            )
    return found
