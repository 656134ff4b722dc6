"""The metrics written again, as plain formulas on many sets at once.

scikit-learn takes about a millisecond for a set, too long for a million of them. These formulas are
written from the definitions, by counting items and pairs of items, and share no code with the
library. A part of the sets is compared with scikit-learn besides (`sets.py`).

Every formula takes scores, target and where as NumPy arrays with one leading dimension of sets, and
gives one value per set. Division by zero gives 0, as the library has it.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

Array = Any
Formula = Callable[..., Array]


def ratio(part: Array, whole: Array) -> Array:
    """part / whole, 0 where whole is 0."""
    part = np.broadcast_to(np.asarray(part, float), np.broadcast_shapes(part.shape, whole.shape))
    return np.divide(part, whole, out=np.zeros(part.shape), where=whole != 0)


# Decisions: counts of tp, fp, fn, tn for every class or label, [S, C]

OF_COUNTS: dict[str, Formula] = {
    "precision": lambda tp, fp, fn, tn: ratio(tp, tp + fp),
    "recall": lambda tp, fp, fn, tn: ratio(tp, tp + fn),
    "f1": lambda tp, fp, fn, tn: ratio(2 * tp, 2 * tp + fp + fn),
    "jaccard": lambda tp, fp, fn, tn: ratio(tp, tp + fp + fn),
    "accuracy": lambda tp, fp, fn, tn: ratio(tp + tn, tp + fp + fn + tn),
    "error_rate": lambda tp, fp, fn, tn: ratio(fp + fn, tp + fp + fn + tn),
    "hamming": lambda tp, fp, fn, tn: ratio(fp + fn, tp + fp + fn + tn),
    "mcc": lambda tp, fp, fn, tn: ratio(
        tp * tn - fp * fn, np.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    ),
    "kappa": lambda tp, fp, fn, tn: ratio(
        2 * (tp * tn - fp * fn), (tp + fp) * (fp + tn) + (tp + fn) * (fn + tn)
    ),
    "gmean": lambda tp, fp, fn, tn: np.sqrt(ratio(tp, tp + fn) * ratio(tn, tn + fp)),
    "balanced_accuracy": lambda tp, fp, fn, tn: ratio(
        ratio(tp, tp + fn) + ratio(tn, tn + fp), (tp + fn > 0) * 1 + (tn + fp > 0)
    ),
}


def fbeta(beta: float) -> Formula:
    """(1 + b^2) tp / ((1 + b^2) tp + b^2 fn + fp)."""
    weight = beta**2
    return lambda tp, fp, fn, tn: ratio((1 + weight) * tp, (1 + weight) * tp + weight * fn + fp)


def averaged(formula: Formula, average: str, predicted: Array, true: Array, live: Array,
             every: bool) -> Array:  # fmt: skip
    """A formula of counts for flags `[S, N, C]`; macro leaves out absent classes, or none."""
    live = live[..., None]
    tp = (predicted & true & live).sum(1).astype(float)
    fp = (predicted & ~true & live).sum(1).astype(float)
    fn = (~predicted & true & live).sum(1).astype(float)
    tn = (~predicted & ~true & live).sum(1).astype(float)
    if average == "micro":
        return formula(*(each.sum(-1) for each in (tp, fp, fn, tn)))
    values = formula(tp, fp, fn, tn)
    weights = tp + fn if average == "weighted" else (tp + fp + fn > 0) | every
    return ratio((values * weights).sum(-1), np.asarray(weights, float).sum(-1))


def confusion(predicted: Array, target: Array, live: Array, classes: int) -> Array:
    """Items by true and predicted class, `[S, C, C]`."""
    each = np.arange(classes)
    rows = (target[..., None] == each) & live[..., None]
    return np.einsum("snt,snp->stp", rows * 1.0, (predicted[..., None] == each) * 1.0)


def of_matrix(name: str, matrix: Array, weights: str | None = None) -> Array:
    """Metrics of many classes that are no average over the classes."""
    true = matrix.sum(-1)
    predicted = matrix.sum(-2)
    total = matrix.sum((-1, -2))
    right = np.einsum("scc->s", matrix)
    recall = ratio(np.einsum("scc->sc", matrix), true)
    present = true > 0
    match name:
        case "accuracy":
            return ratio(right, total)
        case "error_rate":
            return ratio(total - right, total)
        case "balanced_accuracy":
            return ratio((recall * present).sum(-1), present.sum(-1))
        case "gmean":
            product = np.where(present, recall, 1.0).prod(-1)
            return product ** (1 / np.maximum(present.sum(-1), 1)) * (total > 0)
        case "mcc":
            up = right * total - (true * predicted).sum(-1)
            down = (total**2 - (predicted**2).sum(-1)) * (total**2 - (true**2).sum(-1))
            return ratio(up, np.sqrt(down))
        case _:
            far = np.abs(np.subtract.outer(np.arange(true.shape[-1]), np.arange(true.shape[-1])))
            cost = {None: far > 0, "linear": far, "quadratic": far**2}[weights]
            chance = ratio(true[..., :, None] * predicted[..., None, :], total[:, None, None])
            expected = (cost * chance).sum((-1, -2))
            return (1 - ratio((cost * matrix).sum((-1, -2)), expected)) * (expected > 0)


def top_k(scores: Array, target: Array, live: Array, k: int) -> Array:
    """Accuracy in the k highest classes, of equal ones the lower index first."""
    first = np.argsort(-scores, axis=-1, kind="stable")[..., :k]
    right = (first == target[..., None]).any(-1) & live
    return ratio(right.sum(-1), live.sum(-1))


# Order: counts over pairs of items, [S, N, N]


class Pairs:
    """For every item, how many positives and negatives are above it, and level with it."""

    def __init__(self, scores: Array, positive: Array, live: Array) -> None:
        positive = positive & live
        negative = ~positive & live
        above = scores[..., None, :] > scores[..., :, None]
        level = scores[..., None, :] == scores[..., :, None]
        self.scores = np.where(live, scores, -np.inf)
        self.positive = positive
        self.p_above = (above & positive[..., None, :]).sum(-1)
        self.p_level = (level & positive[..., None, :]).sum(-1)
        self.n_above = (above & negative[..., None, :]).sum(-1)
        self.n_level = (level & negative[..., None, :]).sum(-1)
        self.earlier = (np.tril(level, -1) & positive[..., None, :]).sum(-1)
        self.p = positive.sum(-1)
        self.n = negative.sum(-1)
        self.tp = self.p_above + self.p_level
        self.fp = self.n_above + self.n_level
        self.precision = ratio(self.tp, self.tp + self.fp)

    def over_positives(self, values: Array, whole: Array | None = None) -> Array:
        """The sum over positives, divided by their number unless told otherwise."""
        return ratio((values * self.positive).sum(-1), self.p if whole is None else whole)

    def rank(self) -> Array:
        """The rank of a positive, negatives first among equal scores."""
        return 1 + self.n_above + self.n_level + self.p_above + self.earlier

    def roc(self) -> tuple[Array, Array]:
        """False and true positive rates from (0, 0) on, thresholds falling, `[S, N + 1]`."""
        order = np.argsort(-self.scores, axis=-1, kind="stable")
        rates = []
        for count, whole in ((self.fp, self.n), (self.tp, self.p)):
            each = np.where(np.isneginf(self.scores), 1.0, ratio(count, whole[..., None]))
            each = np.take_along_axis(each, order, -1)
            rates.append(np.concatenate([np.zeros_like(each[..., :1]), each], -1))
        return rates[0], rates[1]


def auc(pairs: Pairs) -> Array:
    """Pairs of a positive above a negative, ties counting half."""
    below = pairs.n[..., None] - pairs.n_above - pairs.n_level
    return pairs.over_positives(below + 0.5 * pairs.n_level, pairs.p * pairs.n)


def average_precision(pairs: Pairs, interpolated: bool = False) -> Array:
    """Mean precision at the positives; interpolated: the best at the same or a lower threshold."""
    if not interpolated:
        return pairs.over_positives(pairs.precision)
    lower = pairs.scores[..., None, :] <= pairs.scores[..., :, None]
    lower &= ~np.isneginf(pairs.scores)[..., None, :]
    return pairs.over_positives(np.where(lower, pairs.precision[..., None, :], 0.0).max(-1))


def eer(pairs: Pairs) -> Array:
    """Where the ROC curve crosses fpr = 1 - tpr."""
    fpr, tpr = pairs.roc()
    gap = fpr + tpr - 1
    at = ((gap[..., :-1] < 0) & (gap[..., 1:] >= 0)).argmax(-1)[..., None]
    x0, x1 = np.take_along_axis(fpr, at, -1), np.take_along_axis(fpr, at + 1, -1)
    g0, g1 = np.take_along_axis(gap, at, -1), np.take_along_axis(gap, at + 1, -1)
    return (x0 + (x1 - x0) * ratio(-g0, g1 - g0))[..., 0] * (pairs.p * pairs.n > 0)


def partial_auc(pairs: Pairs, max_fpr: float = 0.1) -> Array:
    """The area up to a false positive rate, standardised as McClish does."""
    fpr, tpr = pairs.roc()
    end = np.minimum(fpr, max_fpr)
    share = ratio(end[..., 1:] - fpr[..., :-1], fpr[..., 1:] - fpr[..., :-1]).clip(min=0)
    height = tpr[..., :-1] + share * (tpr[..., 1:] - tpr[..., :-1])
    area = ((end[..., 1:] - end[..., :-1]) * (tpr[..., :-1] + height) / 2).sum(-1)
    least = max_fpr**2 / 2
    return 0.5 * (1 + (area - least) / (max_fpr - least)) * (pairs.p * pairs.n > 0)


def recall_at_precision(pairs: Pairs, min_precision: float) -> Array:
    """The highest recall among thresholds that are precise enough."""
    good = (pairs.precision >= min_precision) & ~np.isneginf(pairs.scores)
    return ratio((pairs.tp * good).max(-1), pairs.p)


def precision_at_recall(pairs: Pairs, min_recall: float) -> Array:
    """The highest precision among thresholds that find enough."""
    whole = pairs.p[..., None]
    good = (ratio(pairs.tp, whole) >= min_recall) & ~np.isneginf(pairs.scores) & (whole > 0)
    return (pairs.precision * good).max(-1)


CURVES: dict[str, Formula] = {
    "auc": auc,
    "average_precision": average_precision,
    "eer": eer,
    "partial_auc": partial_auc,
    "recall_at_precision": recall_at_precision,
    "precision_at_recall": precision_at_recall,
}


def curve(name: str, family: str, scores: Array, target: Array, live: Array, average: str = "macro",
          **options: Any) -> Array:  # fmt: skip
    """A curve of binary scores, or of each class or label against the rest."""
    if family == "binary":
        return CURVES[name](Pairs(scores, target > 0, live), **options)
    flags = target > 0
    if family == "multi-class":
        scores = torch.as_tensor(scores).softmax(-1).numpy()
        flags = target[..., None] == np.arange(scores.shape[-1])
    if average == "micro":
        flat = (len(scores), -1)
        live = np.broadcast_to(live[..., None], flags.shape).reshape(flat)
        return CURVES[name](Pairs(scores.reshape(flat), flags.reshape(flat), live), **options)
    turned = Pairs(scores.swapaxes(1, 2), flags.swapaxes(1, 2), live[:, None])
    values = CURVES[name](turned, **options)
    negatives = name in ("auc", "partial_auc", "eer")
    kept = (turned.p > 0) & ((turned.n > 0) | (not negatives))
    weights = kept * (turned.p if average == "weighted" else 1.0)
    return ratio((values * weights).sum(-1), weights.sum(-1))


def ranking(name: str, scores: Array, target: Array, live: Array, k: int | None = None,
            gain: str = "linear") -> Array:  # fmt: skip
    """Metrics of a query's documents."""
    pairs = Pairs(scores, target > 0, live)
    size = scores.shape[-1]
    match name:
        case "map":
            cut = size if k is None else k
            values = pairs.precision * (pairs.tp + pairs.fp <= cut)
            return pairs.over_positives(values, np.minimum(pairs.p, cut))
        case "mrr":
            rank = np.where(pairs.positive, pairs.rank(), np.inf).min(-1)
            return np.where(rank <= (k or size), 1 / rank, 0.0)
        case "precision_at_k" | "recall_at_k":
            k = 10 if k is None else k
            whole = np.full(len(scores), k) if name == "precision_at_k" else pairs.p
            return pairs.over_positives(pairs.rank() <= k, whole)
        case _:
            gains = np.where(live, 2.0**target - 1 if gain == "exponential" else target, 0.0)
            places = np.arange(1, size + 1)
            discount = np.where(places <= (k or size), 1 / np.log2(places + 1), 0.0)
            summed = np.concatenate([[0.0], discount.cumsum()])
            above = pairs.p_above + pairs.n_above
            level = np.maximum(pairs.p_level + pairs.n_level, 1)
            mean = (summed[np.minimum(above + level, size)] - summed[above]) / level
            ideal = (np.sort(gains, -1)[..., ::-1] * discount).sum(-1)
            return ratio((gains * mean).sum(-1), ideal)


def oks_ap(
    scores: Array, target: Array, live: Array, sigmas: Array, oks: float | None = None
) -> Array:
    """Average precision of poses, each person alone in an image, `[S]`."""
    sigmas = np.broadcast_to(sigmas, scores.shape[2])
    width = scores.shape[-1]
    pixels = scores.reshape(*scores.shape[:-2], -1)
    highest = pixels.argmax(-1)
    far = (highest % width - target[..., 0]) ** 2 + (highest // width - target[..., 1]) ** 2
    similar = np.exp(-far / (8 * sigmas**2 * (target[..., 2] + 1e-16))).mean(-1)
    sure = np.where(live, pixels.max(-1).mean(-1), -np.inf)
    above = (sure[:, None, :] >= sure[:, :, None]) & live[:, None, :]
    people = live.sum(-1)
    values = []
    for level in np.linspace(0.5, 0.95, 10) if oks is None else [oks]:
        hits = (above & (similar >= level)[:, None, :]).sum(-1)
        precision = ratio(hits, above.sum(-1)) * live
        recall = ratio(hits, people[:, None])
        for point in np.linspace(0, 1, 101):
            values.append(np.where(recall >= point, precision, 0.0).max(-1))
    return np.mean(values, 0)


def pck(scores: Array, joints: Array, live: Array) -> Array:
    """Joints whose highest pixel is within half the stated size."""
    width = scores.shape[-1]
    highest = scores.reshape(*scores.shape[:-2], -1).argmax(-1)
    far = np.hypot(highest % width - joints[..., 0], highest // width - joints[..., 1])
    right = (far <= 0.5 * joints[..., 2]) & live[..., None]
    return ratio(right.sum((1, 2)), live.sum(1) * scores.shape[2])
