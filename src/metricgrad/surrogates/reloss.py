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
from pathlib import Path
from typing import Any, get_args

import torch
from torch import nn

from metricgrad.metrics import Metric
from metricgrad.metrics import metric as to_metric
from metricgrad.metrics.checks import whole
from metricgrad.metrics.registry import metric_config
from metricgrad.surrogates import nets
from metricgrad.surrogates.alignment import Rank, Smooth
from metricgrad.surrogates.base import TargetKind
from metricgrad.surrogates.learning import (
    RECIPES,
    SHARE_HELD,
    Exam,
    Ranked,
    RecipeName,
    learn,
    lesson,
    shaped_source,
)
from metricgrad.surrogates.nets.choice import default_net
from metricgrad.surrogates.random_sets import SourceName
from metricgrad.surrogates.relational import Relational, ReLossObjective
from metricgrad.surrogates.score_sets import Pool

_SETTINGS = ("penalty", "smooth", "rank", "objective", "slope", "recipe")


class ReLoss(Relational):
    r"""A loss learned by rank correlation with a metric.

    .. math:: \max_\theta \; \rho(-\ell_\theta(s, y), \; metric(s, y)) - w \, penalty

    Args:
        metric: A name, a `Metric` or any callable `(scores, target) -> number`.
        net: Maps the scores and target of each set to one number: one of `mg.nets`, or any module
            `(scores, target, where) -> [...]`. None takes the one for the metric's layout.
        penalty: Weight of the gradient penalty (Eqn. 9); 0 leaves it out.
        smooth: What the penalty applies to: gradients of sets that are longer than three times the
            mean (`"at_most"`), or all that differ from 1, as in the paper (`"equal"`, Eqn. 8);
            `"each_item"` wants that of the gradients of all items.
        rank: How losses are ranked with a gradient: `"pairwise"`, Blondel's `"projection"`, or the
            `"sorting_network"` that the paper took (needs diffsort).
        objective: `"correlation"` (Eqn. 7), or, for comparison, `"approximation"` of the metric's
            value (Eqn. 5).
        slope: Slope of the comparisons that make ranks, in units of the losses' spread.
        recipe: How `learn` goes about it by default: `"ours"`, or `"published"`.

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
        recipe: RecipeName = "ours",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(metric)
        self.penalty = penalty
        self.slope = slope
        self.rank: Rank = rank
        self.objective: ReLossObjective = objective
        self.smooth: Smooth = smooth
        self.recipe: RecipeName = recipe
        for name, known in (
            *(("rank", Rank), ("objective", ReLossObjective)),
            *(("smooth", Smooth), ("recipe", RecipeName)),
        ):
            allowed = get_args(known)
            if getattr(self, name) not in allowed:
                listed = ", ".join(map(repr, allowed))
                raise ValueError(f"{name} must be one of {listed}; got {getattr(self, name)!r}")
        if not penalty >= 0 or not slope > 0:
            raise ValueError(
                f"penalty must be 0 or more, and slope above 0; got penalty={penalty} and "
                f"slope={slope}"
            )
        self.net = default_net(self.metric, generator) if net is None else net
        self.learned = False
        self.register_buffer("orientation", torch.tensor(1.0))

    @classmethod
    def as_published(
        cls, metric: Any = "accuracy", *, generator: torch.Generator | None = None
    ) -> "ReLoss":
        """The settings of the paper's code, with which `learn` learns, too.

        A sorting network of slope 5 ranks the losses; every item's gradient is to have length 1,
        with weight 10; the network for accuracy is the mean of :math:`|f|`, and may rise. `learn`
        takes ten epochs of steps on 256 stored sets, Adam with a rate of 0.01 and a weight decay of
        0.001, no made-up sets, and labels made random for a random part of the items.

        The order of losses is turned the right way up, losses are standardised before they are
        ranked, and equal values of the metric share a rank, which the code does not do.

        Args:
            metric: As for the class; the code has accuracy of classes.
            generator: Source of randomness for the network's weights.

        Example:
            >>> import metricgrad as mg
            >>> mg.ReLoss.as_published().rank
            'sorting_network'

        Reference:
            ReLoss, Appendix A.2, and https://github.com/hunto/ReLoss.
        """
        chosen = to_metric(metric)
        net = None
        if chosen.mean_of_items:
            net = nets.Classification(monotone=False, absolute=True, generator=generator)
        return cls(
            chosen,
            net=net,
            smooth="each_item",
            rank="sorting_network",
            recipe="published",
            generator=generator,
        )

    @classmethod
    def pretrained(cls, name: str, *, metric: Any = None) -> "ReLoss":
        """A loss that ships with the library, learned and frozen.

        `metricgrad learn NAME --out FILE` learns it again, and a JSON file beside it in the package
        says what it was learned from and how well it ranks.

        Args:
            name: Name of its metric: `"accuracy"` for classes, `"f1"`, `"auc"`,
                `"average_precision"` or `"mcc"` for binary scores, `"pck"` for heatmaps.
            metric: The same metric with your options, such as `mg.metric("pck", radius=3.0)`.

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
        loss = load_surrogate(folder / f"{name}.safetensors", metric=metric)
        assert isinstance(loss, cls)
        return loss

    @classmethod
    def fits(cls, metric: Metric, kind: TargetKind) -> bool:
        """As for its metric; besides, classes of one set may be the tokens of one text."""
        return super().fits(metric, kind) or (metric.layout == "tokens" and kind == "classes")

    def unready(self, batches: int) -> str:
        """The warning, on the first batch, that the loss has not learned anything yet."""
        if self.learned or batches > 1:
            return ""
        return (
            f"this ReLoss has not learned {self.metric.name} yet and its network is random; call "
            "loss.learn() first, or use mg.ReLoss.pretrained(name)"
        )

    def learn(
        self,
        sources: Any = None,
        *,
        steps: int | None = None,
        share: float | None = None,
        sets: int | None = None,
        size: int | None = None,
        classes: int | None = None,
        shape: Sequence[int] | None = None,
        source: SourceName = "broad",
        rate: float = 1e-2,
        relabel: bool | None = None,
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
            steps: Number of optimizer steps (Adam), each on `sets` sets; None takes 300.
            share: p, the share of made-up sets (the generator G_R) in a step; None takes half.
            sets: N, the number of sets in each step; None takes 64.
            size: Items of a made-up set; None makes them as large as the stored ones, else 128.
            classes: Number of classes or labels of made-up sets, if no stored set shows it.
            shape: Shape of the scores of a made-up set of text, poses or label maps, if no stored
                set shows it, such as (32, 16, 100) for 32 texts of 16 places and 100 tokens.
            source: How sets are made up: `"broad"`, with models of every kind and quality;
                `"uniform"`, so that the metric's values are spread evenly; `"paper"`, at random.
            rate: The learning rate at the start; it falls to 0, or stays as published.
            relabel: Whether to replace the labels of stored sets as the released code does (None:
                for `as_published` alone), so that accuracies are spread evenly: a random part of
                the items gets random labels, the others get the predicted class.
            valid: Sources of held-out sets; None holds back a fifth of the stored sets.
            progress: Whether to show a progress bar, on a terminal, with the correlations of this
                loss and of the ordinary one.
            generator: Source of randomness for drawing and splitting sets.

        Returns:
            Rank correlations on held-out sets, with those of the ordinary loss for comparison.
        """
        recipe = RECIPES[self.recipe]
        share = recipe.share if share is None else share
        sets = recipe.sets if sets is None else sets
        relabel = recipe.relabel if relabel is None else relabel
        whole("steps", 1 if steps is None else steps, 1)
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
        steps = recipe.number_of_steps(pool, sets) if steps is None else steps
        draw = lesson(pool, made, share, sets, relabel, generator)
        return learn(self, draw, Exam(self, held, generator), recipe, steps, rate, progress)

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
