"""A user's own function as a metric that comparisons decide: write the metric, get the loss.

`reexpress(fn)` is a metric like any other: called, it calls fn. Asked for comparisons, it looks at
fn on each set, because what fn compares may depend on shapes and target:

    sets.py          the sets of a batch, side by side, and what each of them offers to a loss
    replay.py        WatchedSet runs fn on the set under a Recorder, later again under a Replayer
    watched.py       the metric itself, which becomes a black box where fn cannot be watched
    recorder.py      intercepts torch's operations and takes discrete ones apart into comparisons
    indices.py       follows the indices of argmax, sort and topk to find out what must be compared
    tape.py          what is written down: steps, comparisons, how tensors depend on the scores
    comparisons.py   comparisons with their bits, and choices, which turn bits back into indices

A function that cannot be watched is a black box (`black_boxes.py`): it is called with scores that
are made from bits.
"""

from metricgrad.metrics.watching.black_boxes import BlackBoxMetric as BlackBoxMetric
from metricgrad.metrics.watching.black_boxes import NotDecidedError as NotDecidedError
from metricgrad.metrics.watching.comparisons import WatchError as WatchError
from metricgrad.metrics.watching.watched import WatchedMetric as WatchedMetric
from metricgrad.metrics.watching.watched import on_sight as on_sight
from metricgrad.metrics.watching.watched import reexpress as reexpress
