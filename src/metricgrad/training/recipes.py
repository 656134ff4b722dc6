"""How the losses that ship were learned: from made-up sets, and from models of data that comes with scikit-learn.

A loss for everyone has to know sets of every size and balance, and of models at every stage. Half
of the sets of a step are made up (`surrogates/sources.py`, several sizes and numbers of classes);
the other half are outputs of small networks for scikit-learn's digits (all ten classes, or one
digit against the rest), taken along their training on cross-entropy: G_R and G_M of ReLoss, Sec.
4.3. What is held out are the outputs of networks of other seeds.
"""

import time
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from metricgrad.metrics import metric as to_metric
from metricgrad.progress import progress as to_progress
from metricgrad.surrogates.baselines import CrossEntropy
from metricgrad.surrogates.exam import Ranked
from metricgrad.surrogates.nets import Classification
from metricgrad.surrogates.reloss import ReLoss
from metricgrad.surrogates.score_sets import ScoreSets, to_sets
from metricgrad.surrogates.sources import Source, broad, mixed
from metricgrad.training.collecting import collect_scores

SHIPPED = ("accuracy", "f1", "auc", "average_precision", "mcc")
_SIZES = (64, 256)
_MOMENTS = (
    0,
    3,
    6,
    10,
    20,
    40,
    80,
    160,
    320,
)  # steps of a network's training at which its scores are taken
_SET = 128
_SETS = 64  # in a step
_OF_CLASSES = ("accuracy", "error_rate")


class Taught(NamedTuple):
    """A loss and its card.

    Attributes:
        loss: learned and frozen.
        card: what it was learned from, how, and how well it ranks; ready for JSON.
    """

    loss: ReLoss
    card: dict[str, Any]


def as_shipped(name: str, seed: int = 0) -> dict[str, Any]:
    """The options of `ReLoss` with which the loss that ships for a metric was learned.

    Accuracy's has the penalty of ReLoss, Eqn. 8, on every gradient: without it the loss is nearly
    as flat as accuracy where items are far from right, and trains worse. A loss of sets needs no
    penalty to be smooth.

    Args:
        name: of the metric.
        seed: of the network's weights.

    Returns:
        Arguments for `teach`.
    """
    if name not in _OF_CLASSES:
        return {"penalty": 0.0}
    net = Classification(monotone=False, generator=torch.Generator().manual_seed(seed))
    return {"penalty": 10.0, "smooth": "equal", "net": net}


def teach(
    name: str,
    *,
    steps: int | None = None,
    seed: int = 0,
    scores: list[ScoreSets] | None = None,
    classes: Sequence[int] = (3, 10, 30),
    progress: bool = True,
    **options: Any,
) -> Taught:
    """A loss for a metric, learned from what those that ship were learned from.

    Args:
        name: of a metric, for binary scores or classes.
        steps: of learning; None makes 300 for accuracy, whose loss sees one number of an item, and
            2,000 for others.
        seed: of everything random.
        scores: score sets of the user's own models, in place of those of the digits; a fifth of
            them is held out.
        classes: numbers of classes of made-up sets, for accuracy.
        progress: shows bars, on a terminal.
        **options: of `ReLoss`; those of the losses that ship are `as_shipped(name)`.

    Returns:
        The loss, and what a reader wants to know of it.
    """
    metric, start = to_metric(name), time.perf_counter()
    many = name in _OF_CLASSES
    if not many and "binary" not in metric.families:
        raise ValueError(
            f"losses are taught for metrics of binary scores and for accuracy; got {name!r}"
        )
    steps = steps or (300 if many else 2000)
    generator = torch.Generator().manual_seed(seed)
    made = made_up(classes if many else None)
    if scores is None:
        learned_from = (
            "outputs of networks for scikit-learn's digits along their training on cross-entropy"
        )
        stored, held = (
            digit_scores(many, group, progress=progress) for group in (range(2), range(2, 4))
        )
        held = [*held, *made]
    else:
        learned_from, stored, held = (
            f"{sum(len(sets.target) for sets in scores)} score sets of the user's",
            scores,
            None,
        )
    loss = ReLoss(metric, generator=generator, **{"penalty": 0.0, **options})
    found = loss.learn(
        [*stored, *made],
        steps=steps,
        share=0.0,
        sets=_SETS,
        valid=held,
        progress=progress,
        generator=generator,
    )
    return Taught(loss, _card(loss, found, learned_from, steps, seed, time.perf_counter() - start))


def read_scores(path: str | Path) -> ScoreSets:
    """Score sets from a .npz file with the arrays `scores` and `target`, each with a leading dimension of sets.

    Args:
        path: the file.

    Returns:
        The sets.
    """
    if not zipfile.is_zipfile(path):
        raise ValueError(f"{path} is {'not a .npz file' if Path(path).exists() else 'not there'}")
    with np.load(path) as file:
        missing = [name for name in ("scores", "target") if name not in file]
        if missing:
            raise ValueError(
                f"{path} has no array {' and '.join(missing)}; it has {', '.join(file) or 'none'}"
            )
        for name in ("scores", "target"):
            if file[name].dtype.kind not in "fiub":
                raise ValueError(
                    f"the array {name} of {path} must hold numbers; it holds {file[name].dtype}"
                )
        return to_sets((torch.as_tensor(file["scores"]).float(), torch.as_tensor(file["target"])))


def made_up(classes: Sequence[int] | None) -> list[Source]:
    """Sources of made-up sets: of several numbers of classes, or binary ones of several sizes."""
    if classes is not None:
        return [broad(_SETS // 8, _SET, classes=number) for number in classes]
    return [source(_SETS // 8, size) for size in _SIZES for source in (broad, mixed)]


def digit_scores(many: bool, seeds: Iterable[int], *, progress: bool = True) -> list[ScoreSets]:
    """Scores of small networks for digits, along their training on cross-entropy.

    Args:
        many: all ten classes; otherwise each digit against the rest.
        seeds: of the networks, one training each.
        progress: shows a bar, on a terminal.

    Returns:
        For every seed and moment, sets of 128 items.
    """
    images, digits = (torch.as_tensor(np.asarray(part)) for part in load_digits(return_X_y=True))
    images = (images / 16).float()
    sets = []
    tasks = (
        [(seed, None) for seed in seeds]
        if many
        else [(seed, digit) for seed in seeds for digit in range(10)]
    )
    with to_progress("training networks to learn from", len(tasks), progress) as tell:
        for seed, digit in tasks:
            sets += _along_training(
                images, digits if digit is None else digits == digit, 100 * seed + (digit or 0)
            )
            tell(1)
    return sets


def _along_training(x: Tensor, y: Tensor, seed: int) -> list[ScoreSets]:
    """The scores of one network at several moments of its training, on all items, cut into sets."""
    generator, found = torch.Generator().manual_seed(seed), []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.Sequential(
            nn.Linear(x.shape[1], 32), nn.ReLU(), nn.Linear(32, 10 if y.dtype == torch.int64 else 1)
        )
    optimizer, ordinary = torch.optim.Adam(model.parameters(), 3e-3), CrossEntropy()
    for step in range(max(_MOMENTS) + 1):
        if step in _MOMENTS:
            order = torch.randperm(len(y), generator=generator)
            found.append(collect_scores(model, [(x[order], y[order])], size=_SET))
        batch = torch.randint(len(y), (64,), generator=generator)
        value = ordinary(model(x[batch]), y[batch])
        optimizer.zero_grad(set_to_none=True)
        value.backward()
        optimizer.step()
    return found


def _card(
    loss: ReLoss, found: Ranked, learned_from: str, steps: int, seed: int, seconds: float
) -> dict[str, Any]:
    name = loss.metric.name
    rounded = {
        field: round(value, 4)
        for field, value in found._asdict().items()
        if isinstance(value, float)
    }
    return {
        "metric": name,
        "learned_from": f"made-up sets and {learned_from}",
        "held_out": {**rounded, "best_step": found.step},
        "settings": {**loss.config(), "steps": steps, "sets": _SETS, "seed": seed},
        "parameters": sum(each.numel() for each in loss.parameters()),
        "seconds": round(seconds),
        "command": f"metricgrad learn {name} --steps {steps} --seed {seed} --out {name}.safetensors",
    }
