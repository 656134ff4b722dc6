r"""ReLoss: a loss that ranks sets of scores as the metric does, learned once, then frozen (Huang et al., ICLR 2022).

A small network turns the scores and target of a set into one number. It is taught to have the
metric's order over sets (`correlation.py`, Eqn. 7 to 9) from made-up sets and the outputs of models
(`learning.py`, Algorithm 1), and then used like cross-entropy, by any model:

    loss = mg.ReLoss.pretrained("f1")          # learned by this project, from data of its own
    loss = mg.ReLoss("f1"); loss.learn(...)    # learned from your models' scores

A ranking has no scale. So that its value can be read, an affine map of it that is nearest to the
metric, as a loss, is fitted on held-out sets when learning ends.
"""

import warnings
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from metricgrad import ops
from metricgrad.metrics import Metric, decode_spans
from metricgrad.metrics import metric as to_metric
from metricgrad.metrics.base import Inputs
from metricgrad.metrics.registry import metric_config, metric_from_config
from metricgrad.surrogates import nets
from metricgrad.surrogates.base import (
    LearnedSurrogate,
    TargetKind,
    as_loss,
    full_precision,
)
from metricgrad.surrogates.correlation import (
    Rank,
    Smooth,
    gradient_norms,
    gradient_penalty,
    soft_spearman,
)
from metricgrad.surrogates.elements import is_multilabel
from metricgrad.surrogates.exam import Ranked
from metricgrad.surrogates.learning import learn

Objective = Literal["correlation", "approximation"]
_SETTINGS = ("penalty", "smooth", "rank", "objective", "slope")
_NETS = {
    cls.__name__: cls
    for cls in (
        nets.Classification,
        nets.SetNetwork,
        nets.Embeddings,
        nets.Heatmaps,
        nets.Sequence,
        nets.Spans,
    )
}


class ReLoss(LearnedSurrogate):
    """A loss learned by rank correlation with a metric.

    Args:
        metric: a name, a `Metric` or any callable `(scores, target) -> number`.
        net: from the scores and target of sets to one number each: one of `mg.nets`, or any module
            `(scores, target, where) -> [...]`. None takes the one for the metric's kind of scores.
        penalty: weight of the gradient penalty (Eqn. 9); 0 leaves it out.
        smooth: what it penalises: gradients of sets that are longer than three times the mean
            (`"at_most"`), or all that differ from 1, as in the paper (`"equal"`, Eqn. 8).
        rank: how losses are ranked with a gradient: `"pairwise"`, or the paper's
            `"sorting_network"` (needs diffsort).
        objective: `"correlation"` (Eqn. 7), or `"approximation"` of the metric's value, to compare
            with (Eqn. 5).
        slope: of the comparisons that make ranks, in units of the losses' spread.
        generator: source of randomness for the weights.

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

    readable = True
    _warned = False
    shift: Tensor
    scale: Tensor
    orientation: Tensor

    def __init__(
        self,
        metric: Any,
        *,
        net: nn.Module | None = None,
        penalty: float = 10.0,
        smooth: Smooth = "at_most",
        rank: Rank = "pairwise",
        objective: Objective = "correlation",
        slope: float = 5.0,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.metric: Metric = to_metric(metric)
        for name, value, known in (
            ("rank", rank, Rank),
            ("objective", objective, Objective),
            ("smooth", smooth, Smooth),
        ):
            if value not in get_args(known):
                raise ValueError(
                    f"{name} must be one of {', '.join(map(repr, get_args(known)))}; got {value!r}"
                )
        if not penalty >= 0 or not slope > 0:
            raise ValueError(
                f"penalty must be 0 or more, and slope above 0; got penalty={penalty} and slope={slope}"
            )
        self.penalty, self.slope = penalty, slope
        self.rank: Rank = rank
        self.objective: Objective = objective
        self.smooth: Smooth = smooth
        self.net = default_net(self.metric, generator) if net is None else net
        self.learned = False
        self.register_buffer("shift", torch.tensor(0.0))
        self.register_buffer("scale", torch.tensor(1.0))
        self.register_buffer("orientation", torch.tensor(1.0))

    @classmethod
    def pretrained(cls, name: str) -> "ReLoss":
        """A loss that ships with the library, learned and frozen.

        Args:
            name: of its metric: `"accuracy"` for classes, `"f1"`, `"auc"`, `"average_precision"` or
                `"mcc"` for binary scores.

        Returns:
            The loss; `metricgrad learn NAME --out FILE` makes it again, and a JSON file beside it
            in the package says from what it was learned and how well it ranks.

        Example:
            >>> import metricgrad as mg
            >>> loss = mg.ReLoss.pretrained("f1")
            >>> loss(torch.randn(100, requires_grad=True), torch.arange(100) % 3 == 0).backward()
        """
        from metricgrad.surrogates.saving import (
            load_surrogate,
        )  # which knows all surrogates, this one among them

        folder = Path(__file__).parent.parent / "pretrained"
        known = sorted(path.stem for path in folder.glob("*.safetensors"))
        if name not in known:
            raise ValueError(
                f"no loss for {name!r} ships; there are {', '.join(known)}. mg.ReLoss(metric).learn() makes one"
            )
        loss = load_surrogate(folder / f"{name}.safetensors")
        assert isinstance(loss, cls)
        return loss

    @classmethod
    def fits(cls, metric: Metric, kind: TargetKind) -> bool:
        """As the metric has it; besides, classes of one set may be the tokens of one text."""
        return super().fits(metric, kind) or (metric.layout == "tokens" and kind == "classes")

    def losses(self, scores: Tensor, target: Tensor, where: Tensor | None) -> tuple[Tensor, Tensor]:
        """The network's value for every set on the metric's scale, and whether the metric has a value there."""
        inputs = self.check(scores, target, where)
        values = torch.addcmul(self.shift, self.raw(inputs), self.scale)
        counted = (
            torch.ones_like(inputs.target, dtype=torch.bool)
            if inputs.where is None
            else inputs.where
        )
        return values, self.metric.has_value(inputs, counted.flatten(values.dim()).any(-1))

    def _watch(self, defined: Tensor) -> None:
        """Warns, once, of a loss that has learned nothing yet."""
        if not (self.learned or self._warned):
            self._warned = True
            warnings.warn(
                f"this ReLoss has not learned {self.metric.name} yet, its network is random; call loss.learn(), or "
                "take mg.ReLoss.pretrained(name)",
                stacklevel=3,
            )
        super()._watch(defined)

    def raw(self, inputs: Inputs) -> Tensor:
        """The network's value for every set, `[...]`, as it is ranked: not yet on the metric's scale."""
        inputs = inputs._replace(scores=inputs.scores.to(self.scale.dtype))
        with full_precision(inputs.scores.device.type):
            if isinstance(self.net, nets.LossNet):
                return self.net(self.metric, inputs) * self.orientation
            return self.net(*inputs) * self.orientation

    @torch.no_grad()
    def truth(self, scores: Tensor, target: Tensor, where: Tensor | None = None) -> Tensor:
        """The metric as a loss, `[...]`; NaN where it is undefined."""
        return as_loss(self.metric, self.metric(scores, target, where=where)).to(self.scale.dtype)

    def misfit(self, scores: Tensor, target: Tensor, where: Tensor | None = None) -> Tensor:
        r"""What learning descends: how far the losses are from the metric's order over these sets, and the penalty.

        .. math:: 1 - \rho_S(\ell, m) + \lambda \, (\|\nabla_s \ell\| - 1)^2

        with the metric m as a loss: Eqn. 9 plus 1, for `smooth="equal"`. With
        `objective="approximation"` the first part is the mean of :math:`(\ell - m)^2` instead (Eqn.
        5).

        Args:
            scores: `[..., N, *]`, several sets; no gradient goes there.
            target: ground truth.
            where: True for what counts; None counts all.

        Returns:
            A 0-dim tensor; sets on which the metric is undefined are left out.
        """
        raw, truth, penalty = self.compare(scores, target, where)
        return self.distance(raw, truth) + self.penalty * penalty

    def compare(
        self, scores: Tensor, target: Tensor, where: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Raw losses and truths of the sets that have one, `[S]` each, and the gradient penalty of all sets."""
        truth = self.truth(scores, target, where).flatten()
        inputs = self.check(scores.detach(), target, where)
        inputs = inputs._replace(
            scores=inputs.scores.to(self.scale.dtype).requires_grad_(self.penalty > 0)
        )
        raw = self.raw(inputs)
        penalty = raw.new_zeros(())
        if self.penalty > 0:
            penalty = gradient_penalty(self.steepness(raw, inputs), self.smooth)
        known = truth.isfinite()
        return raw.flatten()[known], truth[known], penalty

    def steepness(self, raw: Tensor, inputs: Inputs) -> Tensor:
        """The length of the gradient of raw losses `[...]` that were computed from these inputs, `[...]`.

        A network that does not see the scale of a set has gradients of 1 / scale, which are no
        steeper for that; they are measured in units of the set's spread.
        """
        lead, where = raw.dim(), inputs.where
        counts = (
            None
            if where is None
            else where.flatten(lead + 1).any(-1)
            if where.dim() > lead + 1
            else where
        )
        norms = gradient_norms(raw, inputs.scores, None if counts is None else counts.sum(-1))
        if not (isinstance(self.net, nets.SetNetwork) and self.net.options["standardise"]):
            return norms
        scores = inputs.scores.detach().flatten(lead)
        if where is None or where.shape != inputs.scores.shape:
            return norms * scores.std(-1, correction=0)
        live = where.flatten(lead)
        mean = ops.masked_mean(scores, live).unsqueeze(-1)
        return norms * ops.masked_mean((scores - mean).square(), live).sqrt()

    def distance(self, raw: Tensor, truth: Tensor) -> Tensor:
        """How far raw losses are from the truths: by their ranks (Eqn. 7), or by their values (Eqn. 5)."""
        if self.objective == "approximation":
            return (raw - truth).square().mean()
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
        rate: float = 1e-2,
        relabel: bool = False,
        valid: Any = None,
        progress: bool = True,
        generator: torch.Generator | None = None,
    ) -> Ranked:
        """Learns to rank as the metric does (Algorithm 1), keeps the best moment, and freezes the loss.

        Called again, it goes on from where it is: once after every epoch, that is alternate
        training (Table 11).

        Args:
            sources: a source `(generator) -> (scores, target)`, or an iterable of sources and of
                score sets `(scores, target)`, such as `mg.collect_scores` gives; None learns from
                made-up sets alone.
            steps: of Adam.
            share: p, of made-up sets among those of a step (`surrogates/sources.py`, the generator
                G_R). Text, poses and label maps have none.
            sets: in each step, N.
            size: items of a made-up set; None makes them as large as the stored ones, else 128.
            classes: of made-up sets, where the scores have classes and no stored set shows how
                many.
            rate: the learning rate at the start; it falls to 0.
            relabel: replaces the labels of stored sets as the released code does, so that
                accuracies are spread evenly: the predicted class, but for a random part of the
                items, which get any.
            valid: sources of held-out sets; None holds a fifth of the stored sets back.
            progress: shows a bar, on a terminal, with the correlations of this loss and of the
                ordinary one.
            generator: source of randomness.

        Returns:
            Rank correlations on held-out sets, beside those of the ordinary loss.
        """
        return learn(
            self,
            sources,
            steps=steps,
            share=share,
            sets=sets,
            size=size,
            classes=classes,
            rate=rate,
            relabel=relabel,
            valid=valid,
            progress=progress,
            generator=generator,
        )

    def config(self) -> dict[str, Any]:
        """What rebuilds the loss; its weights are stored beside."""
        own = isinstance(self.net, nets.LossNet)
        net = {"kind": type(self.net).__name__, "options": self.net.options if own else None}
        settings = {name: getattr(self, name) for name in _SETTINGS}
        return {
            "metric": metric_config(self.metric),
            "net": net,
            **settings,
            "learned": self.learned,
        }

    @classmethod
    def from_config(
        cls, config: dict[str, Any], metric: Any, net: nn.Module | None = None
    ) -> "ReLoss":
        """The loss that `config` describes; a metric or network given replaces the stored one."""
        kind, options = config["net"]["kind"], config["net"]["options"]
        if net is None and options is None:
            raise ValueError(
                f"the file's network is a module of yours, {kind}, which no file can hold; pass one of its kind: "
                "load_surrogate(path, net=...)"
            )
        settings = {name: config[name] for name in _SETTINGS}
        chosen = metric_from_config(config["metric"]) if metric is None else metric
        loss = cls(chosen, net=_NETS[kind](**options) if net is None else net, **settings)
        if config["learned"]:
            loss.freeze()
        return loss

    def freeze(self) -> None:
        """Ends learning: no parameter is trainable any more."""
        self.learned = True
        self.requires_grad_(False)

    def extra_repr(self) -> str:
        """The metric and what it was learned by."""
        return f"{self.metric!r}, objective={self.objective!r}, penalty={self.penalty:g}, learned={self.learned}"

    def check(self, scores: Tensor, target: Tensor, where: Tensor | None) -> Inputs:
        """The inputs as the network takes them; a trailing dimension of 1 is dropped."""
        if scores.dim() == target.dim() + 1 and scores.shape[-1] == 1:
            scores = scores.squeeze(-1)
        if isinstance(self.net, nets.LossNet):
            return self.net.check(self.metric, scores, target.detach(), where)
        return self.metric.check(scores, target.detach(), where)


def default_net(metric: Metric, generator: torch.Generator | None) -> nets.LossNet:
    """The network for a metric's kind of scores."""
    if "text" in metric.families:
        spans = getattr(metric, "decode", None) is decode_spans
        return nets.Spans(generator=generator) if spans else nets.Sequence(generator=generator)
    if "pose" in metric.families:
        raise ValueError(
            f"a network for {metric.name} must know the maps' size; pass net=mg.nets.Heatmaps((64, 48))"
        )
    if metric.name in ("accuracy", "error_rate") and not is_multilabel(metric):
        return nets.Classification(generator=generator)
    # Metrics of order alone do not change with the scores' scale; the others have a threshold.
    return nets.SetNetwork(
        standardise=metric.ties not in ("negative", "first", "own"), generator=generator
    )
