"""A user's own function as a metric that comparisons decide.

One set of scores goes through a watched function like this:

    metric.py        reexpress(fn) makes the metric; asked for comparisons, it looks at every set
    sets.py          the sets of a batch, side by side, and what each of them offers to a loss
    replay.py        WatchedSet runs fn on the set under a Recorder, later again under a Replayer
    recorder.py      intercepts torch's operations and takes discrete ones apart into comparisons
    indices.py       follows the indices of argmax, sort and topk to find out what must be compared
    tape.py          what is written down: steps, comparisons, how tensors depend on the scores
    comparisons.py   comparisons with their bits, and choices, which turn bits back into indices

A function that cannot be watched is a black box (`black_boxes.py`): it is called with scores that
are made from bits.
"""

from metricgrad.metrics.watching.black_boxes import NotDecidedError as NotDecidedError
from metricgrad.metrics.watching.metric import BlackBoxMetric as BlackBoxMetric
from metricgrad.metrics.watching.metric import WatchedMetric as WatchedMetric
from metricgrad.metrics.watching.metric import black_box as black_box
from metricgrad.metrics.watching.metric import on_sight as on_sight
from metricgrad.metrics.watching.metric import reexpress as reexpress
from metricgrad.metrics.watching.tape import WatchError as WatchError
