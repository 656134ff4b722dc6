"""The loss of the sets of all processes; `surrogates/union.py` says how it is computed."""

from metricgrad.surrogates.base import Surrogate
from metricgrad.surrogates.union import AcrossRanks


def across_ranks(loss: Surrogate) -> AcrossRanks:
    r"""The same loss on the sets of all processes together (`torch.distributed`).

    .. math:: \ell(s_1 \cup \dots \cup s_W, \; y_1 \cup \dots \cup y_W)

    It is called like the loss itself, with the part of the set that this process has. Each process
    gets the value of the union and, with the gradients averaged over processes as
    `DistributedDataParallel` does it, the gradient of the union. Without a process group it is the
    loss itself.

    Tensors are joined along the first dimension: items of a flat set, or several sets. Parts
    may differ in size and may be empty. Items of one id in `groups` belong together, whichever
    process they are on. Padded sets `[B, L]` may differ in L if `where` has their shape.

    Every process must call the loss equally often, in `eval()` mode as well. If one process makes a
    different call, all processes raise the same error. A loss that draws at random must draw the
    same everywhere: give it a generator with the same seed.

    Args:
        loss: The surrogate to compute. Other wrappers go inside: `across_ranks(with_memory(loss))`.

    Returns:
        A surrogate. Its `per_set` gives the sets of all processes, by rank.

    Example:
        >>> import torch, metricgrad as mg
        >>> loss = mg.across_ranks(mg.UniLoss("average_precision"))
        >>> scores = torch.randn(8, requires_grad=True)
        >>> value = loss(scores, torch.arange(8) % 4 == 0)  # of all processes' scores
        >>> value.backward()
    """
    return AcrossRanks(loss)
