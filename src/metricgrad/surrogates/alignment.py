r"""Is this loss aligned with that metric? Rank correlations over score sets, for any loss a user has.

A loss is a good guide to a metric if it falls wherever the metric gets better. Over many sets
(batches of several models, checkpoints of one) that is a rank correlation, of which 1 means the
same order (ReLoss, Table 1).
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from metricgrad import ops
from metricgrad.metrics import Metric
from metricgrad.metrics import metric as to_metric
from metricgrad.surrogates.base import Surrogate, as_loss
from metricgrad.surrogates.score_sets import Pool, ScoreSets, together

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_DRAWN = 512  # sets from sources, which have no end
_DRAWS = 1000  # of the bootstrap
_CHUNK = 64


@dataclass(frozen=True)
class RankCorrelation:
    """How far a loss and a metric agree on the order of sets.

    Attributes:
        spearman: Spearman's rank correlation of the loss with the metric, as a loss: 1 is the same
            order.
        kendall: Kendall's tau-b of the same.
        spearman_interval: ends of the 95 % confidence interval, by bootstrap over sets.
        kendall_interval: the same for Kendall's tau-b.
        losses: `[S]`, the loss of each set.
        values: `[S]`, the metric of each set.
        loss: what the loss is called.
        metric: what the metric is called.
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
        """The sets as dots, loss against metric: the closer to one falling line, the better the loss.

        Args:
            path: an image file to write; None writes none.
            axes: of matplotlib, to draw into; None makes new ones.

        Returns:
            The axes.
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
    r"""How well a loss ranks sets as a metric does.

    .. math:: \rho = Pearson(rank(\ell), rank(m)), \quad \tau_b \text{ of the same}

    with m the metric as a loss, so that 1 means: whenever the loss is lower, the metric is better.

    Args:
        loss: a surrogate, or any callable `(scores, target) -> number`, such as
            `torch.nn.functional.cross_entropy`.
        metric: a name, a `Metric` or a callable.
        score_sets: an iterable of score sets `(scores, target)` with leading dimensions of sets,
            such as `mg.collect_scores` gives, or a source `(generator) -> (scores, target)`, of
            which 512 sets are drawn. Sets on which the metric is undefined are left out.
        generator: source of randomness, of sources and of the bootstrap.

    Returns:
        Both correlations with confidence intervals, and the values, to plot.

    Example:
        >>> import metricgrad as mg
        >>> scores, target = torch.randn(200, 50, 3), torch.randint(3, (200, 50))
        >>> found = mg.rank_correlation(torch.nn.functional.cross_entropy, "accuracy", [(scores, target)])
        >>> 0 < found.spearman < 1
        True

    Reference:
        ReLoss, Table 1; `scipy.stats.spearmanr` and `scipy.stats.kendalltau`.
    """
    chosen, pool = to_metric(metric), Pool.of(score_sets)
    groups = together([*pool.stored, *(pool.draw(_DRAWN, generator) if pool.sources else [])])
    losses, values = [], []
    with torch.no_grad():
        for sets in (chunk for group in groups for chunk in group.chunks(_CHUNK)):
            losses.append(_losses(loss, sets))
            values.append(_values(chosen, sets))
    found, truth = torch.cat(losses), torch.cat(values)
    broken = truth.isfinite() & ~found.isfinite()
    if broken.any():
        warnings.warn(
            f"{_name(loss)} has no finite value on {int(broken.sum())} of {len(truth)} sets; these are left out",
            stacklevel=2,
        )
    known = found.isfinite() & truth.isfinite()
    found, truth = found[known], truth[known]
    if len(truth) < 3:
        raise ValueError(
            f"a rank correlation needs three sets or more with a value of both; got {len(truth)}"
        )
    for name, each in ((_name(loss), found), (chosen.name, truth)):
        if each.max() == each.min():
            raise ValueError(
                f"{name} is {each[0]:.6g} on all {len(each)} sets, so there is no order to compare; pass sets of "
                "models that differ, such as checkpoints of one training"
            )
    wanted = as_loss(chosen, truth)
    drawn = torch.randint(len(truth), (_DRAWS, len(truth)), generator=generator)
    return RankCorrelation(
        ops.spearman(found, wanted).item(),
        ops.kendall(found, wanted).item(),
        _interval(ops.spearman(found[drawn], wanted[drawn])),
        _interval(
            torch.cat([ops.kendall(found[part], wanted[part]) for part in drawn.split(_CHUNK)])
        ),
        found,
        truth,
        _name(loss),
        chosen.name,
    )


def _values(metric: Metric, sets: ScoreSets) -> Tensor:
    """The metric of every set, `[S]`; NaN where it has none of its own."""
    values = metric(sets.scores, sets.target, where=sets.where).double().cpu()
    inputs = metric.check(sets.scores, sets.target, sets.where)
    return torch.where(
        metric.has_value(inputs, torch.ones_like(values, dtype=torch.bool)).cpu(),
        values,
        torch.nan,
    )


def _losses(loss: Surrogate | Callable[..., Tensor], sets: ScoreSets) -> Tensor:
    """The loss of every set, `[S]`; NaN where it has none."""
    if isinstance(loss, Surrogate):
        values, defined = loss.losses(*sets)
        return torch.where(defined, values.double(), torch.nan).cpu()
    if sets.where is not None:
        raise ValueError(
            "a function of your own cannot mask; pass score sets without where, or a Surrogate"
        )
    binary = (
        sets.scores.shape == sets.target.shape
    )  # torch's losses want such a target in the scores' type
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
    low, high = torch.quantile(
        draws.double(), torch.tensor([0.025, 0.975], dtype=torch.float64)
    ).tolist()
    return low, high


def _name(loss: Any) -> str:
    if isinstance(loss, nn.Module):
        return type(loss).__name__
    return getattr(loss, "__name__", type(loss).__name__)
