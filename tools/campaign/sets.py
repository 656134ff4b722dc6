"""Fuzzed sets: every metric of the contract tests against formulas, and against its reference.

Sets come in batches of one shape, as the library takes them: one to three leading dimensions, 1 to
40 items, scores in float64, float32 or float16, of any size, with ties, one class only, or masked.
Each batch is compared with the formulas of `references.py`. One set in 20 is also compared with the
reference that the metric names (scikit-learn in most cases), which `tests/cases.py` lists. Metrics
of text have no formula here, so all of their sets meet that reference.
"""

import zlib
from functools import partial
from typing import Any

import numpy as np
import torch

import metricgrad as mg
from metricgrad.metrics.confusion import AveragedMetric
from tests.cases import CASES, VARIANTS
from tests.cases import Case as Row
from tests.sets import CLASSES, JOINTS, VOCABULARY
from tools.campaign import references as ref
from tools.campaign.case import Case, Outcome

BATCH = 400  # sets that are evaluated at once
SAMPLED = 20  # one set in so many meets the named reference, too
KINDS = ("plain", "plain", "ties", "one class", "rare", "huge", "tiny", "all equal")


def cases(size: int, seed: int) -> list[Case]:
    """One case for every row of the contract tests; `size` sets in total."""
    rows = [*CASES, *VARIANTS]
    each = max(1, round(size / len(rows)))
    return [Case(str(row), partial(check, row, row.metric, each, seed)) for row in rows]


def check(row: Row, metric: mg.Metric, number: int, seed: int) -> Outcome:
    """Compares a metric with its formula on a number of sets; `row` says what it must be."""
    rng = np.random.default_rng([seed, zlib.crc32(str(row).encode())])
    failures: list[str] = []
    done = 0
    while done < number:
        size = min(BATCH, number - done)
        # Softmax, which the references rank classes by, has no order where it saturates.
        largest = 1 if row.family == "multi-class" and row.name in ref.CURVES else 30
        scores, target, where, kind = fuzzed(row.family, size, rng, largest)
        found = evaluated(metric, scores, target, where, rng)
        done += size
        expected = formula(row, scores.astype(float), target, live(where, target))
        failures += differences(found, expected, kind, scores, target)
        step = 1 if expected is None else SAMPLED
        failures += sampled(row, found, scores, target, where, kind, step)
    return Outcome(f"{number:,} sets", failures)


def fuzzed(
    family: str, sets: int, rng: np.random.Generator, largest: int = 30
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None, str]:
    """A batch of sets of one size: scores, target, flags of the items that count, and its kind.

    Huge scores are those of a plain set times up to 10^largest.
    """
    kind = str(rng.choice(KINDS))
    small = family in ("segmentation", "pose", "text", "text-references")
    size = int(rng.integers(1, 4 if kind == "tiny" else 6 if small else 41))
    target = targets(family, kind, sets, size, rng)
    shape = {
        "multi-class": (sets, size, CLASSES),
        "segmentation": (sets, size, CLASSES, 5, 4),
        "pose": (sets, size, JOINTS, 6, 7),
        "text": (sets, size, 9, VOCABULARY),
        "text-references": (sets, size, 9, VOCABULARY),
    }.get(family, target.shape)
    scores = rng.normal(size=shape) * 2
    if family in ("binary", "ranking", "multi-label"):
        scores += target * rng.normal()
    if kind == "ties" and family == "multi-class":
        # Equal items and equal classes; the softmax of rounded scores has ties only on paper.
        scores = scores[:, rng.integers(0, min(4, size), size)]
        scores[..., 1] = np.where(rng.random((sets, size)) < 0.5, scores[..., 0], scores[..., 1])
    elif kind == "ties":
        scores = np.round(scores)
    elif kind == "all equal":
        scores[...] = rng.choice([0.0, 1.5, -2.0])
    elif kind == "huge":
        scores *= 10.0 ** rng.integers(0, largest)
    dtype = rng.choice(["float64", "float64", "float32", "float16"])
    # Softmax in half precision makes ties that softmax in full precision does not have.
    if family == "multi-class" or (dtype == "float16" and kind == "huge"):
        dtype = "float64"
    where = None if rng.random() < 0.6 else rng.random((sets, size)) < rng.choice([0.2, 0.8])
    return scores.astype(dtype), target, where, f"{kind}, {dtype}, {size} items"


def targets(family: str, kind: str, sets: int, size: int, rng: np.random.Generator) -> np.ndarray:
    """Ground truth in the family's shape."""
    share = {"rare": 0.05, "one class": float(rng.integers(2))}.get(kind, rng.random())
    match family:
        case "binary" | "ranking":
            flags = (rng.random((sets, size)) < share).astype(np.int64)
            return flags * rng.integers(1, 5, flags.shape) if family == "ranking" else flags
        case "multi-label":
            return (rng.random((sets, size, CLASSES)) < share).astype(np.int64)
        case "multi-class" | "segmentation":
            classes = 1 if kind == "one class" else CLASSES
            shape = (sets, size) if family == "multi-class" else (sets, size, 5, 4)
            drawn = rng.integers(0, classes, shape)
            return np.where(rng.random(shape) < 0.9, 0, drawn) if kind == "rare" else drawn
        case "pose":
            return rng.random((sets, size, JOINTS, 3)) * np.array([6.0, 5.0, 6.0])
        case _:
            shape = (sets, size, 9) if family == "text" else (sets, size, 3, 9)
            drawn = rng.integers(1, VOCABULARY, shape)
            drawn[np.arange(9) >= rng.integers(0, 10, (*shape[:-1], 1))] = -1
            return drawn


def live(where: np.ndarray | None, target: np.ndarray) -> np.ndarray:
    """Flags of the items that count, `[S, N]`."""
    return np.ones(target.shape[:2], bool) if where is None else where


def evaluated(
    metric: mg.Metric,
    scores: np.ndarray,
    target: np.ndarray,
    where: np.ndarray | None,
    rng: np.random.Generator,
) -> np.ndarray:
    """The metric's values `[S]`, of a batch laid out in one of the ways that users have."""
    parts = [torch.as_tensor(each) for each in (scores, target) if each is not None]
    flags = None if where is None else torch.as_tensor(where)
    if rng.random() < 0.3 and len(scores) % 4 == 0:
        parts = [each.unflatten(0, (2, -1, 2)) for each in parts]
        flags = None if flags is None else flags.unflatten(0, (2, -1, 2))
    if rng.random() < 0.3:  # another layout in memory
        parts = [each.movedim(0, -1).contiguous().movedim(-1, 0) for each in parts]
    # A call takes scores [S, 1] for S items of one set, as a model with one output gives them.
    call = metric.of_sets if parts[0].shape[-1] == 1 else metric
    found = call(*parts, where=flags)
    return found.reshape(-1).double().numpy()


def formula(
    row: Row, scores: np.ndarray, target: np.ndarray, live: np.ndarray
) -> np.ndarray | None:
    """The values of a row's metric by `references.py`; None for those of text."""
    name, family = row.name, row.family
    options: dict[str, Any] = {
        key: value for key, value in row.options.items() if key != "multilabel"
    }
    if name in ref.CURVES:
        return ref.curve(name, family, scores, target, live, **options)
    if name in ("ndcg", "map", "mrr", "precision_at_k", "recall_at_k"):
        return ref.ranking(name, scores, target, live, **options)
    match family:
        case "binary":
            predicted = scores[..., None] > options.get("threshold", 0.0)
            return averaged(row, "macro", predicted, target[..., None] > 0, live, True)
        case "multi-label":
            average = options.get("average", "micro")
            return averaged(row, average, scores > 0, target > 0, live, True)
        case "multi-class" if "k" in options:
            return ref.top_k(scores, target, live, options["k"])
        case "multi-class" if not isinstance(row.metric, AveragedMetric):
            matrix = ref.confusion(scores.argmax(-1), target, live, CLASSES)
            return ref.of_matrix(name, matrix, options.get("weights"))
        case "multi-class":
            each = np.arange(CLASSES)
            predicted = scores.argmax(-1)[..., None] == each
            average = options.get("average", "macro")
            return averaged(row, average, predicted, target[..., None] == each, live, False)
        case "segmentation":
            ignored = options.get("ignore_index")
            kept = np.array([each for each in range(CLASSES) if each != ignored])
            images = target.shape[1] if options.get("per_image") else 1
            pixels = (len(scores) * images, -1)
            counted = np.broadcast_to(live[..., None, None], target.shape) & (target != ignored)
            predicted = scores.argmax(2).reshape(pixels)[..., None] == kept
            true = target.reshape(pixels)[..., None] == kept
            made = ref.OF_COUNTS["jaccard" if name == "mean_iou" else "f1"]
            counted = counted.reshape(pixels)
            values = ref.averaged(made, "macro", predicted, true, counted, False)
            there = counted.any(-1).reshape(-1, images)
            return ref.ratio((values.reshape(-1, images) * there).sum(-1), there.sum(-1))
        case "pose" if name == "oks_ap":
            return ref.oks_ap(scores, target, live, **options)
        case "pose":
            return ref.pck(scores, target, live)
        case _:
            return None


def averaged(
    row: Row, average: str, predicted: np.ndarray, true: np.ndarray, live: np.ndarray, every: bool
) -> np.ndarray:
    """A row's formula of counts, for flags `[S, N, C]`."""
    beta = row.options.get("beta", 1.0)
    made = ref.fbeta(beta) if row.name == "fbeta" else ref.OF_COUNTS[row.name]
    return ref.averaged(made, average, predicted, true, live, every)


def differences(
    found: np.ndarray, expected: np.ndarray | None, kind: str, scores: Any, target: Any
) -> list[str]:
    """What is not finite, or not the expected value."""
    failures = [f"{found[at]} on a set ({kind})" for at in np.flatnonzero(~np.isfinite(found))]
    if expected is None:
        return failures
    close = np.abs(found - expected) <= 2e-5 * (1 + np.abs(expected))
    for at in np.flatnonzero(~close):
        few = scores[at].size <= 12
        shown = f": scores {scores[at].tolist()}, target {target[at].tolist()}" if few else ""
        failures.append(f"{found[at]:.6f}, not {expected[at]:.6f} ({kind}){shown}")
    return failures


def sampled(
    row: Row,
    found: np.ndarray,
    scores: np.ndarray,
    target: np.ndarray,
    where: np.ndarray | None,
    kind: str,
    step: int,
) -> list[str]:
    """Differences from the named reference, on every set that is looked at."""
    failures: list[str] = []
    flags = live(where, target)
    for at in range(0, len(found), step):
        if flags[at].any():
            kept = (scores[at][flags[at]].astype(float), target[at][flags[at]])
            expected = np.array([row.reference(*kept)])
            failures += differences(found[[at]], expected, kind, [kept[0]], [kept[1]])
    return failures
