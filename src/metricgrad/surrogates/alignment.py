r"""Alignment of a loss with a metric: rank correlation over sets, to measure it and to learn it.

A loss is a good guide to a metric if it falls wherever the metric gets better. It need not have the
metric's value, only its order over sets (batches of several models, checkpoints of one), and that
is a rank correlation, of which 1 means the same order. `rank_correlation` measures it for any loss
(ReLoss, Table 1). ReLoss learns from it, with ranks that have a gradient, and a penalty on the
length of the loss's gradient (Eqn. 7 to 9):

.. math:: O = \rho_S(\ell, m) + \lambda \, (\|\nabla_s \ell\| - 1)^2

Losses are standardised before they are ranked. The released code does not, and its correlation
depends on their scale.

The paper's penalty wants all gradients of one length. But a metric hardly changes on sets that are
nearly perfect, or hopeless, and a loss with its order cannot have the same slope there: the penalty
works against the correlation. What the paper argues for is a bound, "norm at most 1 everywhere". So
by default only gradients that stick out are penalised, those above three times the mean.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from metricgrad import ops
from metricgrad.metrics import Metric
from metricgrad.metrics import metric as to_metric
from metricgrad.surrogates.base import Surrogate, as_loss
from metricgrad.surrogates.score_sets import Pool, ScoreSets, known_values, together

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Rank = Literal["pairwise", "projection", "sorting_network"]
Smooth = Literal["at_most", "equal", "each_item"]
_DRAWN = 512  # sets from sources, which have no end
_DRAWS = 1000  # of the bootstrap
_CHUNK = 64
_MOST = 3.0
_POOLED = 16


@dataclass(frozen=True)
class RankCorrelation:
    """How far a loss and a metric agree on the order of sets.

    Attributes:
        spearman: Spearman's rank correlation of the loss with the metric, as a loss: 1 is the same
            order.
        kendall: Kendall's tau-b between the loss and the metric, as a loss.
        spearman_interval: Ends of the 95 % confidence interval, by bootstrap over sets.
        kendall_interval: Ends of the 95 % confidence interval of Kendall's tau-b.
        losses: `[S]`, the loss of each set.
        values: `[S]`, the metric of each set.
        loss: Name of the loss, which labels the plot.
        metric: Name of the metric, which labels the plot.
    """

    spearman: float
    kendall: float
    spearman_interval: tuple[float, float]
    kendall_interval: tuple[float, float]
    losses: Tensor
    values: Tensor
    loss: str
    metric: str

    def __str__(self) -> str:
        rows = (
            ("Spearman", self.spearman, self.spearman_interval),
            ("Kendall", self.kendall, self.kendall_interval),
        )
        found = ", ".join(
            f"{name} {value:.4f} ({low:.4f} to {high:.4f})" for name, value, (low, high) in rows
        )
        return f"{self.loss} and {self.metric} on {len(self.losses)} sets: {found}"

    def __repr__(self) -> str:
        return f"<{self}>"

    def plot(self, path: str | Path | None = None, *, axes: "Axes | None" = None) -> "Axes":
        """The sets as dots, loss against metric: the closer to one falling line, the better.

        Args:
            path: Image file to write, such as a .png; None only draws.
            axes: Axes of matplotlib to draw into; None makes new ones.
        """
        try:
            from matplotlib.figure import Figure
        except ModuleNotFoundError:
            raise ModuleNotFoundError(
                "plots need matplotlib: pip install 'metricgrad[app]'"
            ) from None
        if axes is None:
            axes = Figure(figsize=(4.6, 3.6), dpi=150, layout="constrained").subplots()
        axes.scatter(self.losses, self.values, s=9, alpha=0.5, color="#2a6f97", edgecolors="none")
        axes.set(xlabel=self.loss, ylabel=self.metric)
        axes.set_title(f"Spearman {self.spearman:.3f}, Kendall {self.kendall:.3f}", fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
        if path is not None:
            figure = axes.get_figure(root=True)
            assert figure is not None
            figure.savefig(path)
        return axes


def rank_correlation(
    loss: Surrogate | Callable[..., Tensor],
    metric: Any,
    score_sets: Any,
    *,
    generator: torch.Generator | None = None,
) -> RankCorrelation:
    r"""How well the order of sets by a loss agrees with their order by a metric.

    .. math:: \rho = Pearson(rank(\ell), rank(m)), \quad \tau_b \text{ of the same}

    with m the metric as a loss, so that 1 means: whenever the loss is lower, the metric is better.

    Args:
        loss: A surrogate, or any callable `(scores, target) -> number`, such as
            `torch.nn.functional.cross_entropy`.
        metric: A name, a `Metric` or a callable.
        score_sets: An iterable of score sets `(scores, target)` with leading dimensions of sets,
            such as `mg.collect_scores` gives, or a source `(generator) -> (scores, target)`, of
            which 512 sets are drawn. Sets on which the metric is undefined are left out.
        generator: Source of randomness for sources and for the bootstrap.

    Returns:
        Both correlations with confidence intervals, and the values for a plot.

    Example:
        >>> import metricgrad as mg
        >>> score_sets = [(torch.randn(200, 50, 3), torch.randint(3, (200, 50)))]
        >>> loss = torch.nn.functional.cross_entropy
        >>> 0 < mg.rank_correlation(loss, "accuracy", score_sets).spearman < 1
        True

    Reference:
        ReLoss, Table 1; `scipy.stats.spearmanr` and `scipy.stats.kendalltau`.
    """
    chosen = to_metric(metric)
    found, truth = _known_values(loss, chosen, Pool.of(score_sets), generator)
    if len(truth) < 3:
        raise ValueError(
            f"a rank correlation needs three sets or more with a value of both; got {len(truth)}"
        )
    for name, each in ((_name(loss), found), (chosen.name, truth)):
        if each.max() == each.min():
            raise ValueError(
                f"{name} is {each[0]:.6g} on all {len(each)} sets, so there is no order to "
                "compare; pass sets of models that differ, such as checkpoints of one training run"
            )
    wanted = as_loss(chosen, truth)
    drawn = torch.randint(len(truth), (_DRAWS, len(truth)), generator=generator)
    kendalls = [ops.kendall(found[part], wanted[part]) for part in drawn.split(_CHUNK)]
    return RankCorrelation(
        ops.spearman(found, wanted).item(),
        ops.kendall(found, wanted).item(),
        _interval(ops.spearman(found[drawn], wanted[drawn])),
        _interval(torch.cat(kendalls)),
        found,
        truth,
        _name(loss),
        chosen.name,
    )


@torch.no_grad()
def _known_values(
    loss: Surrogate | Callable[..., Tensor],
    metric: Metric,
    pool: Pool,
    generator: torch.Generator | None,
) -> tuple[Tensor, Tensor]:
    """Loss and metric of all sets that have a value of both, `[S]` each."""
    groups = together([*pool.stored, *(pool.draw(_DRAWN, generator) if pool.sources else [])])
    chunks = [chunk for group in groups for chunk in group.chunks(_CHUNK)]
    found = torch.cat([_losses(loss, sets) for sets in chunks])
    truth = torch.cat([known_values(metric, sets) for sets in chunks])
    broken = truth.isfinite() & ~found.isfinite()
    if broken.any():
        warnings.warn(
            f"{_name(loss)} has no finite value on {int(broken.sum())} of {len(truth)} sets; these "
            "are left out",
            stacklevel=4,
        )
    known = found.isfinite() & truth.isfinite()
    return found[known], truth[known]


def _losses(loss: Surrogate | Callable[..., Tensor], sets: ScoreSets) -> Tensor:
    """The loss of every set, `[S]`; NaN where it has none."""
    if isinstance(loss, Surrogate):
        values, defined = loss.losses(*sets)
        return torch.where(defined, values.double(), torch.nan).cpu()
    if sets.where is not None:
        raise ValueError(
            "your own function cannot mask; pass score sets without where, or a Surrogate"
        )
    # torch's losses want a binary target in the scores' dtype.
    binary = sets.scores.shape == sets.target.shape
    values = []
    for scores, truth in zip(sets.scores, sets.target, strict=True):
        value = torch.as_tensor(loss(scores, truth.to(scores.dtype) if binary else truth))
        if value.numel() != 1:
            raise ValueError(
                f"the loss must give one number for each set; it gave shape {list(value.shape)}"
            )
        values.append(value.detach().double().cpu().reshape(()))
    return torch.stack(values)


def _interval(draws: Tensor) -> tuple[float, float]:
    """The ends between which 95 % of the draws lie."""
    ends = torch.tensor([0.025, 0.975], dtype=torch.float64)
    low, high = torch.quantile(draws.double(), ends).tolist()
    return low, high


def _name(loss: Any) -> str:
    """What to call a loss."""
    if isinstance(loss, nn.Module):
        return type(loss).__name__
    return getattr(loss, "__name__", type(loss).__name__)


def soft_spearman(
    losses: Tensor, truth: Tensor, *, rank: Rank = "pairwise", slope: float = 5.0
) -> Tensor:
    r"""Spearman's correlation (Eqn. 6) of losses and truth `[S]`, with a gradient for the losses.

    .. math:: \rho_S = \frac{Cov(r_\ell, r_m)}{Std(r_\ell) \, Std(r_m)}

    The slope is in units of the losses' spread; 0 where losses or truth are constant.
    """
    standard = ops.standardise(losses, torch.full_like(losses, 1 / max(len(losses), 1)))
    match rank:
        case "pairwise":
            ranks = ops.soft_rank(standard, slope)
        case "projection":
            # N ranks are stretched with N; at the usual slope of 5, about half of them are pooled.
            ranks = ops.projected_rank(standard, slope * len(standard) / _POOLED)
        case "sorting_network":
            ranks = sorting_network_rank(standard, slope)
    return ops.pearson(ranks, ops.hard_rank(truth).to(ranks.dtype))


def sorting_network_rank(values: Tensor, slope: float) -> Tensor:
    """Ascending ranks `[S]` by a relaxed bitonic sorting network of logistic swaps."""
    try:
        from diffsort import DiffSortNet
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "rank='sorting_network' needs the package diffsort: pip install "
            "'metricgrad[sorting-network]'. rank='pairwise' and 'projection' need nothing more"
        ) from None
    number = len(values)
    size = 1 << max(1, (number - 1).bit_length())  # the network takes powers of two
    rest = torch.arange(size - number, device=values.device, dtype=values.dtype)
    padding = values.detach().max() + 10.0 + rest
    network = DiffSortNet(
        "bitonic", size, steepness=slope, distribution="logistic_phi", device=values.device.type
    )
    _, permutation = network(torch.cat([values, padding]).unsqueeze(0))
    places = torch.arange(1, size + 1, device=values.device, dtype=permutation.dtype)
    return (permutation[0] * places).sum(-1)[:number].to(values.dtype)


def gradient_norms(losses: Tensor, scores: Tensor, items: Tensor | int | None = None) -> Tensor:
    r"""The length of each set's gradient, :math:`\sqrt{\sum_i \|N \nabla_{s_i} \ell\|^2 / N}`.

    A loss is a mean over N items, so an item's part of the gradient is 1/N of what it would be
    alone. This length does not depend on N; that of cross-entropy lies between 0 and :math:`\sqrt
    2`. Losses are `[...]`, scores `[..., N, *]`; of each set `items` count, all N for None.
    """
    (gradient,) = torch.autograd.grad(losses.sum(), scores, create_graph=True)
    items = gradient.shape[losses.dim()] if items is None else items
    squares = gradient.flatten(losses.dim()).square().sum(-1)
    return (items * squares + torch.finfo(squares.dtype).tiny).sqrt()


def item_penalty(losses: Tensor, scores: Tensor, where: Tensor | None) -> Tensor:
    r"""How far the gradient of each item is from length 1, as the released code has it.

    .. math:: \frac{1}{N} \sum_i (\| \nabla_{s_i} \ell \| - 1)^2

    The loss is a mean over items, and yet each item alone is to have a gradient of 1.
    """
    (gradient,) = torch.autograd.grad(losses.sum(), scores, create_graph=True)
    items = gradient.shape[: losses.dim() + 1]
    squares = gradient.square().reshape(*items, -1).sum(-1)
    lengths = (squares + torch.finfo(squares.dtype).tiny).sqrt()
    counts = None if where is None else where.reshape(*items, -1).any(-1).flatten()
    return ops.masked_mean((lengths - 1).square().flatten(), counts)


def gradient_penalty(norms: Tensor, smooth: Smooth = "equal") -> Tensor:
    r"""How far the lengths `[S]` of gradients are from what they should be, the mean over sets.

    .. math:: (\|\nabla_s \ell\| - 1)^2 \text{ (Eqn. 8)}, \quad \max(0, \|\nabla_s \ell\| / g - 3)^2

    The first wants every length to be 1, the second (`smooth="at_most"`) none to be above three
    times their mean g.
    """
    if smooth == "equal":
        return (norms - 1).square().mean()
    return (ops.divide(norms, norms.mean()) - _MOST).clamp(min=0).square().mean()
