"""A complete training run of boosted trees, as `fit.py` is one of networks.

The ordinary side grows trees on log loss, or on lambdarank for queries. A hundred of them, where
there are many folds on two of these, show which of a few sizes is best. Its challenger begins with
a quarter of the trees that were best, and goes on with trees on the metric, mixed with log loss
where that knows what counts. The rule that decides between both sides is the same as for networks
(`decision.py`). In the end the trees of both grow once more, on all items.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from metricgrad.boosting.growing import Engine, Forest, TreeTask
from metricgrad.processes import clock, from_first
from metricgrad.progress import progress as to_progress
from metricgrad.surrogates import Surrogate
from metricgrad.training.candidates import ORDINARY, Candidate, fitting
from metricgrad.training.decision import OtherSplits, decide
from metricgrad.training.split import Split, SplitPlan, split_data
from metricgrad.training.trained import Finalists, Fit, kept_score_sets
from metricgrad.training.tree_trials import BLOCK, PlannedTrees, TreeData, TreeSearch
from metricgrad.training.trials import Trial, best_first

_LEAVES = (5, 15, 63)  # sizes of trees that are tried: for noisy tables, most, and clean ones
_RATE = 0.1
_MOST = 300  # trees of a trial
_SCREENED = 100  # trees that show which size is best
_START = 0.25  # of the best number of trees on the ordinary loss: where those on the metric begin
_SLOPE = 1.0
_MIXED = 0.75  # share of the ordinary loss in what stands for MetricLoss
_TRIED = 64  # items that show whether comparisons decide the metric
# Of the time: when the ordinary side must end, the challengers, and the second comparison.
_ENDS = (0.35, 0.65, 0.85)
_RANKED = "lambdarank"
ENGINES = {  # as people write them
    "lightgbm": "LightGBM",
    "xgboost": "XGBoost",
    "sklearn": "scikit-learn, on the ordinary loss only; install lightgbm to train on the metric",
}


def tree_methods(task: TreeTask) -> list[str]:
    """What trees can be grown on, the ordinary loss first."""
    return [_RANKED, "uniloss"] if task == "grades" else [ORDINARY, "uniloss", "metric_loss"]


def fits_trees(method: Any, task: TreeTask) -> bool:
    """Whether trees can be grown by a method: `"auto"`, or one of `tree_methods`."""
    return isinstance(method, str) and method in ("auto", *tree_methods(task))


@dataclass(frozen=True)
class TreeFit:
    """The settings of a run of boosted trees.

    Attributes:
        data: A table, or queries, with the metric to train for.
        engine: The library that grows the trees.
        method: `"auto"` for a search, or one of `tree_methods` to grow trees on that alone.
        options: What `mg.boosting.objective` takes, for a method on the metric.
        rate: The learning rate; None is 0.1.
        folds: Folds of cross-validation; 1 is a single split. None decides by the rarest class.
        budget: Approximate number of seconds for everything; None sets no limit.
        seed: Seed for splits, and for the sets that the metric is taken on.
        progress: Whether to show a progress bar, on a terminal.
        before: Trees of an earlier run, of the same library, to which more are added.
    """

    data: TreeData
    engine: Engine
    method: str | Surrogate = "auto"
    options: Mapping[str, Any] | None = None
    rate: float | None = None
    folds: int | None = None
    budget: float | None = None
    seed: int = 0
    progress: bool = True
    before: Forest | None = None

    def run(self) -> Fit:
        """Grows trees for the metric, and says whether that was better than the ordinary loss.

        Of several processes the first one grows the trees, and the others get them.
        """
        self._check()
        return from_first(self._run)

    def _check(self) -> None:
        """Refuses what trees cannot be grown on."""
        known = tree_methods(self.data.task)
        if not fits_trees(self.method, self.data.task):
            raise ValueError(
                f"boosted trees grow on {', '.join(known)}, or auto; got method={self.method!r}. "
                "Other losses are for model='network' and model='linear'"
            )
        if self.options and self.method not in known[1:]:
            raise ValueError(
                f"options are for a method on the metric, such as 'uniloss'; got "
                f"method={self.method!r} and options={dict(self.options)}"
            )
        if self.rate is not None and not self.rate > 0:
            raise ValueError(f"rate must be above 0; got {self.rate}")
        if self.method in known[1:] and not self._on_metric():
            raise ValueError(self._why_ordinary())

    def _run(self) -> Fit:
        started = clock()
        data = self.data
        plan = SplitPlan(data.metric, True, 1, False, self.folds, 0.2)
        split = split_data(data.items, None, plan, self.seed)
        threads = torch.get_num_threads()
        search = TreeSearch(
            data, split, self.engine, self.seed, threads, _MOST, before=self.before
        )  # fmt: skip
        ordinary = tree_methods(data.task)[0]
        contested = self.method != ordinary and self._on_metric()
        screened = len(_LEAVES) * min(_SCREENED, _MOST)
        total = (screened + (1 + contested) * _MOST) // BLOCK
        title = f"growing trees for {data.metric.name}"
        with to_progress(title, total, self.progress) as search.tell:
            search.late = self._ends(started, _ENDS[0])
            usual = _tried(search, self._ordinary_plans(ordinary))
            if not usual:
                raise KeyboardInterrupt  # there is nothing to keep yet
            search.late = self._ends(started, _ENDS[1])
            after = self._metric_plan(search.plans[usual[0]]._replace(start=_begun(usual[0].epoch)))
            contested = contested and not search.stopped
            rivals = _challengers(search, usual[0], after, self.method) if contested else []
            search.late = self._ends(started, _ENDS[2])
            if self.method not in ("auto", ordinary):
                usual = []
            again = None
            if self.method == "auto":
                same = replace(plan, folds=len(split.folds))
                again = _other_splits(search, split_data(data.items, None, same, self.seed + 1))
            decision = decide(
                split.validation, self.seed, usual, rivals, again, stopped=search.stopped
            )
            finalists = Finalists.of(
                decision, data.metric, lambda each: search.grown(search.plans[each], each.epoch)
            )
        trials = list(search.plans)
        winner = decision.winner
        taken = finalists.challenger if winner is decision.challenger else finalists.ordinary
        assert taken is not None
        assert winner.value is not None
        score_sets = kept_score_sets(trials, split.validation.items, self.seed)
        for trial in trials:
            if trial not in (decision.ordinary, decision.challenger):
                trial.forget()
        return Fit(
            model=taken.model,
            metric=data.metric,
            threshold=winner.threshold,
            value=winner.value,
            decision=decision,
            finalists=finalists,
            trials=trials,
            validation=split.validation.items,
            score_sets=score_sets,
            folds=len(split.folds),
            seconds=clock() - started,
            stopped=search.stopped,
            contested=contested and self.method == "auto",
            unit="tree",
        )

    def _on_metric(self) -> bool:
        """Whether trees can grow on the metric: by what it is, and with this library."""
        if self.engine == "sklearn":
            return False
        items = self.data.items
        batch = items.take(torch.arange(min(len(items), _TRIED)))
        classes = (self.data.classes,) if self.data.task == "classes" else ()
        source = torch.Generator().manual_seed(0)
        scores = torch.randn(*batch.y.shape, *classes, generator=source)
        metric = self.data.metric
        tried = metric.with_rows({name: row.unsqueeze(0) for name, row in batch.rows.items()})
        return bool(fitting([Candidate("uniloss")], tried, scores, batch.y))

    def _mixes(self) -> bool:
        """Whether log loss says something about the metric: not of queries, nor of amounts."""
        return self.data.task != "grades" and not self.data.own_rows

    def _why_ordinary(self) -> str:
        """Why trees cannot grow on the metric."""
        if self.engine == "sklearn":
            return (
                "scikit-learn's trees grow on the ordinary loss only; pip install lightgbm, or "
                f"xgboost, for method={self.method!r}"
            )
        return (
            f"trees cannot grow on {self.data.metric.name}, which is not decided by comparing "
            f"scores; pass method={tree_methods(self.data.task)[0]!r}"
        )

    def _ends(self, started: float, share: float) -> Callable[[], bool]:
        """Whether a share of the time is over."""
        budget = self.budget
        return lambda: budget is not None and clock() > started + share * budget

    def _ordinary_plans(self, method: str) -> list[PlannedTrees]:
        rate = _RATE if self.rate is None else self.rate
        return [
            PlannedTrees(Candidate(method, notes=(f"{leaves} leaves",)), leaves, rate)
            for leaves in _LEAVES
        ]

    def _metric_plan(self, after: PlannedTrees) -> PlannedTrees:
        """What is tried on the metric, after some trees on the ordinary loss."""
        mixed = self.method == "metric_loss" or (self.method == "auto" and self._mixes())
        given: dict[str, Any] = {"slope": _SLOPE, **(self.options or {})}
        shown = {} if mixed else {"slope": given["slope"]}
        notes = (*after.candidate.notes, f"after {after.start} trees")
        candidate = Candidate("metric_loss" if mixed else "uniloss", shown, notes=notes)
        options = {"ordinary": _MIXED if mixed else 0.0, **given}
        return after._replace(candidate=candidate, options=options)


def _tried(search: TreeSearch, plans: list[PlannedTrees]) -> list[Trial]:
    """The trial of the best plan; each is tried with fewer trees on a few folds first.

    If the user stops the search, these are the trials so far.
    """
    metric = search.data.metric
    found: list[Trial] = []
    try:
        for plan in plans:
            found.append(search.screen(plan, _SCREENED))
        best = best_first(found, metric)[0]
        return [search.run(search.plans[best], begun=best)]
    except KeyboardInterrupt:
        search.stopped = True
    whole = [trial for trial in found if trial.folds == len(search.split.folds)]
    return best_first(whole, metric)


def _challengers(search: TreeSearch, usual: Trial, plan: PlannedTrees, method: Any) -> list[Trial]:
    """The trial of a plan on the metric.

    A search first grows its trees on a few of many folds. If it does not beat the ordinary trial
    there, growing them on all folds would hardly show a gain that is not chance.
    """
    begun = None
    few = search.split.screening()
    try:
        if method == "auto" and few is not search.split:
            begun = search.screen(plan, search.most)
            known = few.validation.value(usual.scores[: len(few.folds)], usual.threshold)
            assert begun.value is not None
            if few.validation.gain(begun.value, known) <= 0:
                return []
        return [search.run(plan, begun=begun)]
    except KeyboardInterrupt:
        search.stopped = True
        return []


def _other_splits(search: TreeSearch, split: Split) -> OtherSplits:
    """Grows the trees of trials again on another split, as many as were best."""
    second = search.on(split)

    def again(trials: list[Trial]) -> list[Trial] | None:
        try:
            return [second.run(search.plans[each], each.epoch) for each in trials]
        except KeyboardInterrupt:
            search.stopped = True
            return None

    return OtherSplits(split.validation, again)


def _begun(trees: int) -> int:
    """Those of the trees that come before the metric, in whole blocks."""
    return BLOCK * max(1, round(_START * trees / BLOCK))
