"""Metrics as people write them: legal torch and Python, in styles that are hard to watch.

Each is a function of one binary set, scores `[N]` and target `[N]`. Most are F1, recall, a
precision among the first, or the share of pairs in order, written in an odd way.
"""

import itertools
import random
import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

FIRST = 3


def in_place_on_a_clone(scores: Tensor, target: Tensor) -> Tensor:
    kept = scores.clone()
    kept[kept < 0] = 0
    kept[kept > 0] = 1
    return (kept * target).sum() / target.sum()


def in_place_on_the_input(scores: Tensor, target: Tensor) -> Tensor:
    scores.sub_(0.25)
    return ((scores > 0) == (target > 0)).double().mean()


def loop_over_items(scores: Tensor, target: Tensor) -> float:
    right = 0
    for score, truth in zip(scores, target, strict=True):
        right += int((score > 0) == (truth > 0))
    return right / len(target)


def numbers_of_python(scores: Tensor, target: Tensor) -> float:
    picked = [
        truth for score, truth in zip(scores.tolist(), target.tolist(), strict=True) if score > 0
    ]
    return sum(picked) / max(1, len(picked))


def branch_on_a_value(scores: Tensor, target: Tensor) -> Tensor:
    if scores.max() > 1:
        return ((scores > 0) == (target > 0)).double().mean()
    return torch.tensor(0.0, dtype=torch.float64)


def numpy_inside(scores: Tensor, target: Tensor) -> float:
    order = np.argsort(-scores.detach().numpy(), kind="stable")
    return float(target.numpy()[order[:FIRST]].mean())


def plain_f1(scores: Tensor, target: Tensor) -> Tensor:
    predicted = (scores > 0).to(torch.float64)
    return 2 * (predicted * target).sum() / (predicted.sum() + target.sum())


with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # deprecated, but people have it
    scripted = torch.jit.script(plain_f1)


class Module(nn.Module):
    def forward(self, scores: Tensor, target: Tensor) -> Tensor:
        return (nn.functional.threshold(scores, 0.0, 0.0).sign() * target).sum() / target.sum()


def sign_of_relu(scores: Tensor, target: Tensor) -> Tensor:
    return (scores.relu().sign() * target).sum() / target.sum()


class Decide(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor) -> Tensor:
        return (scores > 0).to(scores.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0]


def custom_gradient(scores: Tensor, target: Tensor) -> Tensor:
    decided: Any = Decide.apply(scores)
    return (decided * target).sum() / target.sum()


def through_dlpack(scores: Tensor, target: Tensor) -> float:
    return float(((np.from_dlpack(scores.detach()) > 0) == target.numpy()).mean())


def scattered_counts(scores: Tensor, target: Tensor) -> Tensor:
    cells = torch.zeros(4, dtype=torch.float64)
    cells.scatter_add_(0, 2 * target + (scores > 0).long(), torch.ones(len(target)).double())
    return 2 * cells[3] / (2 * cells[3] + cells[1] + cells[2])


def bincounted(scores: Tensor, target: Tensor) -> Tensor:
    cells = torch.bincount(2 * target + (scores > 0).long(), minlength=4)
    return cells[3] / (cells[3] + cells[2])


def einsum_of_pairs(scores: Tensor, target: Tensor) -> Tensor:
    above = (scores[:, None] > scores[None]).double()
    pairs = torch.einsum("i,ij,j->", target.double(), above, 1 - target.double())
    return pairs / (target.sum() * (1 - target).sum())


def where_with_nan(scores: Tensor, target: Tensor) -> Tensor:
    return torch.where(scores > 0, target.double(), torch.nan).nanmean().nan_to_num()


def picked_by_mask(scores: Tensor, target: Tensor) -> Tensor:
    return torch.masked_select(target.double(), scores > 0).sum() / target.sum()


def nonzero_places(scores: Tensor, target: Tensor) -> Tensor:
    places = torch.nonzero(scores > 0).squeeze(-1)
    return target[places].double().sum() / max(1, len(places))


def sorted_gathered_summed(scores: Tensor, target: Tensor) -> Tensor:
    order = torch.sort(scores, descending=True, stable=True).indices
    hits = target.gather(0, order).double()
    precision = hits.cumsum(0) / torch.arange(1, len(hits) + 1)
    return (precision * hits).sum() / hits.sum()


def value_of_topk(scores: Tensor, target: Tensor) -> Tensor:
    return target[scores >= scores.topk(FIRST).values.min()].double().mean()


def kth_value(scores: Tensor, target: Tensor) -> Tensor:
    cut = scores.kthvalue(len(scores) - FIRST).values
    return ((scores > cut) * target).sum() / target.sum()


def above_the_median(scores: Tensor, target: Tensor) -> Tensor:
    return ((scores > scores.median()) == (target > 0)).double().mean()


def above_a_quantile(scores: Tensor, target: Tensor) -> Tensor:
    return ((scores > torch.quantile(scores, 0.7)) == (target > 0)).double().mean()


def searched(scores: Tensor, target: Tensor) -> Tensor:
    below = torch.searchsorted(scores[target == 0].sort().values, scores[target == 1])
    return below.double().sum() / (target.sum() * (1 - target).sum())


def stepped(scores: Tensor, target: Tensor) -> Tensor:
    predicted = torch.heaviside(scores, torch.zeros((), dtype=scores.dtype))
    return 1 - (predicted - target).abs().mean()


def clamped_and_rounded(scores: Tensor, target: Tensor) -> Tensor:
    return 1 - ((scores + 0.5).clamp(0, 1).round() - target).abs().mean()


def exclusive_or(scores: Tensor, target: Tensor) -> Tensor:
    return 1 - ((scores > 0) ^ target.bool()).sum() / len(target)


def without_gradient(scores: Tensor, target: Tensor) -> Tensor:
    with torch.no_grad():
        return ((scores.detach().data > 0) == (target > 0)).double().mean()


def written_to_out(scores: Tensor, target: Tensor) -> Tensor:
    predicted = torch.empty(len(scores), dtype=torch.bool)
    torch.gt(scores, 0, out=predicted)
    return (predicted & (target > 0)).sum() / target.sum()


def mapped(scores: Tensor, target: Tensor) -> Tensor:
    return torch.vmap(lambda score: (score > scores).double().sum())(scores) @ target.double()


def random_one(scores: Tensor, target: Tensor) -> Tensor:
    return ((scores > 0) == (target > 0)).double().mean() + random.random()


def of_all_pairs_in_python(scores: Tensor, target: Tensor) -> float:
    pairs = itertools.product(scores[target == 1], scores[target == 0])
    won = [bool(above > below) for above, below in pairs]
    return sum(won) / len(won)


def own_threshold(scores: Tensor, target: Tensor) -> float:
    return float(((scores.numpy() > 0.8) == target.numpy()).mean())


def of_one_probability(scores: Tensor, target: Tensor) -> Tensor:
    return (scores.sigmoid().gt(0.5).long().eq(target)).float().mean()


def stacked_columns(scores: Tensor, target: Tensor) -> Tensor:
    two = torch.stack([-scores, scores], -1)
    return (two.argmax(-1) == target).double().mean()


STYLES = [
    in_place_on_a_clone, in_place_on_the_input, loop_over_items, numbers_of_python,
    branch_on_a_value, numpy_inside, scripted, Module(), sign_of_relu, custom_gradient,
    through_dlpack, scattered_counts, bincounted,
    einsum_of_pairs, where_with_nan, picked_by_mask, nonzero_places, sorted_gathered_summed,
    value_of_topk, kth_value, above_the_median, above_a_quantile, searched, stepped,
    clamped_and_rounded, exclusive_or, without_gradient, written_to_out, mapped, random_one,
    of_all_pairs_in_python, own_threshold, of_one_probability, stacked_columns,
]  # fmt: skip
