"""How losses are learned from scores: those of the user's models, or of what those that ship saw.

A loss that is to rank models as the metric does has to see bad, middling and good models. The
checkpoints of one ordinary training are all three; `collect_scores` takes their scores.

A loss for everyone has to know sets of every size and balance, from models at every stage. Half of
the sets of a step are made up, in several sizes and numbers of classes. The other half are outputs
of small networks for scikit-learn's digits (all ten classes, or one digit against the rest), taken
at several moments of their training on cross-entropy. These are the generators G_R and G_M of
ReLoss, Sec. 4.3. The outputs of networks with other seeds are held out. Losses of text and poses
learn from networks for other tasks of the same digits (`small_tasks.py`).
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import numpy as np
import torch
from torch import Tensor, nn

from metricgrad.metrics import metric as to_metric
from metricgrad.metrics.checks import whole
from metricgrad.metrics.one_score import as_items, item_scores
from metricgrad.progress import progress as to_progress
from metricgrad.storage import read_arrays
from metricgrad.surrogates.alignment import Smooth
from metricgrad.surrogates.baselines import CrossEntropy
from metricgrad.surrogates.nets import Classification
from metricgrad.surrogates.random_sets import made_up_source
from metricgrad.surrogates.reloss import ReLoss
from metricgrad.surrogates.score_sets import ScoreSets, Source, broad, mixed, to_sets
from metricgrad.training.data import is_pair
from metricgrad.training.small_tasks import small_task, task_scores
from metricgrad.training.stack import modes_kept

SHIPPED = ("accuracy", "f1", "auc", "average_precision", "mcc")
OF_SMALL_TASKS = ("span_f1", "bleu", "edit_distance", "pck")  # of which PCK ships
_STEPS_PLACED = 150
_JUDGED_ON = "outputs of networks with other seeds"
_SIZES = (64, 256)
# The steps of a network's training at which its scores are taken.
_MOMENTS = (0, 3, 6, 10, 20, 40, 80, 160, 320)
_SET = 128  # items per set
_SETS = 64  # sets per step
_OF_CLASSES = ("accuracy", "error_rate")


def collect_scores(
    model: nn.Module,
    loader: Iterable[Any],
    *,
    size: int | None = 128,
    limit: int | None = None,
    forward: Callable[[nn.Module, Any], tuple[Tensor, Tensor]] | None = None,
) -> ScoreSets:
    """The scores of a model as it is now, cut into sets.

    Call it now and then during an ordinary training run and keep the results: `loss.learn` takes a
    list of them.

    Args:
        model: Runs in `eval()` mode without gradients; its modes are restored afterwards.
        loader: Batches `(x, y)`, such as a `DataLoader`.
        size: Items per set, N; items left over at the end are dropped. None takes the model's
            outputs as sets that already have a leading dimension, such as documents of queries.
        limit: The largest number of sets to collect; None runs through the whole loader.
        forward: A function `(model, batch)` that returns scores and target, for other batches.

    Returns:
        The sets, on the CPU: scores `[S, N, ...]` and target `[S, N, ...]`.

    Example:
        >>> import metricgrad as mg
        >>> batches = [(torch.randn(50, 4), torch.randint(3, (50,))) for _ in range(5)]
        >>> sets = mg.collect_scores(torch.nn.Linear(4, 3), batches, size=100)
        >>> sets.scores.shape, sets.target.shape
        (torch.Size([2, 100, 3]), torch.Size([2, 100]))
    """
    for name, value in (("size", size), ("limit", limit)):
        if value is not None:
            whole(name, value, 1)
    wanted = None if limit is None else limit * (size or 1)
    scores: list[Tensor] = []
    targets: list[Tensor] = []
    count = 0
    with torch.no_grad(), modes_kept(model):
        model.eval()
        for batch in loader:
            found, target = (forward or _plain)(model, batch)
            if size is None:  # the first dimension is sets, which may have one item each
                found = item_scores(None, found, target)
            else:
                found, target, _ = as_items(None, found, target)
            scores.append(found.float().cpu())
            targets.append(target.cpu())
            count += len(found)
            if wanted is not None and count >= wanted:
                break
    if count < (size or 1):
        raise ValueError(
            f"the loader gave {count} items, which make no set of {size or 1}; pass a smaller size"
        )
    other = next((each for each in scores if each.shape[1:] != scores[0].shape[1:]), None)
    if other is not None:
        raise ValueError(
            f"batches have scores of different shapes, such as {list(scores[0].shape)} and "
            f"{list(other.shape)}; pad them to one length, or collect each kind separately"
        )
    sets = ScoreSets(torch.cat(scores)[:wanted], torch.cat(targets)[:wanted])
    if size is None:
        return sets
    whole_sets = len(sets.target) // size
    return ScoreSets(
        *(part[: whole_sets * size].unflatten(0, (whole_sets, size)) for part in sets[:2])
    )


def _plain(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    """Scores and target of a batch (x, y), on the model's device."""
    if not is_pair(batch):
        raise TypeError(
            f"the loader must give batches (x, y); got {type(batch).__name__}. For other batches "
            "pass forward=lambda model, batch: (scores, target)"
        )
    x, y = batch
    own = next(model.parameters(), None)
    return model(x if own is None else x.to(own.device)), y


@dataclass(frozen=True)
class HeldOut:
    """How well a loss ranks held-out sets, beside the ordinary loss; `Ranked` describes it."""

    spearman: float
    kendall: float
    ordinary_spearman: float
    ordinary_kendall: float
    penalty: float
    best_step: int


@dataclass(frozen=True)
class Card:
    """What a loss was learned from, how, and how well it ranks; as a dictionary, ready for JSON."""

    metric: str
    learned_from: str
    judged_on: str
    held_out: HeldOut
    settings: dict[str, Any]
    parameters: int
    seconds: int
    command: str


class Taught(NamedTuple):
    """A learned loss, frozen, and its card."""

    loss: ReLoss
    card: Card


class ShippedOptions(TypedDict, total=False):
    """Options of `ReLoss` by name, for `teach(name, **as_shipped(name))`."""

    penalty: float
    smooth: Smooth
    net: nn.Module


def as_shipped(name: str, seed: int = 0, penalty: float | None = None) -> ShippedOptions:
    """The options of `ReLoss` with which the loss that ships for a metric was learned.

    The loss for accuracy has the penalty of ReLoss, Eqn. 8, on every gradient. Without it, the loss
    is nearly as flat as accuracy itself where items are far from right, and trains worse. A loss of
    whole sets needs no penalty to be smooth. `seed` is that of the network's weights, and `penalty`
    another weight than that of the loss that ships.
    """
    if name not in _OF_CLASSES:
        return {"penalty": 0.0 if penalty is None else penalty}
    net = Classification(monotone=False, generator=torch.Generator().manual_seed(seed))
    return {"penalty": 10.0 if penalty is None else penalty, "smooth": "equal", "net": net}


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
        name: Name of a metric of binary scores, or `accuracy`, `error_rate`, `span_f1`, `bleu`,
            `edit_distance` or `pck`.
        steps: Steps of learning; None makes 2,000 for metrics of binary scores, 300 for those of
            classes, and 150 for the others.
        seed: Seed for weights, sets and draws.
        scores: Score sets of your own models, in place of those of the digits; a fifth of them is
            held out.
        classes: Numbers of classes of the made-up sets, for accuracy.
        progress: Whether to show progress bars, on a terminal.
        **options: Options of `ReLoss`; `as_shipped(name)` gives those of the losses that ship.
    """
    task = small_task(name)
    metric = to_metric(name) if task is None else task.metric
    start = time.perf_counter()
    many = name in _OF_CLASSES
    if task is None and not many and metric.layout != "binary":
        raise ValueError(
            "losses can be learned for metrics of binary scores and for accuracy, "
            f"{', '.join(OF_SMALL_TASKS)}; got {name!r}"
        )
    steps = steps or (_STEPS_PLACED if task else 300 if many else 2000)
    generator = torch.Generator().manual_seed(seed)
    made = made_up(classes if many else None)
    judged_on = f"{_JUDGED_ON}, and new made-up sets"
    if task is not None:
        made = [made_up_source(metric, 8, 0, None, shape=shape) for shape in task.shapes]
    if scores is None and task is not None:
        learned_from = f"outputs of networks for {task.about} along their training"
        stored = task_scores(task, range(2), progress=progress)
        held = task_scores(task, range(2, 4), progress=progress)
        judged_on = _JUDGED_ON
    elif scores is None:
        learned_from = (
            "outputs of networks for scikit-learn's digits along their training on cross-entropy"
        )
        stored = digit_scores(many, range(2), progress=progress)
        held = [*digit_scores(many, range(2, 4), progress=progress), *made]
    else:
        learned_from = f"{sum(len(sets.target) for sets in scores)} score sets of the user's"
        stored = scores
        held = None
        judged_on = "a fifth of the user's score sets"
    loss = ReLoss(metric, generator=generator, **{"penalty": 0.0, **options})
    found = loss.learn(
        [*stored, *made],
        steps=steps,
        share=0.0,
        sets=_SETS if task is None else _SETS // 2,
        valid=held,
        progress=progress,
        generator=generator,
    )
    if task is not None:
        loss.metric = task.plain
    card = Card(
        metric=metric.name,
        learned_from=f"made-up sets and {learned_from}",
        judged_on=judged_on,
        held_out=HeldOut(*(round(value, 4) for value in found[:5]), best_step=found.step),
        settings={
            **loss.config(),
            "steps": steps,
            "sets": _SETS if task is None else _SETS // 2,
            "seed": seed,
        },
        parameters=sum(each.numel() for each in loss.parameters()),
        seconds=round(time.perf_counter() - start),
        command=f"metricgrad learn {metric.name} --steps {steps} --seed {seed} "
        f"--out {metric.name}.safetensors",
    )
    return Taught(loss, card)


def read_scores(path: str | Path) -> ScoreSets:
    """Score sets from a .npz file with arrays `scores` and `target`, `[S, N, ...]` each."""
    file = read_arrays(path)
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
    """Scores of small networks for scikit-learn's digits, along their training on cross-entropy.

    If there are `many` classes, a network tells all ten digits apart; otherwise each from the rest.
    Every seed and moment gives sets of 128 items.
    """
    from sklearn.datasets import load_digits  # here, as the library itself imports without it

    images, digits = (torch.as_tensor(np.asarray(part)) for part in load_digits(return_X_y=True))
    images = (images / 16).float()
    told_apart = [None] if many else range(10)
    tasks = [(seed, digit) for seed in seeds for digit in told_apart]
    sets = []
    with to_progress("training networks to learn from", len(tasks), progress) as tell:
        for seed, digit in tasks:
            target = digits if digit is None else digits == digit
            sets += _along_training(images, target, 100 * seed + (digit or 0))
            tell(1)
    return sets


def _along_training(x: Tensor, y: Tensor, seed: int) -> list[ScoreSets]:
    """The scores of one network at several moments of its training, on all items, cut into sets."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.Sequential(
            nn.Linear(x.shape[1], 32), nn.ReLU(), nn.Linear(32, 10 if y.dtype == torch.int64 else 1)
        )
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    ordinary = CrossEntropy()
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
