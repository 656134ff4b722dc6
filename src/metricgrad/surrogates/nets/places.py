"""Places of a text and pixels of a heatmap: what a network is shown of them.

A set network knows items, each with a target and a score. Text and poses are told in such pairs:

    tokens    a place: 1, and the log-odds of its target's token; each text is a set of its own
    spans     an end: 0 for the start and 1 for the end, and the log-odds that the answer's place
              has among all places; each text is a set of its own
    heatmaps  a joint: 1, and by how much the pixels that are near enough lead over the others

The lead is that of soft maxima, log sum exp, on maps with mean 0 and spread 1: the highest pixel
decides, on whatever scale. Of several references, the likeliest counts.
"""

import math

import torch
from torch import Tensor

from metricgrad import ops
from metricgrad.metrics import Metric
from metricgrad.metrics.base import Inputs
from metricgrad.metrics.checks import expand_where, real_scores
from metricgrad.metrics.margins import soft_pixel_margin
from metricgrad.surrogates.base import counted, wrong_shapes
from metricgrad.surrogates.wrappers import has_token


def token_inputs(metric: Metric, scores: Tensor, target: Tensor, where: Tensor | None) -> Inputs:
    """Scores of tokens, and the ids of all references `[..., N, T, R]`, -1 for none."""
    places = scores.shape[:-1]
    several = target.dim() == scores.dim() >= 3 and target.shape[:-2] == places[:-1]
    ids = target.movedim(-2, -1) if several else target.unsqueeze(-1)
    if scores.dim() < 3 or not scores.is_floating_point() or ids.shape[:-1] != places:
        takes = (
            "a network of tokens takes scores [..., N, T, V] and one target id for each place "
            "[..., N, T], or those of R references [..., N, R, T]"
        )
        raise wrong_shapes(takes, metric, scores, target)
    where = expand_where(where, places, len(places) - 1)
    known = has_token(metric, ids)
    live = known.any(-1) & counted(scores[..., 0], where)
    scores = real_scores(scores, live.unsqueeze(-1))
    return Inputs(scores, torch.where(known, ids.long(), -1), live)


def span_inputs(metric: Metric, scores: Tensor, target: Tensor, where: Tensor | None) -> Inputs:
    """Start and end scores, and which places belong to the (likeliest) answer, `[..., N, T]`."""
    several = target.dim() == scores.dim() and target.shape[-2] > 0
    answers = target if several else target.unsqueeze(-2)
    if scores.dim() < 3 or scores.shape[-1] != 2 or answers.shape[:-2] != scores.shape[:-2]:
        takes = (
            "a network of spans takes start and end scores [..., N, T, 2] and positions [..., N, "
            "L], padded with -1, or those of R answers [..., N, R, L]"
        )
        raise wrong_shapes(takes, metric, scores, target)
    length = scores.shape[-2]
    if target.numel() and int(target.max()) >= length:
        raise ValueError(f"target must hold positions below {length}; got {int(target.max())}")
    where = expand_where(where, scores.shape[:-1], scores.dim() - 2)
    live = counted(scores[..., 0], where)
    scores = real_scores(scores, live.unsqueeze(-1))
    places = torch.arange(length, device=scores.device)
    inside = (answers.unsqueeze(-2) == places.unsqueeze(-1)).any(-1)
    if several:
        first = ends(inside).clamp(0, length - 1)
        likely = scores.detach().unsqueeze(-3).expand(*inside.shape, 2)
        value = likely.gather(-2, first.unsqueeze(-2)).sum((-1, -2))
        value = value.masked_fill(~inside.any(-1), -torch.inf)
        chosen = value.argmax(-1)[..., None, None].expand(*value.shape[:-1], 1, length)
        inside = inside.gather(-2, chosen)
    return Inputs(scores, inside.squeeze(-2), live)


def ends(inside: Tensor) -> Tensor:
    """The first and the last place of answers, `[..., 2]`; T and -1 where there is none."""
    length = inside.shape[-1]
    places = torch.arange(length, device=inside.device)
    first = torch.where(inside, places, length).amin(-1)
    return torch.stack([first, torch.where(inside, places, -1).amax(-1)], -1)


def visible(scores: Tensor, where: Tensor) -> Tensor:
    """Scores `[..., T, *]` as low as can be where places do not count, unless none does."""
    hidden = (~where & where.any(-1, keepdim=True)).unsqueeze(-1)
    return scores.masked_fill(hidden, torch.finfo(scores.dtype).min / 4)


def shown_tokens(inputs: Inputs) -> Inputs:
    """Places as items: 1 and the log-odds of the target's token, `[..., N, T]`."""
    scores, ids, where = inputs
    odds = torch.where(ids >= 0, token_odds(scores, ids.clamp(min=0)), -torch.inf).amax(-1)
    assert where is not None
    return Inputs(torch.where(where, odds, 0.0), torch.ones_like(where), where)


def shown_spans(inputs: Inputs) -> Inputs:
    """Ends of answers as items: 0 or 1 and the log-odds of their places, `[..., N, 2]`."""
    scores, answer, where = inputs
    assert where is not None
    inside = answer & where
    known = inside.any(-1, keepdim=True).expand(*inside.shape[:-1], 2)
    places = ends(inside).clamp(0, inside.shape[-1] - 1).unsqueeze(-1)
    odds = token_odds(visible(scores, where).mT, places).squeeze(-1)
    which = torch.tensor([False, True], device=scores.device).expand(known.shape)
    return Inputs(torch.where(known, odds, 0.0), which, known)


def shown_joints(metric: Metric, inputs: Inputs) -> Inputs:
    """Joints as items: 1 and the lead of the pixels that are near enough, `[..., N * K]`."""
    scores, joints, where = inputs
    near = metric.within(scores.shape, joints).flatten(-2).flatten(-3, -2)
    pixels = scores.flatten(-2).flatten(-3, -2)
    pixels = ops.standardise(pixels, torch.full_like(pixels, 1 / max(1, pixels.shape[-1])))
    lead = soft_pixel_margin(pixels, near, 1.0)
    every = torch.ones_like(lead, dtype=torch.bool)
    return Inputs(lead, every, None if where is None else where.flatten(-2))


def token_odds(scores: Tensor, ids: Tensor) -> Tensor:
    """Log-odds `[..., R]` of the tokens with ids `[..., R]`, by the softmax of `[..., V]`."""
    found = []
    for index in ids.unsqueeze(-2).unbind(-1):
        rest = scores.scatter(-1, index, -torch.inf).logsumexp(-1)
        found.append(scores.gather(-1, index).squeeze(-1) - rest)
    return torch.stack(found, -1)


def positions(length: int, width: int, like: Tensor) -> Tensor:
    """Sines and cosines of every place, `[T, width]`: nothing is learned, so any length will do."""
    places = torch.arange(length, device=like.device, dtype=like.dtype).unsqueeze(-1)
    steps = torch.arange(0, width, 2, device=like.device, dtype=like.dtype)
    waves = torch.exp(-math.log(10_000) * steps / width)
    return torch.stack([(places * waves).sin(), (places * waves).cos()], -1).flatten(-2)
