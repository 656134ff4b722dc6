r"""What ReLoss learns from: the rank correlation of loss and metric, and the smoothness of the loss's gradient.

A loss need not have the metric's value, only its order: if one set of scores is better than another
by the metric, it should have the lower loss. So the objective is Spearman's correlation over sets,
with ranks that have a gradient, and a penalty on the gradient's length (Eqn. 7 to 9):

.. math:: O = \rho_S(\ell, m) + \lambda \, (\|\nabla_s \ell\| - 1)^2

Losses are standardised before they are ranked. The released code does not, and its correlation
depends on their scale.

The paper's penalty wants all gradients of one length. But a metric hardly changes on sets that are
nearly perfect, or hopeless, and a loss with its order cannot have the same slope there: the penalty
works against the correlation. What the paper argues for is a bound, "norm at most 1 everywhere". So
by default only gradients that stick out are penalised, those above three times the mean.
"""

from typing import Literal

import torch
from torch import Tensor

from metricgrad import ops

Rank = Literal["pairwise", "sorting_network"]
Smooth = Literal["at_most", "equal"]
_MOST = 3.0


def soft_spearman(
    losses: Tensor, truth: Tensor, *, rank: Rank = "pairwise", slope: float = 5.0
) -> Tensor:
    r"""Spearman's correlation (Eqn. 6) with a gradient for the losses, whatever their scale.

    .. math:: \rho_S = \frac{Cov(r_\ell, r_m)}{Std(r_\ell) \, Std(r_m)}

    Args:
        losses: `[S]`, one of each set; their ranks are soft.
        truth: `[S]`, the metric's values; their ranks are exact, and ties share their mean.
        rank: `"pairwise"` makes a sigmoid of every comparison, `"sorting_network"` is the paper's,
            for which the package diffsort must be installed.
        slope: how steep a comparison is, in units of the losses' spread.

    Returns:
        0-dim, in [-1, 1]; 0 where one of the two is constant.

    Example:
        >>> losses, truth = torch.tensor([0.1, 0.2, 0.4, 0.3]), torch.tensor([1.0, 2.0, 3.0, 4.0])
        >>> soft_spearman(losses, truth, slope=100.0), soft_spearman(1000 * losses, truth, slope=100.0)
        (tensor(0.8000), tensor(0.8000))

    Reference:
        ReLoss, Eqn. 6 and 7; Petersen et al., 2021, for the sorting network.
    """
    standard = ops.standardise(losses, torch.full_like(losses, 1 / max(len(losses), 1)))
    ranks = (
        ops.soft_rank(standard, slope)
        if rank == "pairwise"
        else sorting_network_rank(standard, slope)
    )
    return ops.pearson(ranks, ops.hard_rank(truth).to(ranks.dtype))


def sorting_network_rank(values: Tensor, slope: float) -> Tensor:
    """Ascending ranks by a relaxed sorting network: bitonic, of logistic swaps.

    Args:
        values: `[S]`; padded to a power of two inside.
        slope: of a swap.

    Returns:
        `[S]`, 1 for the smallest.
    """
    try:
        from diffsort import DiffSortNet
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "rank='sorting_network' needs the package diffsort: pip install 'metricgrad[sorting-network]'. "
            "rank='pairwise' needs nothing more"
        ) from None
    number = len(values)
    size = 1 << max(1, (number - 1).bit_length())
    padding = (
        values.detach().max()
        + 10.0
        + torch.arange(size - number, device=values.device, dtype=values.dtype)
    )
    network = DiffSortNet(
        "bitonic", size, steepness=slope, distribution="logistic_phi", device=values.device.type
    )
    _, permutation = network(torch.cat([values, padding]).unsqueeze(0))
    places = torch.arange(1, size + 1, device=values.device, dtype=permutation.dtype)
    return (permutation[0] * places).sum(-1)[:number].to(values.dtype)


def gradient_norms(losses: Tensor, scores: Tensor, items: Tensor | int | None = None) -> Tensor:
    r"""The length of each set's gradient, as a mean over items: :math:`\sqrt{\sum_i \|N \nabla_{s_i} \ell\|^2 / N}`.

    A loss is a mean over N items, so an item's part of the gradient is 1/N of what it would be
    alone. This length does not depend on N; that of cross-entropy lies between 0 and :math:`\sqrt
    2`.

    Args:
        losses: `[...]`, of every set.
        scores: `[..., N, *]`, what they were computed from, in the graph.
        items: `[...]`, how many of each set count; None counts all N.

    Returns:
        `[...]`, with a gradient for what made the losses.
    """
    (gradient,) = torch.autograd.grad(losses.sum(), scores, create_graph=True)
    items = gradient.shape[losses.dim()] if items is None else items
    squares = gradient.flatten(losses.dim()).square().sum(-1)
    return (items * squares + torch.finfo(squares.dtype).tiny).sqrt()


def gradient_penalty(norms: Tensor, smooth: Smooth = "equal") -> Tensor:
    r"""How far the gradients of sets are from what they should be, the mean over sets.

    .. math:: (\|\nabla_s \ell\| - 1)^2 \text{ (Eqn. 8)}, \quad \max(0, \|\nabla_s \ell\| / g - 3)^2

    The first wants every length to be 1, the second (`smooth="at_most"`) none to be above three
    times their mean g.

    Args:
        norms: `[S]`, the length of every set's gradient.
        smooth: `"equal"` or `"at_most"`.

    Returns:
        0-dim.

    Example:
        >>> scores = torch.tensor([[3.0, 1.0]], requires_grad=True)
        >>> gradient_penalty(gradient_norms(2 * scores.mean(-1), scores)).item()  # every item has the slope 2
        1.0
    """
    if smooth == "equal":
        return (norms - 1).square().mean()
    return (ops.divide(norms, norms.mean()) - _MOST).clamp(min=0).square().mean()
