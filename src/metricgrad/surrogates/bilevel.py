r"""BilevelLoss: a set network that imitates a metric by its values, learned along with the model.

The surrogate is a network of the whole set, h(mean_i g(y_i, s_i)) (Grabocka et al., 2019, Eqn. 2),
invariant to the order of its items by construction: g extracts error components of each item, their
mean makes indicators of the set, h combines these. Its misfit is the distance from the metric as a
loss (Eqn. 3 and 5), and a model descends the surrogate (Eqn. 4). `nets/base.py` says what g gets of
an item.

Universal learning comes before there is a model. A pool of sets is made up and the metric evaluated
on all of it at once (Sec. 3.1); Adam descends the misfit on a few of these sets at a time, with a
learning rate that falls to zero; fresh sets of the same source tell how well it went.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from metricgrad import ops
from metricgrad.metrics.base import Inputs
from metricgrad.metrics.checks import shape, whole
from metricgrad.metrics.one_score import item_scores
from metricgrad.metrics.registry import metric_config
from metricgrad.progress import progress as to_progress
from metricgrad.surrogates.base import LearnedSurrogate, as_loss, full_precision
from metricgrad.surrogates.nets.base import Elements, set_inputs, to_elements
from metricgrad.surrogates.random_sets import SourceName, made_up_source, shape_options
from metricgrad.surrogates.score_sets import Source
from metricgrad.surrogates.set_networks import Hidden, checked_widths, new_layers, set_network

Distance = Literal["l1", "l2", "huber"]
_HELD_OUT = 1024  # made-up sets, at most
_AT_ONCE = 1 << 24  # scores of made-up sets, drawn at once
_CLIP = 1.0
_DISTANCES: dict[str, Callable[[Tensor], Tensor]] = {
    "l1": torch.abs,
    "l2": torch.square,
    "huber": lambda gap: F.smooth_l1_loss(gap, torch.zeros_like(gap), reduction="none"),
}


class Learned(NamedTuple):
    """What a surrogate knows of its metric, on sets that it did not learn from.

    Attributes:
        misfit: Mean distance between estimate and metric.
        spearman: Rank correlation of estimate and metric.
        constant: The misfit of the best constant estimate, to compare with.
    """

    misfit: float
    spearman: float
    constant: float


class BilevelLoss(LearnedSurrogate):
    r"""A learned set network in a metric's place; its value estimates the metric's, as a loss.

    .. math:: \hat\ell(y, s) = h\Big(\frac{1}{N} \sum_i g(y_i, s_i)\Big)

    A new loss is random: train it with `learn_universal` (SL-U), along with a model (SL-S), or both
    (SL-R); `mg.JointTraining` does the last two.

    Args:
        metric: A name, a `Metric` or any callable `(scores, target) -> number`, including those of
            scikit-learn, of binary scores, classes, labels or grades, and metrics of label maps,
            poses and text.
        hidden: Widths of the layers of g and of h; the paper's by default.
        distance: How the misfit is measured: `"l1"` (the paper's), `"l2"` or `"huber"`.

    Example:
        >>> import metricgrad as mg
        >>> generator = torch.Generator().manual_seed(0)
        >>> loss = mg.BilevelLoss("f1", generator=generator)
        >>> learned = loss.learn_universal(steps=300, pool=2048, generator=generator)
        >>> learned.spearman > 0.9  # with the metric, on sets it has not seen
        True
        >>> loss(torch.randn(100, requires_grad=True), torch.arange(100) % 3 == 0).backward()

    Reference:
        Learning Surrogate Losses, Sec. 3, Eqn. 2 to 5.
    """

    def __init__(
        self,
        metric: Any,
        *,
        hidden: Hidden = ((30, 30), (10, 10)),
        distance: Distance = "l1",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(metric)
        if distance not in _DISTANCES:
            raise ValueError(
                f"distance must be one of {', '.join(map(repr, _DISTANCES))}; got {distance!r}"
            )
        self.distance: Distance = distance
        self.hidden = checked_widths(hidden)
        self.g = new_layers((2, *self.hidden[0]), generator)
        self.h = new_layers((self.hidden[0][-1], *self.hidden[1], 1), generator)
        self.universal = False
        self._fresh = self.h[-1].detach().clone()

    def unready(self, batches: int) -> str:
        """The warning that the loss has not learned anything yet, if its weights never changed."""
        if batches == 1 or not torch.equal(self.h[-1].detach().to(self._fresh), self._fresh):
            return ""
        way_out = "call loss.learn_universal() first, or take steps on loss.misfit(scores, target)"
        return f"this BilevelLoss has not learned {self.metric.name} yet and is random; {way_out}"

    def losses(self, scores: Tensor, target: Tensor, where: Tensor | None) -> tuple[Tensor, Tensor]:
        """The network's estimate for every set, and whether the metric has a value there."""
        inputs = self.check(scores, target, where)
        elements = self.elements(inputs)
        return self.estimate(elements), self.metric.has_value(inputs, elements.defined())

    def check(self, scores: Tensor, target: Tensor, where: Tensor | None) -> Inputs:
        """The inputs as the network takes them: scores of tokens are not decoded."""
        scores = item_scores(self.metric, scores, target)
        return set_inputs(self.metric, scores, target.detach(), where)

    def elements(self, inputs: Inputs) -> Elements:
        """What g gets of checked inputs."""
        return to_elements(self.metric, inputs, self.scale.dtype)

    def estimate(self, elements: Elements) -> Tensor:
        """Eqn. 2 for every set, on the metric's scale: `[...]`."""
        with full_precision(elements.items.device.type):
            values = set_network(elements, list(self.g), list(self.h))
            return torch.addcmul(self.shift, values, self.scale)

    @torch.no_grad()
    def truth(self, inputs: Inputs) -> Tensor:
        """The metric of checked inputs as a loss, `[...]`; NaN where it is undefined."""
        with full_precision(inputs.scores.device.type):
            decoded = self.metric.layout in ("tokens", "spans")
            values = self.metric.of_sets if decoded else self.metric.evaluate
            return as_loss(self.metric, values(*inputs)).to(self.scale.dtype)

    def misfit(self, scores: Tensor, target: Tensor, where: Tensor | None = None) -> Tensor:
        """The mean distance between estimate and metric, Eqn. 3 and 5; the scores get no gradient.

        That of an unbounded metric is in units of its spread. Sets on which the metric is undefined
        are left out.
        """
        inputs = self.check(scores.detach(), target, where)
        truth = self.truth(inputs)
        self.standardise(truth)
        known = truth.isfinite()
        distances = self.distances(self.elements(inputs), torch.where(known, truth, 0.0))
        return ops.masked_mean(distances.flatten(), known.flatten())

    def distances(self, elements: Elements, truth: Tensor) -> Tensor:
        """The distance between estimate and truth for every set, `[...]`."""
        return self.apart(self.estimate(elements), truth)

    def apart(self, estimate: Tensor, truth: Tensor) -> Tensor:
        """The distance between estimates and truths, `[...]`."""
        gap = estimate - truth
        return self.measure(gap / self.scale if self.unbounded else gap)

    def measure(self, gap: Tensor) -> Tensor:
        """The length of differences, by the distance of the misfit."""
        return _DISTANCES[self.distance](gap)

    @property
    def unbounded(self) -> bool:
        """Whether the metric has no best or worst value, so that only data tells its scale."""
        return not (math.isfinite(self.metric.best) and math.isfinite(self.metric.worst))

    def standardise(self, truth: Tensor, *, anyway: bool = False) -> None:
        """Starts estimates at mean and spread of these values, once if unbounded, or `anyway`."""
        if not (anyway or (self.unbounded and self.scale == 1 and self.shift == 0)):
            return
        truth = truth[truth.isfinite()].to(self.scale.dtype)
        if truth.numel():
            spread = truth.std() if truth.numel() > 1 else truth.abs().max()
            self.shift.copy_(truth.mean())
            self.scale.copy_(torch.where(spread > 0, spread, 1.0))

    def learn_universal(
        self,
        *,
        steps: int = 8000,
        source: SourceName | Source = "broad",
        sets: int = 64,
        size: int = 100,
        pool: int = 16384,
        rate: float = 5e-3,
        classes: int | None = None,
        shape: Sequence[int] | None = None,
        progress: bool = True,
        generator: torch.Generator | None = None,
    ) -> Learned:
        """Learns the metric from made-up sets, before there is a model (Sec. 3.1, Eqn. 3).

        This is the start of SL-U and SL-R.

        Args:
            steps: Number of optimizer steps (Adam); 8,000 take about half a minute, and a few
                hundred give a rough idea.
            source: Where sets come from: `"paper"` (Bernoulli targets, Normal scores), `"broad"`
                (`surrogates/score_sets.py`), `"uniform"` (`surrogates/random_sets.py`), or a
                function from a generator to scores and target with a leading dimension of sets.
            sets: Number of sets in each step.
            size: Items of a made-up set. Choose the size of the batches to come, because metrics of
                small sets are distributed differently.
            pool: Number of different made-up sets, from which the steps draw.
            rate: The learning rate at the start; it falls to 0.
            classes: Number of classes or labels, if the scores have them.
            shape: Shape of the scores of one set of text, poses or label maps, such as (32, 16,
                100) for 32 texts of 16 places and 100 tokens.
            progress: Whether to show a progress bar, on a terminal.
            generator: Source of randomness for the sets.

        Returns:
            Misfit and rank correlation on new sets.
        """
        whole("steps", steps, 1)
        whole("sets", sets, 1)
        whole("size", size, 1)
        whole("pool", pool, sets)
        before = {name: value.clone() for name, value in self.state_dict().items()}

        def made_up(number: int) -> tuple[Elements, Tensor]:
            if callable(source):
                return _made_up(self, source, number, generator)
            numbers = math.prod(shape) if shape else size * (classes or 1)
            at_once = max(1, min(number, _AT_ONCE // max(1, numbers)))
            options = (size, classes, source, "learn_universal", shape)
            return _made_up(self, made_up_source(self.metric, at_once, *options), number, generator)

        elements, truth = made_up(pool)
        if truth.max() == truth.min():
            raise ValueError(
                f"{self.metric.name}, as a loss, is {truth[0].item():.6g} on all of {len(truth)} "
                "made-up sets, so there is nothing to learn from; pass a source on which it varies"
            )
        if not self.universal:
            self.standardise(truth, anyway=True)
        optimizer = torch.optim.Adam(self.parameters(), rate, fused=True)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        with to_progress(f"learning {self.metric.name}", steps, progress) as tell:
            for step in range(steps):
                drawn = torch.randint(len(truth), (sets,), generator=generator)
                misfit = self.distances(elements.some(drawn), truth[drawn]).mean()
                optimizer.zero_grad(set_to_none=True)
                misfit.backward()
                norm = torch.nn.utils.clip_grad_norm_(self.parameters(), _CLIP)
                if not norm.isfinite():
                    self.load_state_dict(before)
                    raise RuntimeError(
                        f"learning {self.metric.name} diverged at step {step + 1} of {steps} "
                        f"(misfit {misfit.item():.3g}); pass a smaller rate than {rate}"
                    )
                optimizer.step()
                schedule.step()
                if not (step + 1) % 100:
                    tell(100, f"misfit {misfit.item():.4f}")
        elements, truth = made_up(min(_HELD_OUT, pool))
        with torch.no_grad():
            found = self.estimate(elements)
            misfit = self.apart(found, truth).mean().item()
            constant = self.apart(truth.median(), truth).mean().item()
        self.universal = True
        return Learned(misfit, ops.spearman(found, truth.to(found.dtype)).item(), constant)

    def shape_options(self, scores: Tensor, target: Tensor, size: int) -> dict[str, Any]:
        """What tells `learn_universal` of sets of so many items with scores like these."""
        inputs = self.check(scores, target, None)
        return shape_options(self.metric, inputs.scores, size, self.elements(inputs).many)

    def config(self) -> dict[str, Any]:
        """The options from which the loss can be built again; its weights are stored separately."""
        own = {"hidden": self.hidden, "distance": self.distance, "universal": self.universal}
        return {"metric": metric_config(self.metric), **own}

    def extra_repr(self) -> str:
        """The metric and the distance."""
        return f"{self.metric!r}, distance={self.distance!r}"


def _made_up(
    loss: BilevelLoss, draw: Source, number: int, generator: torch.Generator | None
) -> tuple[Elements, Tensor]:
    """What g gets of so many sets, and their truths, without sets that have no value."""
    parts: list[Elements] = []
    truths: list[Tensor] = []
    shapes = set()
    count = 0
    while count < number:
        scores, target = draw(generator)
        shapes.add(scores.shape[1:])
        if scores.dim() < 2 or not len(scores) or len(shapes) > 1:
            raise ValueError(
                "a source must give scores and target with a leading dimension of sets, all of one "
                f"size; got scores {shape(scores)} and target {shape(target)}"
            )
        count += len(scores)
        inputs = loss.check(scores, target, None)
        truths.append(loss.truth(inputs))
        parts.append(loss.elements(inputs))
    items = torch.cat([each.items for each in parts])
    weights = torch.cat([each.weights for each in parts])
    truth = torch.cat(truths)
    defined = truth.isfinite()
    if 2 * defined.sum() < count:
        raise ValueError(
            f"{loss.metric.name} gave NaN or infinity on {count - int(defined.sum())} of {count} "
            "made-up sets, which leaves too little to learn from; pass a source whose sets it is "
            "defined on"
        )
    return Elements(items, weights, parts[0].many).some(defined), truth[defined]
