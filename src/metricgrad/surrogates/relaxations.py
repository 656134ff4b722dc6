r"""How a comparison becomes a soft bit: smooth steps h and their derivatives.

The paper's step is the sigmoid (Eqn. 9). It saturates on both sides: comparisons that are
hopelessly lost get no gradient, which is what one wants where labels are noisy, and not where a
model can fit everything. The q family

.. math:: h_q(c) = 1 - (1 - \sigma(c)^q) / q

runs from the sigmoid (q = 1) to 1 + log sigmoid, the logistic loss (q = 0), which never lets go of
a lost comparison. Steps other than the sigmoid leave [0, 1]: they suit the multilinear
interpolation, not IDW.
"""

from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

_sigmoid_slope = torch.ops.aten.sigmoid_backward.default
RelaxationName = Literal["sigmoid", "logistic", "squared_hinge"]


class Relaxation(NamedTuple):
    """A smooth step.

    Attributes:
        kind: `"q"` or `"squared_hinge"`.
        q: where in the q family, 0 (logistic) to 1 (sigmoid).
        slope: how steep: the step is h(slope * comparison).
    """

    kind: Literal["q", "squared_hinge"]
    q: float
    slope: float

    @property
    def bounded(self) -> bool:
        """Whether soft bits stay in [0, 1]."""
        return self.kind == "q" and self.q == 1

    def soft(self, comparisons: Tensor) -> Tensor:
        """Soft bits, in the shape of the comparisons."""
        c = self.slope * comparisons
        if self.kind == "squared_hinge":
            return 1 - F.relu(1 - c) ** 2
        if self.q == 1:
            return c.sigmoid()
        if self.q == 0:
            return 1 + F.logsigmoid(c)
        return 1 - (1 - torch.exp(self.q * F.logsigmoid(c))) / self.q

    def weighted_slope(self, comparisons: Tensor, weight: Tensor) -> Tensor:
        """The weight times the soft bits' derivative by slope * comparison."""
        c = self.slope * comparisons
        if self.kind == "squared_hinge":
            return 2 * weight * F.relu(1 - c)
        if self.q == 1:
            return _sigmoid_slope(
                weight, c.sigmoid_()
            )  # weight * sigmoid * (1 - sigmoid), in one pass
        fall = weight * torch.sigmoid(-c)
        return fall if self.q == 0 else torch.exp(self.q * F.logsigmoid(c)) * fall


def relaxation(name: RelaxationName | float, slope: float) -> Relaxation:
    """The relaxation of that name, or of that q between 0 and 1; ValueError for others.

    Args:
        name: `"sigmoid"`, `"logistic"`, `"squared_hinge"`, or q.
        slope: how steep, above 0.

    Returns:
        The relaxation.
    """
    if not slope > 0:
        raise ValueError(f"slope must be above 0; got {slope}")
    match name:
        case "sigmoid":
            return Relaxation("q", 1.0, slope)
        case "logistic":
            return Relaxation("q", 0.0, slope)
        case "squared_hinge":
            return Relaxation("squared_hinge", 1.0, slope)
        case int() | float() if 0 <= name <= 1:
            return Relaxation("q", float(name), slope)
        case _:
            raise ValueError(
                f"relaxation must be 'sigmoid', 'logistic', 'squared_hinge' or q from 0 (logistic) to 1 (sigmoid); "
                f"got {name!r}"
            )
