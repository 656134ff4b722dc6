"""A metric that watches its function run, and becomes a black box where it cannot."""

import functools
import logging
from dataclasses import dataclass, field

from metricgrad.metrics.base import Inputs
from metricgrad.metrics.function import FunctionMetric
from metricgrad.metrics.mistakes import loop_over_items
from metricgrad.metrics.reexpression import ComparisonMetric
from metricgrad.metrics.rows import OneSet, WithRows
from metricgrad.metrics.watching.black_boxes import BlackBoxMetric
from metricgrad.metrics.watching.comparisons import WatchError
from metricgrad.metrics.watching.replay import Habits, WatchedSet
from metricgrad.metrics.watching.sets import ComparedSet, OwnMetric

_LOG = logging.getLogger("metricgrad")
_warn = functools.cache(_LOG.warning)  # once, however many losses of a function a search makes
_CALLS = 256  # flips of a black box that are tried in a step


@dataclass(frozen=True, kw_only=True)
class WatchedMetric(OwnMetric):
    """A function in plain torch; `unseen` holds the function of `on_sight` until it has run."""

    habits: Habits = field(default_factory=Habits, init=False, repr=False, compare=False)
    unseen: list[FunctionMetric] = field(
        default_factory=list, init=False, repr=False, compare=False
    )

    def settled(self, inputs: Inputs) -> ComparisonMetric:
        """Itself as far as the function can be watched on these inputs, else a black box."""
        if not self.unseen:
            return self
        function = self.unseen[0].with_rows(self.rows)
        scores = inputs.scores.detach()
        try:
            found, _ = self.comparisons(scores, inputs.target, where=inputs.where)
        except Exception as error:
            # A function that fails unwatched as well is no metric, and this call says so.
            function(scores, inputs.target, where=inputs.where)
            refused = isinstance(error, WatchError)
            reason = error.what if refused else f"fails when it is watched ({error})"
            _warn(
                f"{function.name} is taken as a black box, as it {reason}; a step calls it up to "
                f"{_CALLS} times, so write it with torch operations on whole tensors if it is slow"
            )
            return BlackBoxMetric.of(function, flips=_CALLS, generator=self.generator)
        if not found.shape[-1]:  # a batch on which the function is constant shows nothing
            return self
        _LOG.info("%s is re-expressed by watching it", function.name)
        self.unseen.clear()
        return self

    def look(self, given: OneSet) -> ComparedSet:
        """Watches the function on one set; its rows are constants."""
        call = WithRows(self.call, given.rows)
        found = WatchedSet(call, given.scores, given.target, self.habits)
        if not self.habits.timed:
            self.habits.timed = True
            lines = [each.origin[1:] for each in found.comparisons if each.origin.line]
            if loop := loop_over_items(lines, len(given.scores)):
                _warn(
                    f"{self.name} is slow, as it loops over items in Python: {loop}, and again for "
                    "other outcomes; compute with all items at once, as (scores > 0).sum() does"
                )
        return found

    @property
    def runs(self) -> int:
        """How often it was watched or replayed; many configurations at once count as one run."""
        return self.habits.runs

    def manner(self) -> str:
        """Whether configurations are replayed all at once."""
        if self.habits.vmaps is None:
            return "not replayed yet"
        if self.habits.vmaps:
            return "replayed for many configurations at once (torch.vmap)"
        why = f"as torch.vmap cannot run it ({self.habits.reason})"
        return f"replayed for one configuration after another, {why}"
