r"""ReLoss: a loss that ranks sets of scores as the metric does (Huang et al., ICLR 2022).

A small network turns the scores and target of a set into one number. It learns to have the metric's
order over sets (`alignment.py`, Eqn. 7 to 9) from made-up sets and the outputs of models
(`learning.py`, Algorithm 1), once. Then it is frozen and used like cross-entropy, by any model:

    loss = mg.ReLoss.pretrained("f1")          # learned by this project, from data of its own
    loss = mg.ReLoss("f1"); loss.learn(...)    # learned from your models' scores

A ranking has no scale. So that its value can be read, an affine map of it that is nearest to the
metric, as a loss, is fitted on held-out sets when learning ends.
"""

from collections.abc import Sequence
from math import isinf
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from metricgrad import ops
from metricgrad.metrics import Metric
from metricgrad.metrics.base import Inputs
from metricgrad.metrics.checks import whole
from metricgrad.metrics.one_score import item_scores
from metricgrad.metrics.registry import metric_config
from metricgrad.surrogates import nets
from metricgrad.surrogates.alignment import (
    Rank,
    Smooth,
    gradient_norms,
    gradient_penalty,
    soft_spearman,
)
from metricgrad.surrogates.base import (
    LearnedSurrogate,
    TargetKind,
    as_loss,
    counted,
    full_precision,
)
from metricgrad.surrogates.learning import SHARE_HELD, Exam, Ranked, learn, lesson, shaped_source
from metricgrad.surrogates.random_sets import SourceName
from metricgrad.surrogates.score_sets import Pool

ReLossObjective = Literal["correlation", "approximation"]
_SETTINGS = ("penalty", "smooth", "rank", "objective", "slope")


class ReLoss(LearnedSurrogate):
    r"""A loss learned by rank correlation with a metric.

    .. math:: \max_\theta \; \rho(-\ell_\theta(s, y), \; metric(s, y)) - w \, penalty

    Args:
        metric: A name, a `Metric` or any callable `(scores, target) -> number`.
        net: Maps the scores and target of each set to one number: one of `mg.nets`, or any module
            `(scores, target, where) -> [...]`. None takes the one for the metric's layout.
        penalty: Weight of the gradient penalty (Eqn. 9); 0 leaves it out.
        smooth: What the penalty applies to: gradients of sets that are longer than three times the
            mean (`"at_most"`), or all that differ from 1, as in the paper (`"equal"`, Eqn. 8).
        rank: How losses are ranked with a gradient: `"pairwise"`, or the paper's
            `"sorting_network"` (needs diffsort).
        objective: `"correlation"` (Eqn. 7), or, for comparison, `"approximation"` of the metric's
            value (Eqn. 5).
        slope: Slope of the comparisons that make ranks, in units of the losses' spread.

    Example:
        >>> import metricgrad as mg
        >>> loss = mg.ReLoss("f1", generator=torch.Generator().manual_seed(0))
        >>> learned = loss.learn(steps=40, generator=torch.Generator().manual_seed(0))
        >>> learned.spearman > 0.9
        True
        >>> loss(torch.randn(100, requires_grad=True), torch.arange(100) % 3 == 0).backward()

    Reference:
        Relational Surrogate Loss Learning, Sec. 4.
    """

    orientation: Tensor

    def __init__(
        self,
        metric: Any,
        *,
        net: nn.Module | None = None,
        penalty: float = 10.0,
        smooth: Smooth = "at_most",
        rank: Rank = "pairwise",
        objective: ReLossObjective = "correlation",
        slope: float = 5.0,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(metric)
        self.penalty = penalty
        self.slope = slope
        self.rank: Rank = rank
        self.objective: ReLossObjective = objective
        self.smooth: Smooth = smooth
        for name, known in (("rank", Rank), ("objective", ReLossObjective), ("smooth", Smooth)):
            allowed = get_args(known)
            if getattr(self, name) not in allowed:
                listed = ", ".join(map(repr, allowed))
                raise ValueError(f"{name} must be one of {listed}; got {getattr(self, name)!r}")
        if not penalty >= 0 or not slope > 0:
            raise ValueError(
                f"penalty must be 0 or more, and slope above 0; got penalty={penalty} and "
                f"slope={slope}"
            )
        self.net = _default_net(self.metric, generator) if net is None else net
        self.learned = False
        self.register_buffer("orientation", torch.tensor(1.0))

    @classmethod
    def pretrained(cls, name: str) -> "ReLoss":
        """A loss that ships with the library, learned and frozen.

        `metricgrad learn NAME --out FILE` learns it again, and a JSON file beside it in the package
        says what it was learned from and how well it ranks.

        Args:
            name: Name of its metric: `"accuracy"` for classes, `"f1"`, `"auc"`,
                `"average_precision"` or `"mcc"` for binary scores.

        Example:
            >>> import metricgrad as mg
            >>> loss = mg.ReLoss.pretrained("f1")
            >>> loss(torch.randn(100, requires_grad=True), torch.arange(100) % 3 == 0).backward()
        """
        # That module knows all surrogates, this one among them.
        from metricgrad.surrogates.saving import load_surrogate

        folder = Path(__file__).parent.parent / "pretrained"
        known = sorted(path.stem for path in folder.glob("*.safetensors"))
        if name not in known:
            raise ValueError(
                f"no pretrained loss for {name!r}; available: {', '.join(known)}. "
                "Learn your own with mg.ReLoss(metric).learn()"
            )
        loss = load_surrogate(folder / f"{name}.safetensors")
        assert isinstance(loss, cls)
        return loss

    @classmethod
    def fits(cls, metric: Metric, kind: TargetKind) -> bool:
        """As for its metric; besides, classes of one set may be the tokens of one text."""
        return super().fits(metric, kind) or (metric.layout == "tokens" and kind == "classes")

    def check(self, scores: Tensor, target: Tensor, where: Tensor | None) -> Inputs:
        """The inputs as the network takes them."""
        if not isinstance(self.net, nets.LossNet):
            return super().check(scores, target, where)
        scores = item_scores(self.metric, scores, target)
        return self.net.check(self.metric, scores, target.detach(), where)

    def losses(self, scores: Tensor, target: Tensor, where: Tensor | None) -> tuple[Tensor, Tensor]:
        """The network's value on the metric's scale, and whether the metric has a value there."""
        inputs = self.check(scores, target, where)
        values = torch.addcmul(self.shift, self.raw(inputs), self.scale)
        live = counted(inputs.target, inputs.where).flatten(values.dim())
        return values, self.metric.has_value(inputs, live.any(-1))

    def unready(self, batches: int) -> str:
        """The warning, on the first batch, that the loss has not learned anything yet."""
        if self.learned or batches > 1:
            return ""
        return (
            f"this ReLoss has not learned {self.metric.name} yet and its network is random; call "
            "loss.learn() first, or use mg.ReLoss.pretrained(name)"
        )

    def raw(self, inputs: Inputs) -> Tensor:
        """The network's value for every set, `[...]`, as it is ranked."""
        inputs = inputs._replace(scores=inputs.scores.to(self.scale.dtype))
        with full_precision(inputs.scores.device.type):
            own = isinstance(self.net, nets.LossNet)
            return (self.net(self.metric, inputs) if own else self.net(*inputs)) * self.orientation

    @torch.no_grad()
    def truth(self, scores: Tensor, target: Tensor, where: Tensor | None = None) -> Tensor:
        """The metric as a loss, `[...]`; NaN where it is undefined."""
        values = self.metric.of_sets(item_scores(self.metric, scores, target), target, where)
        return as_loss(self.metric, values).to(self.scale.dtype)

    def misfit(self, scores: Tensor, target: Tensor, where: Tensor | None = None) -> Tensor:
        r"""How far the losses are from the metric's order over these sets, plus the penalty.

        .. math:: 1 - \rho_S(\ell, m) + \lambda \, (\|\nabla_s \ell\| - 1)^2

        with the metric m as a loss: Eqn. 9 plus 1, for `smooth="equal"`. With
        `objective="approximation"` the first part is the mean of :math:`(\ell - m)^2` instead (Eqn.
        5), divided by that of :math:`m^2` where m has no bound. Scores are those of several sets,
        `[..., N, *]`, and get no gradient; sets on which the metric is undefined are left out.
        """
        raw, truth, penalty = self.compare(scores, target, where)
        return self.distance(raw, truth) + self.penalty * penalty

    def compare(
        self, scores: Tensor, target: Tensor, where: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Raw losses and truths of sets that have one, `[S]` each, and the gradient penalty."""
        truth = self.truth(scores, target, where).flatten()
        inputs = self.check(scores.detach(), target, where)
        scores = inputs.scores.to(self.scale.dtype).requires_grad_(self.penalty > 0)
        inputs = inputs._replace(scores=scores)
        raw = self.raw(inputs)
        penalty = raw.new_zeros(())
        if self.penalty > 0:
            penalty = gradient_penalty(self.steepness(raw, inputs), self.smooth)
        known = truth.isfinite()
        return raw.flatten()[known], truth[known], penalty

    def steepness(self, raw: Tensor, inputs: Inputs) -> Tensor:
        """The length of the gradient of raw losses `[...]` by the inputs they came from, `[...]`.

        A network that does not see the scale of a set has gradients of 1 / scale, which are no
        steeper for that; they are measured in units of the set's spread.
        """
        lead = raw.dim()
        where = inputs.where
        counts = None
        if where is not None:
            items = where.flatten(lead + 1).any(-1) if where.dim() > lead + 1 else where
            counts = items.sum(-1)
        norms = gradient_norms(raw, inputs.scores, counts)
        if not (isinstance(self.net, nets.SetNetwork) and self.net.options["standardise"]):
            return norms
        scores = inputs.scores.detach().flatten(lead)
        if where is None or where.shape != inputs.scores.shape:
            return norms * scores.std(-1, correction=0)
        live = where.flatten(lead)
        mean = ops.masked_mean(scores, live).unsqueeze(-1)
        return norms * ops.masked_mean((scores - mean).square(), live).sqrt()

    def distance(self, raw: Tensor, truth: Tensor) -> Tensor:
        """How far raw losses are from the truths: by ranks (Eqn. 7), or by values (Eqn. 5)."""
        if self.objective == "approximation":
            apart = (raw - truth).square().mean()
            # Values without a bound may be thousands, which would drown the penalty.
            unit = truth.square().mean() if isinf(self.metric.worst) else truth.new_ones(())
            return apart / torch.where(unit > 0, unit, 1.0)
        return 1 - soft_spearman(raw, truth, rank=self.rank, slope=self.slope)

    def learn(
        self,
        sources: Any = None,
        *,
        steps: int = 300,
        share: float = 0.5,
        sets: int = 64,
        size: int | None = None,
        classes: int | None = None,
        shape: Sequence[int] | None = None,
        source: SourceName = "broad",
        rate: float = 1e-2,
        relabel: bool = False,
        valid: Any = None,
        progress: bool = True,
        generator: torch.Generator | None = None,
    ) -> Ranked:
        """Learns to rank sets in the metric's order (Algorithm 1), and freezes the best loss.

        A second call continues from the current weights; calling it after every epoch is alternate
        training (Table 11).

        Args:
            sources: A source `(generator) -> (scores, target)`, or an iterable of sources and of
                score sets `(scores, target)`, such as `mg.collect_scores` gives; None learns from
                made-up sets alone.
            steps: Number of optimizer steps (Adam), each on `sets` sets.
            share: p, the share of made-up sets (the generator G_R) in a step.
            sets: N, the number of sets in each step.
            size: Items of a made-up set; None makes them as large as the stored ones, else 128.
            classes: Number of classes or labels of made-up sets, if no stored set shows it.
            shape: Shape of the scores of a made-up set of text, poses or label maps, if no stored
                set shows it, such as (32, 16, 100) for 32 texts of 16 places and 100 tokens.
            source: How sets are made up: `"broad"`, with models of every kind and quality;
                `"uniform"`, so that the metric's values are spread evenly; `"paper"`, at random.
            rate: The learning rate at the start; it falls to 0.
            relabel: Whether to replace the labels of stored sets as the released code does, so that
                accuracies are spread evenly: a random part of the items gets random labels, the
                others get the predicted class.
            valid: Sources of held-out sets; None holds back a fifth of the stored sets.
            progress: Whether to show a progress bar, on a terminal, with the correlations of this
                loss and of the ordinary one.
            generator: Source of randomness for drawing and splitting sets.

        Returns:
            Rank correlations on held-out sets, with those of the ordinary loss for comparison.
        """
        whole("steps", steps, 1)
        whole("sets", sets, 4)
        whole("size", 2 if size is None else size, 2)
        if not 0 <= share <= 1 or not rate > 0:
            raise ValueError(
                f"share must be from 0 to 1, and rate above 0; got share={share} and rate={rate}"
            )
        pool = None if sources is None else Pool.of(sources)
        made = None
        if share or pool is None:
            made = shaped_source(self.metric, pool, sets, size, classes, shape, source)
        held = Pool([made] if made else [], []) if valid is None else Pool.of(valid)
        if pool is not None and valid is None:
            pool, held = pool.split(SHARE_HELD, generator)
        draw = lesson(pool, made, share, sets, relabel, generator)
        return learn(self, draw, Exam(self, held, generator), steps, rate, progress)

    def config(self) -> dict[str, Any]:
        """The options from which the loss can be built again; its weights are stored separately."""
        options = self.net.options if isinstance(self.net, nets.LossNet) else None
        return {
            "metric": metric_config(self.metric),
            "net": {"kind": type(self.net).__name__, "options": options},
            **{name: getattr(self, name) for name in _SETTINGS},
            "learned": self.learned,
        }

    def freeze(self) -> None:
        """Ends learning: no parameter is trainable any more."""
        self.learned = True
        self.requires_grad_(False)

    def extra_repr(self) -> str:
        """The metric and what it was learned by."""
        learned_by = f"objective={self.objective!r}, penalty={self.penalty:g}"
        return f"{self.metric!r}, {learned_by}, learned={self.learned}"


def _default_net(metric: Metric, generator: torch.Generator | None) -> nets.LossNet:
    """The network for a metric's layout."""
    match metric.layout:
        case "spans":
            return nets.Spans(generator=generator)
        case "tokens":
            return nets.Sequence(generator=generator)
        case "binary" if metric.mean_of_items:
            return nets.Classification(generator=generator)
        case _:
            # The order of scores does not change with their scale, so the network need not see it.
            return nets.SetNetwork(standardise=metric.decided_by == "order", generator=generator)
