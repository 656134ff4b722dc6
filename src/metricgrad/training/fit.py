"""A complete training run: from a model, data and a metric to a trained model and a plain answer.

`fit` reads from top to bottom as the run goes: check the arguments, split the data, list the
candidates, search, decide, train the winner on everything. Everything is chosen on validation data:
the loss, its settings, the learning rate, the epoch, the threshold. Test data has no place here;
measure the result on data that `fit` never saw.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from metricgrad.metrics import metric as to_metric
from metricgrad.metrics.registry import metric_config
from metricgrad.processes import clock, from_first, is_first
from metricgrad.progress import progress as to_progress
from metricgrad.surrogates import Surrogate
from metricgrad.surrogates.noticing import notice_trained
from metricgrad.surrogates.wrappers import WithMemory
from metricgrad.training.arguments import FitNumbers, check_arguments, example_of
from metricgrad.training.budget import time_plan
from metricgrad.training.candidates import (
    RATES,
    candidates_of,
    challengers,
    fitting,
    ordinary_candidate,
    require_fitting,
    require_weights,
)
from metricgrad.training.data import Items, fingerprint
from metricgrad.training.decision import decide
from metricgrad.training.finalists import train_finalists
from metricgrad.training.group_kinds import refuse_unjoint, told_turns
from metricgrad.training.lessons import Lessons
from metricgrad.training.optimizers import OptimizerFactory, ScheduleFactory, on_device
from metricgrad.training.row_space import space_for
from metricgrad.training.search import (
    Search,
    all_groups,
    other_splits,
    successive_halving,
)
from metricgrad.training.shards import begin_together
from metricgrad.training.split import SplitPlan, split_data, split_dataset
from metricgrad.training.streams import read_data
from metricgrad.training.trained import Fit, kept_score_sets
from metricgrad.training.trials import Trial, TrialSettings

_ORDINARY_SHARE = 0.6  # of the time for the search, if challengers follow


def fit(
    model: nn.Module,
    train: Any,
    valid: Any = None,
    *,
    metric: Any,
    method: str | Surrogate = "auto",
    options: Mapping[str, Any] | None = None,
    epochs: int = 20,
    batch: int = 256,
    rate: float | None = None,
    decay: float = 0.0,
    clip: float | None = 1.0,
    balanced: bool = False,
    memory: int = 0,
    folds: int | None = None,
    share: float = 0.2,
    patience: int | None = None,
    budget: float | None = None,
    tune_threshold: bool = True,
    seed: int = 0,
    folder: str | Path | None = None,
    progress: bool = True,
    optimizer: OptimizerFactory | None = None,
    schedule: ScheduleFactory | None = None,
    device: str | torch.device | None = None,
) -> Fit:
    """Trains a model for a metric, and says whether that was better than the ordinary loss.

    If there is a process group, all its processes train together, and every one must call this.

    Args:
        model: A float32 or float64 module that maps features to one tensor of scores; it is trained
            in place, starting from the weights it has.
        train: `(x, y)` of arrays or tensors, a `Dataset` or a `DataLoader`. A stream without a
            length (`IterableDataset`) is read into memory. Further arguments of your own metric
            follow in the order of its parameters, `(x, y, amount)`, or by name,
            `(x, y, {"amount": amount})`. For metrics of decisions and of curves, a third part is
            the weights of the items, `(x, y, sample_weight)`.
        valid: Validation data of the same kinds, in the same order each time; of items in memory,
            at most 50,000 are used. None splits it off `train`, which then must not be a loader.
        metric: The metric to train for: a name, a `Metric` or a callable.
        method: `"auto"` for a search, the name of a loss (`cross_entropy`, `uniloss`, `reloss`,
            `soft_f_beta`, ...) or a surrogate.
        options: Options of the loss, if `method` is a name.
        epochs: Passes through the data. For items in memory, an epoch has 25 to 150 batches.
        batch: The number of items in a batch.
        rate: The learning rate, which falls to 0 during training. None tries several, for Adam.
        decay: Decoupled weight decay, as in AdamW; 0 turns it off.
        clip: Maximum norm of a gradient, to which longer ones are scaled; None does not clip.
        balanced: Whether every class gets an equal share of a batch.
        memory: How many past items join every batch (`mg.with_memory`); 0 for none.
        folds: Folds of cross-validation; 1 is a single split. None decides by the number of items
            of the rarest class. Cannot be combined with `valid` or with a `Dataset`.
        share: The share of the training data used for validation in a single split.
        patience: A trial ends after this many epochs without a better value; None never ends one.
        budget: Seconds for everything, kept to within a fifth. To stay within it, epochs, steps of
            a loss that learns first and, if necessary, challengers are left out, and trials are
            ended. Something is always trained. A resumed run gets the same time again.
        tune_threshold: Whether the threshold, if the metric has one, or the offsets of the classes
            (`mg.best_offsets`) are chosen on validation data.
        seed: Seed for splits, batches, dropout and losses that learn.
        folder: Where checkpoints are written after every epoch. The same call with the same folder,
            and a model with the weights it had at the start, continues where the first one stopped.
        progress: Whether to show a progress bar, on a terminal.
        optimizer: A function `(parameters, rate)` that makes an optimizer, such as `lambda p, rate:
            torch.optim.SGD(p, rate, momentum=0.9)`. None is Adam for many models at once, which is
            faster.
        schedule: A function `(optimizer, steps)` that makes a schedule, such as
            `CosineAnnealingLR`; it steps after every batch, and starts again after a warm start.
            None is half a cosine, to 0.
        device: Device to train on, such as `"cuda"`, to which the model is moved. None leaves the
            model where it is.

    Returns:
        The trained model with its threshold or offsets, all trials, and the decision between them.

    Example:
        >>> import metricgrad as mg
        >>> x = torch.randn(400, 5, generator=torch.Generator().manual_seed(0))
        >>> y = (x[:, 0] > 1).long()
        >>> linear = torch.nn.Linear(5, 1)
        >>> found = mg.fit(linear, (x, y), metric="f1", method="uniloss", rate=0.1, epochs=4)
        >>> found.measure(x, y) > 0.9
        True
    """
    started = clock()
    chosen = to_metric(metric)
    if isinstance(method, WithMemory):
        memory = memory or method.size
        method = method.loss
    numbers = FitNumbers(epochs, batch, folds, patience, rate, clip, budget, share, decay, memory)
    check_arguments(model, method, options, numbers)
    if optimizer is not None and decay:
        raise ValueError(
            "optimizer= has its own weight decay; set it there, and leave out decay. Got "
            f"decay={decay:g}"
        )
    on_device(model, device)
    if isinstance(method, str):
        require_fitting(method, chosen)

    # Split the data.
    if memory and chosen.row_names.required:
        raise ValueError(
            f"past items join a batch without {', '.join(chosen.row_names.required)}, which "
            f"{chosen.name} takes; pass memory=0"
        )
    if valid is None:
        train, valid = split_dataset(train, share, seed)
    dtype = next(model.parameters()).dtype
    trained = read_data("train", train, batch, chosen, dtype)
    if balanced and not isinstance(trained, Items):
        raise ValueError(
            "balanced batches are drawn from items in memory; give the loader a sampler instead"
        )
    if valid is not None:
        valid = read_data("valid", valid, batch, chosen, dtype)
    plan = SplitPlan(chosen, tune_threshold, batch, balanced, folds, share)
    more = {"seed": seed, "options": sorted(options or {}), "folder": bool(folder)}
    called = _called(plan, method) | numbers._asdict() | more
    begin_together(model, {"train": trained, "valid": valid}, called)
    space = space_for(model, trained, valid)
    split = space.split(split_data(trained, valid, plan, seed))

    # List the candidates, the ordinary loss apart from its challengers.
    usual = ordinary_candidate(chosen, split.validation.sets)
    scores, example = from_first(lambda: example_of(model, trained, chosen))
    if memory and example.rows:
        raise ValueError(
            f"past items join a batch without their {', '.join(example.rows)}; pass memory=0"
        )
    if method == "auto":
        tried = chosen.with_rows({name: row.unsqueeze(0) for name, row in example.rows.items()})
        sides = {
            "ordinary": [usual],
            "challengers": fitting(challengers(chosen), tried, scores, example.y),
        }
    else:
        side = "ordinary" if method == usual.method else "challengers"
        sides = {side: candidates_of(method, options)}
        require_weights(sides[side], example.rows)
    rates = list(RATES) if rate is None else [rate]

    # Search.
    checkpoints = None if folder is None else Path(folder)
    must_match: dict[str, Any] = {}
    if checkpoints is not None:
        if is_first():
            checkpoints.mkdir(parents=True, exist_ok=True)
        data = {"data": fingerprint(trained, valid), "model": fingerprint(model.state_dict())}
        must_match = _called(plan, method) | data
    settings = TrialSettings(
        seed, decay, clip, memory, patience, optimizer, schedule, must_match=must_match
    )
    if any(each.method == "bilevel" for side in sides.values() for each in side):
        refuse_unjoint(split, settings)
    lessons = Lessons(
        chosen, scores, example.y, split.batches, seed, folder=checkpoints,
        until=math.inf if budget is None else started + budget,
    )  # fmt: skip
    sides = {name: lessons.taught(candidates) for name, candidates in sides.items()}
    search = Search(space.model, split, settings, epochs, checkpoints, budget, started=started)
    if budget is not None:
        search.epochs, search.after = time_plan(search, list(sides.values()), rates, budget)
    groups = all_groups(search, list(sides.values()), rates, search.epochs)
    total = sum(length for _, length in groups)
    title = f"training for {chosen.name}{told_turns(model, len(rates) * len(split.folds))}"
    with to_progress(title, total, progress and is_first()) as search.tell:
        found: dict[str, list[Trial]] = {}
        for name, candidates in sides.items():
            search.share = _ORDINARY_SHARE if len(found) + 1 < len(sides) else 1.0
            found[name] = successive_halving(search, name, candidates, rates)

        # Decide.
        others = None
        if method == "auto" and valid is None:
            same = replace(plan, folds=len(split.folds))
            again = space.split(split_data(trained, None, same, seed + 1))
            others = other_splits(search, again)
        decision = decide(
            split.validation, seed, found.get("ordinary", []), found.get("challengers", []), others,
            stopped=search.stopped,
        )  # fmt: skip

    # Train on everything, and tell the story.
    finalists = train_finalists(model, search, decision, trained, plan, space)
    score_sets = kept_score_sets(search.trials, split.validation.items, seed)
    for trial in search.trials:
        if trial not in (decision.ordinary, decision.challenger):
            trial.forget()
    assert decision.winner.value is not None
    notice_trained(model, chosen, decision.winner.scores[0], split.validation.items.target[0])
    return Fit(
        model=model,
        metric=chosen,
        threshold=decision.winner.threshold,
        value=decision.winner.value,
        decision=decision,
        finalists=finalists,
        trials=search.trials,
        validation=split.validation.items,
        score_sets=score_sets,
        folds=len(split.folds),
        seconds=clock() - started,
        stopped=search.stopped,
        contested=method == "auto",
    )


def _called(plan: SplitPlan, method: Any) -> dict[str, Any]:
    """What resumed runs and all processes must share, besides numbers and data; ready for JSON."""
    loss = method
    if isinstance(method, Surrogate):
        loss = method.description() | {"weights": fingerprint(method.state_dict())}
    return {
        "metric": metric_config(plan.metric),
        "balanced": plan.balanced,
        "tune_threshold": plan.tune,
        "batch": plan.batch,
        "method": loss,
    }
