"""A metric as the objective of boosted trees.

Gradient and curvature come from the metric's own gains (`slopes.py`), on sets that are drawn again
for every tree (`drawn_sets.py`). A set's metric is between 0 and 1, whatever its size, so the
numbers of a single row are tiny. One factor for all rows makes them as large as those of log loss,
so that `min_child_weight`, `reg_lambda` and the like mean what they usually do. The factor does not
change the value of a leaf, which is the ratio of the two.

A metric depends on few rows: those near its cut, or at the top. Trees that follow only these rows
overfit them. Two measures prevent this, and both are on by default. Most of the gradient is that of
log loss, to which every row contributes. And every tree sees the scores with different noise, so no
two trees agree on which rows matter.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any, get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from metricgrad import ops
from metricgrad.boosting.drawn_sets import Sets, drawn_sets, query_sets
from metricgrad.boosting.libraries import ABSENT, BoosterRows, rows_of
from metricgrad.boosting.slopes import Gains, Slopes
from metricgrad.metrics.checks import one_of, to_tensor, whole
from metricgrad.metrics.rows import at, to_rows
from metricgrad.surrogates import UniLoss
from metricgrad.surrogates.interpolation import RelaxationName

_LAYOUTS = ("binary", "grades", "any")
_ORDINARY = 0.75  # share of log loss
_CURVATURE = 0.25  # the mean over all rows without log loss: the most that it has
_FLOOR = 1e-3  # of the mean, for every row


def objective(
    metric: Any,
    *,
    set_size: int | None = 1024,
    relaxation: RelaxationName | float = "logistic",
    slope: float = 1.0,
    gains: Gains = "flip",
    groups: Any = None,
    ordinary: float | None = None,
    noise: float = 1.0,
    rows: Mapping[str, Any] | None = None,
    generator: torch.Generator | None = None,
) -> "Objective":
    r"""A metric as the objective of LightGBM, XGBoost or CatBoost.

    .. math:: g_i = -k \sum_d w_d \, h'(k c_d) \, \frac{\partial c_d}{\partial s_i}, \qquad
        h_i = k^2 \sum_{d \ni i} |w_d| \, \sigma'(k c_d)

    w are the metric's flip gains at the current scores, c the comparisons that decide it. These
    are mixed with the derivatives of log loss. It pays most after some trees on the ordinary loss:
    pass `init_model=` (LightGBM) or `xgb_model=` (XGBoost), or scores by `mg.boosting.start`.

    Args:
        metric: A name, a `ComparisonMetric`, or a function `f(scores, target)` in plain torch.
        set_size: Number of rows in the sets that the metric is computed on. New sets are drawn for
            every tree; None is the whole table. If there are queries, each query is a set.
        relaxation: How a comparison becomes soft, as in `UniLoss`. Logistic never ignores a lost
            comparison; the sigmoid ignores hopeless ones.
        slope: Steepness of the relaxation. Scores of trees start near 0 and are rarely beyond 5.
        gains: What a pair weighs: what changes if its comparison is decided the other way
            (`"flip"`), or if its two items swap their ranks, as in LambdaMART (`"swap"`).
        groups: `[N]`, ids of the queries that the rows belong to, for metrics of ranking. None
            takes what the library passes: LightGBM's `group`, XGBoost's `qid` of a DMatrix.
        ordinary: Share of log loss in gradient and curvature, from 0 to 1, after the metric's
            gradient was made as long as that of log loss. None is 0.75, and 0 where log loss does
            not know what counts: for queries, and with `rows`.
        noise: Standard deviation of the noise that is added to the scores before the derivatives
            are taken, different for every tree. 0 leaves the scores as they are.
        rows: Arguments of your own function besides scores and target, by name: `[N]` each.
        generator: Source of randomness for sets and noise.

    Returns:
        A function that all three libraries take as an objective.

    Example:
        >>> import lightgbm as lgb, metricgrad as mg
        >>> from sklearn.datasets import load_breast_cancer
        >>> x, y = load_breast_cancer(return_X_y=True)
        >>> quiet = {"verbose": -1, "objective": mg.boosting.objective("average_precision")}
        >>> booster = lgb.train(quiet, lgb.Dataset(x, y), num_boost_round=20)
        >>> round(float(mg.metric("average_precision")(booster.predict(x), y)), 2)
        1.0

    Reference:
        Burges et al. (2006), Learning to Rank with Nonsmooth Cost Functions, for the idea of gains
        times a logistic slope; UniLoss, Eqn. 5, for the metric.
    """
    return Objective(
        metric, set_size, relaxation, slope, gains, groups=groups, ordinary=ordinary, noise=noise,
        rows=rows, generator=generator,
    )  # fmt: skip


class Objective:
    """The function that `mg.boosting.objective` returns; boosting libraries call it for each tree.

    Example:
        >>> import metricgrad as mg
        >>> objective = mg.boosting.objective("auc", ordinary=0.0, noise=0.0)
        >>> scores = np.array([0.5, -0.5, 0.0, 1.0])
        >>> gradient, curvature = objective(np.array([1, 0, 1, 0]), scores)
        >>> gradient < 0  # the scores of positives have to rise
        array([ True, False,  True, False])
        >>> bool((curvature > 0).all())
        True
    """

    def __init__(
        self,
        metric: Any,
        set_size: int | None,
        relaxation: RelaxationName | float,
        slope: float,
        gains: Gains,
        *,
        groups: Any,
        ordinary: float | None,
        noise: float,
        rows: Mapping[str, Any] | None,
        generator: torch.Generator | None,
    ) -> None:
        if set_size is not None:
            whole("set_size", set_size, 2)
        if ordinary is not None and not 0 <= ordinary <= 1:
            raise ValueError(f"ordinary is a share from 0 to 1; got {ordinary}")
        if not 0 <= noise < math.inf:
            raise ValueError(f"noise must be 0 or more, and finite; got {noise}")
        one_of("gains", gains, get_args(Gains))
        loss = UniLoss(metric, relaxation=relaxation, slope=slope, generator=generator)
        if loss.relaxation.kind != "q":
            raise ValueError(
                "boosted trees take relaxation='logistic', 'sigmoid' or q between 0 and 1; got "
                f"{relaxation!r}"
            )
        if loss.metric.layout not in _LAYOUTS:
            raise ValueError(
                f"trees score the rows of a table, and {loss.metric.name} is about "
                f"{loss.metric.layout}; pass a metric of classes or rankings"
            )
        if loss.metric.layout == "grades" and ordinary:
            raise ValueError(
                f"log loss takes targets of 0 and 1, and {loss.metric.name} has grades; pass "
                f"ordinary=0, got {ordinary}"
            )
        if ordinary is None:
            ordinary = 0.0 if loss.metric.layout == "grades" or rows else _ORDINARY
        self.metric = loss.metric
        self.set_size = set_size
        self.ordinary = ordinary
        self.noise = noise
        self.generator = generator
        self.groups = None if groups is None else to_tensor("groups", groups)
        self.rows = to_rows(rows or {})
        self._slopes = Slopes(loss, gains)

    def __call__(
        self, y_true: Any, y_pred: Any, sample_weight: Any = ABSENT, group: Any = ABSENT
    ) -> tuple[np.ndarray, np.ndarray]:
        """Gradient and curvature of every row, in the shape of the scores.

        Called with `(scores, data)` by `lgb.train` and `xgb.train`, with targets, scores, weights
        and sizes of queries by their scikit-learn wrappers.
        """
        known = rows_of(y_true, y_pred, sample_weight, group)
        gradient, curvature = self.slopes(known, self._sets(known))
        if known.weight is not None:
            weight = known.weight.reshape(-1, *[1] * (gradient.dim() - 1))
            gradient = gradient * weight
            curvature = curvature * weight
        return gradient.numpy(), curvature.numpy()

    def calc_ders_range(
        self, approxes: Any, targets: Any, weights: Any
    ) -> list[tuple[float, float]]:
        """What CatBoost calls, with up to 1,000 rows at a time: each such block is one set."""
        target = torch.as_tensor(np.array(targets))
        scores = torch.as_tensor(np.array(approxes, dtype=np.float64))
        self._refuse_catboost()
        known = BoosterRows(scores, target, None, None)
        whole_block = drawn_sets(torch.zeros_like(target), None, self.generator)
        gradient, curvature = self.slopes(known, [whole_block])
        weight = torch.ones_like(scores) if weights is None else torch.as_tensor(np.array(weights))
        pairs = torch.stack([-gradient * weight, -curvature * weight], -1)  # CatBoost ascends
        return [(first, second) for first, second in pairs.tolist()]

    def calc_ders_multi(self, approxes: Any, target: Any, weight: Any) -> None:
        """Refuses many classes: CatBoost calls this row by row, and a metric is about a set."""
        raise ValueError(
            "CatBoost asks for the derivatives of many classes row by row, and "
            f"{self.metric.name} is about a set of rows; use LightGBM or XGBoost"
        )

    def slopes(self, known: BoosterRows, sets: Iterable[Sets]) -> tuple[Tensor, Tensor]:
        """Both derivatives, scaled, without the weights of rows."""
        rows = len(known.scores)
        if self.noise:
            drawn = torch.randn(known.scores.shape, generator=self.generator)
            known = known._replace(scores=known.scores + self.noise * drawn)
        # One place more, which padding is written to.
        gradient, curvature = known.scores.new_zeros(2, rows + 1, *known.scores.shape[1:])
        for index, real in sets if self.ordinary < 1 else ():
            first, second = self._slopes.of(
                known.scores[index], known.target[index], real, at(self.rows, index)
            )
            place = index.masked_fill(~real, rows)
            gradient[place] = first
            curvature[place] = second
        gradient = gradient[:-1]
        curvature = curvature[:-1]
        if self.ordinary:
            first, second = _log_loss(known)
            factor = ops.divide(first.norm(), gradient.norm())
            gradient = torch.lerp(factor * gradient, first, self.ordinary)
            curvature = torch.lerp(factor * curvature, second, self.ordinary)
        else:
            factor = ops.divide(curvature.new_tensor(_CURVATURE), curvature.mean())
            gradient *= factor
            curvature *= factor
        mean = float(curvature.mean()) or _CURVATURE  # 0 where no row has anything to gain
        return gradient, curvature.clamp(min=_FLOOR * mean)

    def _sets(self, known: BoosterRows) -> Iterable[Sets]:
        """The queries, or sets that are drawn now."""
        groups = self._groups(known)
        if groups is not None:
            if not known.target.any():
                raise ValueError(
                    f"all {len(known.target)} targets are 0, so no query has anything that "
                    f"{self.metric.name} could rank first"
                )
            return query_sets(groups)
        if self.metric.layout == "grades":
            raise ValueError(
                f"{self.metric.name} ranks the rows of a query; pass groups=ids to "
                "mg.boosting.objective, or group sizes to the library"
            )
        target = known.target
        if bool((target == target[0]).all()):
            raise ValueError(
                f"all {len(target)} targets are {target[0].item():g}, so no set has a positive and "
                f"a negative, which {self.metric.name} needs"
            )
        return [drawn_sets(target, self.set_size, self.generator)]

    def _groups(self, known: BoosterRows) -> Tensor | None:
        """Ids of the queries, `[N]`; sizes that the library passed become ids."""
        rows = len(known.target)
        if self.groups is not None:
            if self.groups.shape != (rows,):
                raise ValueError(
                    f"groups must have one id for each of the {rows} rows that the booster trains "
                    f"on; got {list(self.groups.shape)}"
                )
            return self.groups
        if known.sizes is None:
            return None
        if int(known.sizes.sum()) != rows:
            raise ValueError(
                f"the sizes of the groups must add up to {rows} rows; they add up to "
                f"{int(known.sizes.sum())}"
            )
        return torch.arange(len(known.sizes)).repeat_interleave(known.sizes.long())

    def _refuse_catboost(self) -> None:
        """Raises ValueError for data that cannot be matched to blocks of rows."""
        if self.metric.layout == "grades" or self.groups is not None or self.rows:
            raise ValueError(
                "CatBoost passes blocks of rows without saying which they are, so groups= and "
                "rows= cannot be matched to them; use LightGBM or XGBoost"
            )

    def __repr__(self) -> str:
        return (
            f"Objective({self.metric!r}, set_size={self.set_size}, ordinary={self.ordinary:g}, "
            f"noise={self.noise:g})"
        )


def _log_loss(known: BoosterRows) -> tuple[Tensor, Tensor]:
    """Both derivatives of cross-entropy by the scores."""
    if known.scores.dim() == 1:
        chance = known.scores.sigmoid()
        return chance - known.target.to(chance.dtype), chance * (1 - chance)
    chance = known.scores.softmax(-1)
    truth = F.one_hot(known.target.long(), known.scores.shape[-1])
    return chance - truth, chance * (1 - chance)
