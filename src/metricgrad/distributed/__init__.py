"""Sets that do not fit into one process, or into one forward pass: the same loss, exactly.

The metric of a set is not the mean over its parts, so a set may not be cut like a batch of
cross-entropy. But only its scores have to be together. They are small, and all that a loss needs:

    across_ranks    gathers scores and targets of all processes; activations stay where they are
    in_chunks       computes all scores first, without a graph, then the gradient of the loss by
                    them, and runs the model a second time, chunk by chunk, to pass that on

Adding up the losses of small batches (gradient accumulation) is another loss: that of the small
sets.
"""

from metricgrad.distributed.chunks import in_chunks as in_chunks
from metricgrad.distributed.ranks import across_ranks as across_ranks
