"""The scores of a model as it is now: what a loss is learned from, or checked on.

A loss that is to rank models as the metric does has to see bad, middling and good models. The
checkpoints of one ordinary training are all three (ReLoss, Sec. 4.3, the generator G_M).
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from metricgrad.metrics.checks import whole
from metricgrad.surrogates.score_sets import ScoreSets
from metricgrad.training.stack import modes_kept


def collect_scores(
    model: nn.Module,
    loader: Iterable[Any],
    *,
    size: int | None = 128,
    limit: int | None = None,
    forward: Callable[[nn.Module, Any], tuple[Tensor, Tensor]] | None = None,
) -> ScoreSets:
    """The scores of a model as it is now, cut into sets.

    Call it now and then during an ordinary training and keep what it gives: `loss.learn` takes a
    list of it.

    Args:
        model: Runs in `eval()` mode without gradients; its modes are restored afterwards.
        loader: Batches `(x, y)`, such as a `DataLoader`.
        size: Items per set, N; items left over at the end are dropped. None takes the model's
            outputs as sets that already have a leading dimension, such as documents of queries.
        limit: The largest number of sets to collect; None runs through the whole loader.
        forward: Maps model and batch to scores and target, for batches of another form.

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
            if found.dim() > 1 and found.shape[-1] == 1:
                target = target.squeeze(-1) if target.shape == found.shape else target
                found = found.squeeze(-1)
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
            f"{list(other.shape)}; pad them to one length, or collect each kind on its own"
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
    if not (isinstance(batch, tuple | list) and len(batch) == 2):
        raise TypeError(
            f"the loader must give batches (x, y); got {type(batch).__name__}. For other batches "
            "pass forward=lambda model, batch: (scores, target)"
        )
    x, y = batch
    own = next(model.parameters(), None)
    return model(x if own is None else x.to(own.device)), y
