"""The independent implementations that metrics are held to: libraries where possible, else loops.

Each takes one set as NumPy arrays and gives a float. Where the library raises, warns or answers NaN
because a set has no value of its own, the documented value stands here in plain sight.
"""

import math
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import sacrebleu
import sklearn.metrics
import torch
from rapidfuzz.distance import Levenshtein
from rouge_score.rouge_scorer import RougeScorer
from torchmetrics.functional.classification import (
    binary_precision_at_fixed_recall,
    binary_recall_at_fixed_precision,
    multilabel_accuracy,
)
from torchmetrics.functional.text import char_error_rate as torchmetrics_char_error_rate
from torchmetrics.functional.text import word_error_rate as torchmetrics_word_error_rate

sk: Any = sklearn.metrics  # its stubs are narrower than its documentation
Reference = Callable[[np.ndarray, np.ndarray], float]


def quiet(fn: Callable[..., Any], *args: Any, undefined: float = 0.0, **kwargs: Any) -> float:
    """The function's value without its warnings; `undefined` for NaN."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        value = float(fn(*args, **kwargs))
    return undefined if math.isnan(value) else value


# Decisions


def decisions(fn: Callable[..., Any], threshold: float = 0.0, **options: Any) -> Reference:
    """A scikit-learn function of decisions; NaN (no chance disagreement, no items) is 0."""

    def reference(scores: np.ndarray, target: np.ndarray) -> float:
        predicted = (
            scores.argmax(-1) if scores.ndim > target.ndim else (scores > threshold).astype(int)
        )
        return quiet(fn, target, predicted, **options)

    return reference


def gmean(scores: np.ndarray, target: np.ndarray) -> float:
    predicted = scores.argmax(-1) if scores.ndim > target.ndim else (scores > 0).astype(int)
    labels = np.unique(target) if scores.ndim > target.ndim else [0, 1]
    recalls = sk.recall_score(target, predicted, labels=labels, average=None, zero_division=0)
    return float(np.prod(recalls) ** (1 / len(labels)))


def binary_gmean(target: np.ndarray, predicted: np.ndarray) -> float:
    recalls = sk.recall_score(target, predicted, labels=[0, 1], average=None, zero_division=0)
    return float(np.sqrt(np.prod(recalls)))


def per_label(fn: Callable[..., Any], average: str) -> Reference:
    """A binary reference for each label, averaged by hand."""

    def reference(scores: np.ndarray, target: np.ndarray) -> float:
        if average == "micro":
            return quiet(fn, target.ravel(), scores.ravel() > 0)
        values = [quiet(fn, y, s > 0) for s, y in zip(scores.T, target.T, strict=True)]
        if average == "weighted":
            return float(np.average(values, weights=target.sum(0))) if target.any() else 0.0
        return float(np.mean(values))

    return reference


def label_accuracy(average: str) -> Reference:
    def reference(scores: np.ndarray, target: np.ndarray) -> float:
        predicted, truth = torch.as_tensor(scores > 0).int(), torch.as_tensor(target)
        return quiet(
            multilabel_accuracy, predicted, truth, num_labels=scores.shape[-1], average=average
        )

    return reference


def top_k(k: int) -> Reference:
    """scikit-learn without ties; with ties a stable sort, which lets the lower index win."""

    def reference(scores: np.ndarray, target: np.ndarray) -> float:
        if all(len(set(row)) == len(row) for row in scores):
            return quiet(
                sk.top_k_accuracy_score, target, scores, k=k, labels=range(scores.shape[-1])
            )
        first = np.argsort(-scores, axis=-1, kind="stable")[:, :k]
        return float(np.mean([y in row for y, row in zip(target, first, strict=True)]))

    return reference


# Curves


def auc(scores: np.ndarray, target: np.ndarray, **options: Any) -> float:
    return (
        quiet(sk.roc_auc_score, target, scores, **options)
        if 0 < target.sum() < target.size
        else 0.0
    )


def average_precision(scores: np.ndarray, target: np.ndarray) -> float:
    return quiet(sk.average_precision_score, target, scores)


def interpolated_average_precision(scores: np.ndarray, target: np.ndarray) -> float:
    if not target.any():
        return 0.0
    precision, recall, _ = sk.precision_recall_curve(target, scores)
    return float(
        sum((recall[i] - recall[i + 1]) * precision[: i + 1].max() for i in range(len(recall) - 1))
    )


def eer(scores: np.ndarray, target: np.ndarray) -> float:
    """The crossing of the ROC curve with fpr = 1 - tpr, segment by segment."""
    if not 0 < target.sum() < target.size:
        return 0.0
    fpr, tpr, _ = sk.roc_curve(target, scores, drop_intermediate=False)
    for i in range(1, len(fpr)):
        before, after = fpr[i - 1] + tpr[i - 1] - 1, fpr[i] + tpr[i] - 1
        if before < 0 <= after:
            return float(fpr[i - 1] + (fpr[i] - fpr[i - 1]) * -before / (after - before))
    raise AssertionError("a ROC curve ends at (1, 1)")


def recall_at_precision(scores: np.ndarray, target: np.ndarray, min_precision: float) -> float:
    if not target.any():
        return 0.0
    recall, _ = binary_recall_at_fixed_precision(
        _ranks(scores), torch.as_tensor(target), min_precision
    )
    return float(recall)


def precision_at_recall(scores: np.ndarray, target: np.ndarray, min_recall: float) -> float:
    if not target.any():
        return 0.0
    precision, _ = binary_precision_at_fixed_recall(
        _ranks(scores), torch.as_tensor(target), min_recall
    )
    return float(precision)


def _ranks(scores: np.ndarray) -> torch.Tensor:
    """Ranks in (0, 1) for torchmetrics, which squashes logits and then loses what saturates.

    They keep the order and every tie.
    """
    return torch.as_tensor(np.unique(scores, return_inverse=True)[1] / (len(scores) + 1))


def one_against_rest(binary: Reference, average: str = "macro", *, negatives: bool) -> Reference:
    """A binary reference for each class or label that has a value, averaged by hand."""

    def reference(scores: np.ndarray, target: np.ndarray) -> float:
        if scores.ndim > target.ndim:
            scores = torch.as_tensor(scores).softmax(-1).numpy()
            target = (np.arange(scores.shape[-1]) == target[:, None]).astype(int)
        if average == "micro":
            return binary(scores.ravel(), target.ravel())
        kept = [
            c
            for c in range(target.shape[-1])
            if target[:, c].any() and not (negatives and target[:, c].all())
        ]
        if not kept:
            return 0.0
        values = [binary(scores[:, c], target[:, c]) for c in kept]
        return float(
            np.average(values, weights=target[:, kept].sum(0) if average == "weighted" else None)
        )

    return reference


# Ranking


def ndcg(
    scores: np.ndarray, target: np.ndarray, k: int | None = None, exponential: bool = False
) -> float:
    gains = 2.0**target - 1 if exponential else target
    if len(gains) == 1:
        return float(gains[0] > 0)
    return quiet(sk.ndcg_score, gains[None], scores[None], k=k)


def mean_average_precision(scores: np.ndarray, target: np.ndarray) -> float:
    relevant = target > 0
    return (
        quiet(sk.label_ranking_average_precision_score, relevant[None], scores[None])
        if relevant.any()
        else 0.0
    )


def mean_average_precision_at(k: int) -> Reference:
    def reference(scores: np.ndarray, target: np.ndarray) -> float:
        relevant = target > 0
        total = 0.0
        for score in scores[relevant]:
            rank = int((scores >= score).sum())
            total += relevant[scores >= score].sum() / rank if rank <= k else 0.0
        return total / min(k, relevant.sum()) if relevant.any() else 0.0

    return reference


def lost_ties(scores: np.ndarray, target: np.ndarray) -> list[bool]:
    """Relevance in rank order, irrelevant items first among equal scores."""
    return [
        target[i] > 0 for i in sorted(range(len(scores)), key=lambda i: (-scores[i], target[i] > 0))
    ]


def reciprocal_rank(scores: np.ndarray, target: np.ndarray, k: int | None = None) -> float:
    ranked = lost_ties(scores, target)[:k]
    return 1 / (1 + ranked.index(True)) if True in ranked else 0.0


def precision_at(k: int) -> Reference:
    return lambda scores, target: sum(lost_ties(scores, target)[:k]) / k


def recall_at(k: int) -> Reference:
    return lambda scores, target: sum(lost_ties(scores, target)[:k]) / max(1, (target > 0).sum())


# Maps


def segmentation(fn: Callable[..., Any], ignore_index: int | None = None) -> Reference:
    def reference(scores: np.ndarray, target: np.ndarray) -> float:
        predicted, truth = scores.argmax(1).ravel(), target.ravel()
        kept = truth != ignore_index
        labels = sorted({*truth[kept], *predicted[kept]} - {ignore_index})
        return (
            quiet(fn, truth[kept], predicted[kept], labels=labels, average="macro", zero_division=0)
            if labels
            else 0.0
        )

    return reference


def per_image(reference: Reference, ignored: int | None = None) -> Reference:
    """The mean over the images with a pixel that counts."""

    def mean(scores: np.ndarray, target: np.ndarray) -> float:
        kept = [each for each in range(len(target)) if (target[each] != ignored).any()]
        values = [reference(scores[[each]], target[[each]]) for each in kept]
        return float(np.mean(values)) if values else 0.0

    return mean


def pck(
    scores: np.ndarray, joints: np.ndarray, fraction: float = 0.5, radius: float | None = None
) -> float:
    correct = []
    for maps, poses in zip(scores, joints, strict=True):
        for heatmap, joint in zip(maps, poses, strict=True):
            y, x = np.unravel_index(heatmap.argmax(), heatmap.shape)
            allowed = fraction * joint[2] if radius is None else radius
            correct.append(math.hypot(x - joint[0], y - joint[1]) <= allowed)
    return float(np.mean(correct)) if correct else 0.0


def oks_ap(
    scores: np.ndarray, target: np.ndarray, sigmas: Sequence[float], oks: float | None = None
) -> float:
    """COCO's keypoint evaluation, person by person; equal scores are passed together.

    The target has columns (x, y, area), or (x, y, area, visible, image, left, top, scale).
    """
    alone = target.shape[-1] == 3
    people = []
    for index, (maps, pose) in enumerate(zip(scores, target, strict=True)):
        left, top, scale = (0.0, 0.0, 1.0) if alone else pose[0, 5:]
        places = [np.unravel_index(each.argmax(), each.shape)[::-1] for each in maps]
        people.append(
            {
                "image": index if alone else pose[0, 4],
                "score": float(np.mean([each.max() for each in maps])),
                "found": [(left + scale * x, top + scale * y) for x, y in places],
                "joints": [(left + scale * x, top + scale * y) for x, y in pose[:, :2]],
                "area": scale**2 * pose[:, 2],
                "visible": [True] * len(pose) if alone else pose[:, 3] > 0,
            }
        )
    people = [person for person in people if any(person["visible"])]
    levels = np.linspace(0.5, 0.95, 10) if oks is None else [oks]
    values = [_pose_precision(*_matched_poses(people, sigmas, level)) for level in levels]
    return float(np.mean(values)) if people else 0.0


def _similarity(pose: dict[str, Any], person: dict[str, Any], sigmas: Sequence[float]) -> float:
    near = []
    for k, sigma in enumerate(sigmas):
        if person["visible"][k]:
            x, y = np.subtract(pose["found"][k], person["joints"][k])
            variance = (2 * sigma) ** 2
            near.append(math.exp(-(x**2 + y**2) / variance / (person["area"][k] + 1e-16) / 2))
    return sum(near) / len(near)


def _matched_poses(
    people: list[dict[str, Any]], sigmas: Sequence[float], level: float
) -> tuple[list[tuple[float, bool]], int]:
    """The score of every pose that takes part and whether it is right, and the number of people."""
    poses = []
    for image in {person["image"] for person in people}:
        members = [person for person in people if person["image"] == image]
        free = list(members)
        for pose in sorted(members, key=lambda person: -person["score"])[:20]:
            similar = [_similarity(pose, person, sigmas) for person in free]
            right = bool(similar) and max(similar) >= level
            if right:
                free.pop(int(np.argmax(similar)))
            poses.append((pose["score"], right))
    return poses, len(people)


def _pose_precision(poses: list[tuple[float, bool]], people: int) -> float:
    curve = []
    for score in {score for score, _ in poses}:
        kept = [right for other, right in poses if other >= score]
        curve.append((sum(kept) / people, sum(kept) / len(kept)))
    wanted = np.linspace(0, 1, 101)
    return float(np.mean([max([p for r, p in curve if r >= at], default=0.0) for at in wanted]))


# Text: decoded by the highest score, token 0 and negative ids being padding


def _words(ids: np.ndarray) -> list[str]:
    return [str(token) for token in ids if token > 0]


def _items(scores: np.ndarray, target: np.ndarray) -> list[tuple[list[str], list[list[str]]]]:
    """Hypothesis and references of each item, without empty references where others have words."""
    items = []
    for ids, refs in zip(
        scores.argmax(-1), target if target.ndim == 3 else target[:, None], strict=True
    ):
        references = [_words(ref) for ref in refs]
        items.append((_words(ids), [ref for ref in references if ref] or references[:1]))
    return items


def exact_match(scores: np.ndarray, target: np.ndarray) -> float:
    return float(
        np.mean([hypothesis in references for hypothesis, references in _items(scores, target)])
    )


def span_f1(scores: np.ndarray, target: np.ndarray) -> float:
    def f1(hypothesis: list[str], reference: list[str]) -> float:
        common = sum((Counter(hypothesis) & Counter(reference)).values())
        if not hypothesis or not reference:
            return float(hypothesis == reference)
        precision, recall = common / len(hypothesis), common / len(reference)
        return 2 * precision * recall / (precision + recall) if common else 0.0

    return float(np.mean([max(f1(h, r) for r in refs) for h, refs in _items(scores, target)]))


class _Split:
    def tokenize(self, text: str) -> list[str]:
        return text.split()


def rouge_l(scores: np.ndarray, target: np.ndarray) -> float:
    scorer = RougeScorer(["rougeL"], tokenizer=_Split())
    values = [
        max(scorer.score(" ".join(ref), " ".join(hypothesis))["rougeL"].fmeasure for ref in refs)
        for hypothesis, refs in _items(scores, target)
    ]
    return float(np.mean(values))


def edit_distance(scores: np.ndarray, target: np.ndarray, normalized: bool = False) -> float:
    distance = Levenshtein.normalized_distance if normalized else Levenshtein.distance
    values = [
        min(distance(hypothesis, ref) for ref in refs)
        for hypothesis, refs in _items(scores, target)
    ]
    return float(np.mean(values) if normalized else np.sum(values))


def word_error_rate(scores: np.ndarray, target: np.ndarray) -> float:
    items = _items(scores, target)
    closest = [
        min(refs, key=partial(Levenshtein.distance, hypothesis)) for hypothesis, refs in items
    ]
    if not any(closest):
        return 0.0
    return float(
        torchmetrics_word_error_rate(
            [" ".join(h) for h, _ in items], [" ".join(r) for r in closest]
        )
    )


def character_error_rate(scores: np.ndarray, target: np.ndarray) -> float:
    items = _items(scores, target)
    closest = [
        min(refs, key=partial(Levenshtein.distance, hypothesis)) for hypothesis, refs in items
    ]
    if not any(closest):
        return 0.0
    return float(
        torchmetrics_char_error_rate(["".join(h) for h, _ in items], ["".join(r) for r in closest])
    )


def bleu(scores: np.ndarray, target: np.ndarray, **options: Any) -> float:
    items = _items(scores, target)
    # sacrebleu takes references as columns and leaves out the None of items that have fewer.
    columns = [
        [refs[i] if i < len(refs) else None for _, refs in items]
        for i in range(max(len(r) for _, r in items))
    ]
    texts = [[None if ref is None else " ".join(ref) for ref in column] for column in columns]
    scorer: Any = sacrebleu.BLEU(tokenize="none", force=True, **options)
    return scorer.corpus_score([" ".join(h) for h, _ in items], texts).score / 100
