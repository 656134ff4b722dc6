r"""What a learned loss of answers has to see: how much the predicted span overlaps the true one.

The F1 of a span is decided by the best span alone. `mg.nets.Spans` sees the probabilities of places
to be the start and the end; the best span is where both are high, which it has to find out by
attention. Here the network sees the overlap itself, with starts and ends that are more and more
decided, by a slope b:

    p, q     softmax(b s) of the starts and of the ends
    m_t      (sum of p up to t) * (sum of q from t on): how far place t lies between both
    F1       2 (sum of m in the answer) / (length of the answer + sum of m)

With a large b, m is 1 in the best span and 0 elsewhere, and this is the F1 of the best span. With
b = 1 there is a gradient where the decision is clear and wrong.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

import metricgrad as mg
from metricgrad.metrics import Inputs

_SHOWN = 3  # numbers that an answer shows for each slope


class Overlaps(mg.nets.LossNet):
    """A mean over answers of a function of their overlaps, and of the chances of both ends.

    Args:
        slopes: What scores are multiplied by before the softmax.
    """

    def __init__(
        self,
        slopes: Sequence[float] = (1.0, 2.0, 4.0, 8.0),
        width: int = 32,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(slopes=tuple(slopes), width=width)
        self.layers = nn.Sequential(
            nn.Linear(_SHOWN * len(slopes), width),
            nn.ELU(),
            nn.Linear(width, width),
            nn.ELU(),
            nn.Linear(width, 1),
        )
        for parameter in self.parameters():
            spread = parameter.shape[-1] ** -0.5
            nn.init.uniform_(parameter, -spread, spread, generator=generator)
        self._checked = mg.nets.Spans(width=2, heads=1, blocks=1).check

    def check(
        self, metric: mg.Metric, scores: Tensor, target: Tensor, where: Tensor | None
    ) -> Inputs:
        """As `mg.nets.Spans` does: scores, and which places belong to the answer."""
        return self._checked(metric, scores, target, where)

    def forward(self, metric: mg.Metric, inputs: Inputs) -> Tensor:
        """The value of every set."""
        scores, answer, where = inputs
        assert where is not None
        shown = overlaps(scores, answer, where, self.options["slopes"])
        return mg.ops.masked_mean(self.layers(shown).squeeze(-1), where.any(-1))


def overlaps(scores: Tensor, answer: Tensor, where: Tensor, slopes: Sequence[float]) -> Tensor:
    """F1 and the chances of the true start and end, for every slope, `[..., N, 3 * slopes]`."""
    inside = answer.to(scores.dtype)
    first = inside * (1 - nn.functional.pad(inside, (1, 0))[..., :-1])
    last = inside * (1 - nn.functional.pad(inside, (0, 1))[..., 1:])
    hidden = (~where & where.any(-1, keepdim=True)).unsqueeze(-1)
    lowest = torch.finfo(scores.dtype).min / 4 / max(slopes)
    scores = scores.masked_fill(hidden, lowest)
    shown = []
    for slope in slopes:
        start, end = (slope * scores).softmax(-2).unbind(-1)
        between = start.cumsum(-1) * end.flip(-1).cumsum(-1).flip(-1)
        common = (between * inside).sum(-1)
        total = (inside + between).sum(-1)
        shown.append(2 * common / total.clamp(min=torch.finfo(scores.dtype).tiny))
        shown += [(start * first).sum(-1), (end * last).sum(-1)]
    return torch.stack(shown, -1)
