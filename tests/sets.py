"""Random sets of every family, as NumPy arrays: plain, with ties, imbalanced, tiny."""

from typing import Literal

import numpy as np

Family = Literal[
    "binary",
    "multi-class",
    "multi-label",
    "ranking",
    "segmentation",
    "pose",
    "text",
    "text-references",
]
Kind = Literal["plain", "ties", "imbalanced", "tiny"]
KINDS: tuple[Kind, ...] = ("plain", "ties", "imbalanced", "tiny")

CLASSES = 4
JOINTS = 3
VOCABULARY = 6


def make_set(
    family: Family, kind: Kind, rng: np.random.Generator, size: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """One set in the family's shapes: scores float64, target float64 or int64."""
    scores, target = _MAKERS[family](rng, _size(family, kind, rng) if size is None else size, kind)
    if kind == "ties" and family == "multi-class":
        # Equal rows and equal classes; rounding would tie softmax probabilities on paper but not in
        # floats.
        scores = scores[rng.integers(0, min(4, len(scores)), len(scores))]
        scores[:, 1] = np.where(rng.random(len(scores)) < 0.5, scores[:, 0], scores[:, 1])
    elif kind == "ties":
        scores = np.round(scores * 2) / 2 + 0.0
    return scores, target


def ideal_set(family: Family, rng: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray]:
    """A set whose scores are those of a perfect model."""
    _, target = make_set(family, "plain", rng, size)
    match family:
        case "binary" | "multi-label":
            target[:2] = [[0], [1]] if family == "multi-label" else [0, 1]
            return 2.0 * target - 1, target
        case "ranking":
            target[0] = 2
            return target + 0.5 * rng.random(size), target
        case "multi-class":
            return 2.0 * (np.arange(CLASSES) == target[..., None]) - 1, target
        case "segmentation":
            target[0, 0, :2] = 1, 2
            return 2.0 * (np.arange(CLASSES)[:, None, None] == target[:, None]) - 1, target
        case "pose":
            target = target.round()
            rows, columns = np.indices((6, 7))
            x, y = target[..., 0, None, None], target[..., 1, None, None]
            return ((columns == x) & (rows == y)).astype(float), target
        case "text" | "text-references":
            first = target if family == "text" else target[:, 0]
            first[:, :5] = rng.integers(1, VOCABULARY, (size, 5))
            return 2.0 * (np.arange(VOCABULARY) == np.maximum(first, 0)[..., None]) - 1, target


def _size(family: Family, kind: Kind, rng: np.random.Generator) -> int:
    if kind == "tiny":
        return int(rng.integers(1, 4))
    if family == "segmentation" and kind == "imbalanced":
        return 50  # one pixel in a thousand
    if family in ("segmentation", "pose", "text", "text-references"):
        return int(rng.integers(1, 6))
    return 1000 if kind == "imbalanced" else int(rng.integers(2, 60))


def _binary(rng: np.random.Generator, size: int, kind: Kind) -> tuple[np.ndarray, np.ndarray]:
    target = (rng.random(size) < rng.random()).astype(np.int64)
    if kind == "imbalanced":
        target = (np.arange(size) == rng.integers(size)).astype(np.int64)
    return rng.normal(size=size) + rng.normal() + target * rng.normal(), target


def _multi_class(rng: np.random.Generator, size: int, kind: Kind) -> tuple[np.ndarray, np.ndarray]:
    target = rng.integers(0, CLASSES - 1 if kind == "tiny" else CLASSES, size)
    if kind == "imbalanced":
        target = np.where(np.arange(size) == rng.integers(size), CLASSES - 1, 0)
    return rng.normal(size=(size, CLASSES)) + (
        np.arange(CLASSES) == target[:, None]
    ) * 2 * rng.random(), target


def _multi_label(rng: np.random.Generator, size: int, kind: Kind) -> tuple[np.ndarray, np.ndarray]:
    columns = [_binary(rng, size, kind) for _ in range(CLASSES)]
    return np.stack([s for s, _ in columns], -1), np.stack([y for _, y in columns], -1)


def _ranking(rng: np.random.Generator, size: int, kind: Kind) -> tuple[np.ndarray, np.ndarray]:
    scores, target = _binary(rng, size, kind)
    return scores, target * rng.integers(1, 5, size)


def _segmentation(rng: np.random.Generator, size: int, kind: Kind) -> tuple[np.ndarray, np.ndarray]:
    target = rng.integers(0, 1 + rng.integers(CLASSES), (size, 5, 4))
    if kind == "imbalanced":
        target = np.where(
            np.arange(target.size).reshape(target.shape) == rng.integers(target.size), 3, 0
        )
    scores = rng.normal(size=(size, CLASSES, 5, 4))
    return scores + 2 * (np.arange(CLASSES)[:, None, None] == target[:, None]), target


def _pose(rng: np.random.Generator, size: int, kind: Kind) -> tuple[np.ndarray, np.ndarray]:
    joints = rng.random((size, JOINTS, 3)) * np.array([6.0, 5.0, 6.0])
    maps = rng.normal(size=(size, JOINTS, 6, 7))
    rows, columns = np.indices((6, 7))
    distance = (columns - joints[..., 0, None, None]) ** 2 + (
        rows - joints[..., 1, None, None]
    ) ** 2
    return maps + 2 * np.exp(-distance / 4), joints


def _text(rng: np.random.Generator, size: int, kind: Kind) -> tuple[np.ndarray, np.ndarray]:
    target = rng.integers(1, VOCABULARY, (size, 9))
    scores = rng.normal(size=(size, 9, VOCABULARY)) + 2 * (
        np.arange(VOCABULARY) == target[..., None]
    )
    target[np.arange(9) >= rng.integers(0, 10, (size, 1))] = -1
    return scores, target


def _text_references(
    rng: np.random.Generator, size: int, kind: Kind
) -> tuple[np.ndarray, np.ndarray]:
    scores, first = _text(rng, size, kind)
    others = [_text(rng, size, kind)[1] for _ in range(2)]
    return scores, np.stack([first, *others], 1)


_MAKERS = {
    "binary": _binary,
    "multi-class": _multi_class,
    "multi-label": _multi_label,
    "ranking": _ranking,
    "segmentation": _segmentation,
    "pose": _pose,
    "text": _text,
    "text-references": _text_references,
}
