"""Tensor maths with no notion of a metric: masked reductions, ranks, correlations, noise, groups.

Everything acts on the last dimension and takes any number of leading ones. `where` has the shape of
the values and is True for the entries that count; None counts all. Correlations are `[...]` in
[-1, 1] from x and y `[..., N]`, and 0 where one of them is constant.

All rank statistics rest on one fact about a sorted row: `tie_starts`, the position at which each
entry's tie group begins. From it follow averaged ranks, tied pairs and the vertices of ROC and
precision-recall curves (`metrics/counts.py`), all in O(N log N) time and O(N) memory. Only
`soft_rank` compares all pairs, because its gradient needs them; `projected_rank` does not.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from metricgrad.isotonic import isotonic as isotonic
from metricgrad.isotonic import projected_rank as projected_rank


def float_dtype(values: Tensor) -> torch.dtype:
    """The dtype in which to compute with these values without losing their order.

    It is float32 for floats up to that, float64 for float64 and integers (exact up to 2^53).

    Example:
        >>> float_dtype(torch.zeros(1, dtype=torch.bfloat16)), float_dtype(torch.tensor([1]))
        (torch.float32, torch.float64)
    """
    if values.is_floating_point():
        return torch.promote_types(values.dtype, torch.float32)
    return torch.float64


def divide(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Element-wise quotient in which zero division gives 0.

    Example:
        >>> divide(torch.tensor([1.0, 1.0, 0.0]), torch.tensor([4.0, 0.0, 0.0]))
        tensor([0.2500, 0.0000, 0.0000])
    """
    zero = denominator == 0
    return torch.where(zero, 0.0, numerator / torch.where(zero, 1.0, denominator))


def log_odds(scores: Tensor) -> Tensor:
    r"""Logarithm of the odds that softmax gives each class, without saturation.

    .. math:: \log \frac{p_c}{1 - p_c} = s_c - \log \sum_{j \ne c} e^{s_j}

    They have the order of the probabilities, even where these round to 1 (in float32 from a lead
    of 17): `[..., C]`, float64, from scores `[..., C]` of at least two classes.

    Example:
        >>> log_odds(torch.tensor([[0.0, 20.0], [0.0, 30.0]]))
        tensor([[-20.,  20.],
                [-30.,  30.]], dtype=torch.float64)
    """
    # Items whose classes only swap scores tie on paper. Sums in sorted order make them tie here,
    # too; in another order, the last digit may differ. It must not depend on the highest score
    # either, which is therefore subtracted.
    ordered = scores.sort(-1).values.to(torch.float64)
    highest = ordered[..., -1:].detach()
    ordered = ordered - highest
    log_probability = scores - highest - ordered.logsumexp(-1, keepdim=True)
    probability = log_probability.exp()
    lead = ordered[..., -1:] - ordered[..., :-1].logsumexp(-1, keepdim=True)
    likely = probability > 0.5
    unlikely = log_probability - torch.log1p(-probability.masked_fill(likely, 0.0))
    return torch.where(likely, lead, unlikely)


def masked_sum(values: Tensor, where: Tensor | None = None) -> Tensor:
    """Sum over the last dimension of the entries that count; 0 where nothing counts.

    Example:
        >>> masked_sum(torch.tensor([1.0, 2.0, float("nan")]), torch.tensor([True, True, False]))
        tensor(3.)
    """
    return values.sum(-1) if where is None else torch.where(where, values, 0).sum(-1)


def masked_mean(values: Tensor, where: Tensor | None = None) -> Tensor:
    """Mean over the last dimension of the entries that count; 0 where nothing counts.

    Example:
        >>> masked_mean(torch.tensor([1.0, 2.0, 9.0]), torch.tensor([True, True, False]))
        tensor(1.5000)
    """
    values = values.to(float_dtype(values))
    where = torch.ones_like(values, dtype=torch.bool) if where is None else where
    return divide(masked_sum(values, where), where.sum(-1).to(values.dtype))


def standardise(values: Tensor, weights: Tensor) -> Tensor:
    """Values `[..., N]` with mean 0 and spread 1 under weights of sum 1; all 0 if they are equal.

    Example:
        >>> standardise(torch.tensor([1.0, 3.0]), torch.tensor([0.5, 0.5]))
        tensor([-1.,  1.])
    """
    if not values.shape[-1]:
        return values
    centred = values - (weights * values).sum(-1, keepdim=True)
    variance = (weights * centred.square()).sum(-1, keepdim=True)
    # Rounding leaves a trace of spread in equal values. The root of 1 is taken there, as that of 0
    # has no gradient.
    largest = values.detach().abs().amax(-1, keepdim=True)
    alike = variance <= (8 * torch.finfo(values.dtype).eps * largest) ** 2
    return torch.where(alike, 0.0, centred / torch.where(alike, 1.0, variance).sqrt())


def tie_starts(ordered: Tensor) -> Tensor:
    """Position `[..., N]` at which the tie group of each entry begins, in rows sorted either way.

    Example:
        >>> tie_starts(torch.tensor([5.0, 3.0, 3.0, 3.0, 1.0]))
        tensor([0, 1, 1, 1, 4])
    """
    positions = torch.arange(ordered.shape[-1], device=ordered.device).expand(ordered.shape)
    if ordered.shape[-1] < 2:
        return positions
    repeats = ordered[..., 1:] == ordered[..., :-1]
    starts = torch.cat([positions[..., :1], positions[..., 1:].masked_fill(repeats, 0)], -1)
    return starts.cummax(-1).values


def hard_rank(values: Tensor, where: Tensor | None = None) -> Tensor:
    """Ascending ranks, 1 for the smallest, the mean for ties, 0 for entries that do not count.

    Example:
        >>> hard_rank(torch.tensor([10.0, 30.0, 20.0, 20.0]))
        tensor([1.0000, 4.0000, 2.5000, 2.5000])

    Reference:
        `scipy.stats.rankdata(method="average")`.
    """
    ordered, order = _masked_last(values, where).sort(-1)
    first = tie_starts(ordered)
    last = values.shape[-1] - 1 - tie_starts(ordered.flip(-1)).flip(-1)
    ranks = (first + last).to(float_dtype(values)) / 2 + 1
    ranks = torch.empty_like(ranks).scatter_(-1, order, ranks)
    return ranks if where is None else torch.where(where, ranks, 0.0)


def dense_rank(values: Tensor, where: Tensor | None = None) -> Tensor:
    """Ranks 0, 1, 2, ... without gaps; equal values share a rank, as do entries that do not count.

    Example:
        >>> dense_rank(torch.tensor([0.5, 2.0, 0.5, 1.0]))
        tensor([0, 2, 0, 1])
    """
    ordered, order = _masked_last(values, where).sort(-1)
    starts = tie_starts(ordered)
    new = starts == torch.arange(values.shape[-1], device=values.device)
    return torch.empty_like(starts).scatter_(-1, order, new.cumsum(-1) - 1)


def first_alike(keys: Tensor) -> Tensor:
    """For each entry of keys `[N]`, the index of the first one with the same key.

    Example:
        >>> first_alike(torch.tensor([5, 3, 5, 3]))
        tensor([0, 1, 0, 1])
    """
    _, same = keys.unique(return_inverse=True)
    places = torch.arange(len(keys), device=keys.device)
    return torch.zeros_like(same).scatter_reduce(0, same, places, "amin", include_self=False)[same]


def spearman(x: Tensor, y: Tensor, where: Tensor | None = None) -> Tensor:
    """Spearman rank correlation: the Pearson correlation of averaged ranks.

    Example:
        >>> spearman(torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([1.0, 3.0, 2.0, 4.0]))
        tensor(0.8000)

    Reference:
        `scipy.stats.spearmanr`.
    """
    return pearson(hard_rank(x, where), hard_rank(y, where), where)


def pearson(x: Tensor, y: Tensor, where: Tensor | None = None) -> Tensor:
    """Pearson correlation, differentiable in both arguments.

    Example:
        >>> pearson(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([2.0, 4.0, 6.0]))
        tensor(1.)

    Reference:
        `scipy.stats.pearsonr`.
    """
    return (_unit(x, where) * _unit(y, where)).sum(-1).clamp(-1.0, 1.0)


def kendall(x: Tensor, y: Tensor, where: Tensor | None = None) -> Tensor:
    r"""Kendall's tau-b, ties accounted for, in memory linear in N.

    With n0 pairs in all, n1 tied in x, n2 tied in y, n3 tied in both and D discordant:

    .. math:: \tau_b = (n_0 - n_1 - n_2 + n_3 - 2D) / \sqrt{(n_0 - n_1)(n_0 - n_2)}

    Example:
        >>> kendall(torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([1.0, 3.0, 2.0, 4.0]))
        tensor(0.6667)

    Reference:
        `scipy.stats.kendalltau`; Knight (1966) for counting discordant pairs as inversions.
    """
    x_rank = dense_rank(x, where)
    y_rank = dense_rank(y, where)
    # What does not count has the highest rank in both, so it ties with its like and is concordant
    # with all others.
    by_both = (x_rank * x.shape[-1] + y_rank).argsort(-1)
    x_rank = x_rank.gather(-1, by_both)
    y_rank = y_rank.gather(-1, by_both)
    counted = torch.ones_like(x_rank, dtype=torch.bool) if where is None else where
    counted = counted.gather(-1, by_both)

    def tied_pairs(ordered: Tensor) -> Tensor:
        before = torch.arange(ordered.shape[-1], device=ordered.device) - tie_starts(ordered)
        return masked_sum(before, counted)

    size = counted.sum(-1)
    pairs = size * (size - 1) // 2
    x_ties = tied_pairs(x_rank)
    both_ties = tied_pairs(x_rank * x.shape[-1] + y_rank)
    y_sorted, y_order = y_rank.sort(-1)
    counted = counted.gather(-1, y_order)
    y_ties = tied_pairs(y_sorted)
    agreement = pairs - x_ties - y_ties + both_ties - 2 * _inversions(y_rank)
    scale = ((pairs - x_ties).to(torch.float64) * (pairs - y_ties).to(torch.float64)).sqrt()
    return divide(agreement.to(torch.float64), scale).clamp(-1.0, 1.0).to(float_dtype(x))


def soft_rank(values: Tensor, slope: float = 1.0, where: Tensor | None = None) -> Tensor:
    r"""Differentiable ascending ranks: the step of every pairwise comparison becomes a sigmoid.

    .. math:: r_i = 1 + \sum_{j \ne i} \sigma(\mathrm{slope} \, (v_i - v_j))

    The steeper the slope, the closer they are to `hard_rank`, which also gives 0 to entries that do
    not count. Needs O(N^2) memory.

    Example:
        >>> soft_rank(torch.tensor([10.0, 30.0, 20.0, 20.0]))
        tensor([1.0001, 3.9999, 2.5000, 2.5000])
    """
    values = values if where is None else torch.where(where, values, 0.0)
    wins = torch.sigmoid(slope * (values.unsqueeze(-1) - values.unsqueeze(-2)))
    # The comparison with itself contributes 1/2, where the rank needs 1.
    if where is None:
        return wins.sum(-1) + 0.5
    return torch.where(where, masked_sum(wins, where.unsqueeze(-2)) + 0.5, 0.0)


def add_gumbel_noise(
    scores: Tensor, slope: float, number: int, generator: torch.Generator | None
) -> Tensor:
    r"""Scores with Gumbel noise, so that comparisons are won with the chance of their soft bits.

    .. math:: s'_i = s_i - \log(-\log u_i) / k, \qquad P(s'_i > s'_j) = sigmoid(k (s_i - s_j))

    u is uniform in (0, 1) and k is the slope. The difference of two Gumbel variables is logistic,
    and all comparisons of one draw fit an order. Comparisons drawn one by one would hardly move any
    item, because its many comparisons would average out.

    Args:
        scores: `[..., N]`.
        slope: Steepness of the soft bits, k; a gentler slope means more noise.
        number: How many noisy copies of the scores to draw.
        generator: Source of randomness; None uses torch's global random numbers.

    Returns:
        `[number, ..., N]`.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> drawn = add_gumbel_noise(torch.tensor([1.0, 0.0]), 2.0, 10_000, generator)
        >>> won = (drawn[:, 0] > drawn[:, 1]).float().mean()
        >>> bool((won - torch.tensor(2.0).sigmoid()).abs() < 0.02)
        True
    """
    shape = (number, *scores.shape)
    uniform = torch.rand(shape, generator=generator, device=scores.device, dtype=scores.dtype)
    tiny = torch.finfo(scores.dtype).tiny
    return scores - uniform.clamp(min=tiny).log().neg().clamp(min=tiny).log() / slope


def group_batches(groups: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Batches of groups of similar size, one row each, so that padding at most doubles the items.

    Yields:
        From ids `[N]` in any order: which `[G]`, positions of these groups among all by ascending
        id; index `[G, L]`, positions of their items, 0 as padding; where `[G, L]`, False there.

    Example:
        >>> for which, index, where in group_batches(torch.tensor([7, 3, 7, 7])):
        ...     print(which.tolist(), index.tolist(), where.tolist())
        [0] [[1]] [[True]]
        [1] [[0, 2, 3]] [[True, True, True]]
    """
    _, sizes = groups.unique(return_counts=True)
    order = groups.argsort(stable=True)
    starts = sizes.cumsum(0) - sizes
    octaves = torch.log2(sizes.to(torch.float64)).ceil()
    for octave in octaves.unique():
        which = (octaves == octave).nonzero().squeeze(-1)
        places = torch.arange(int(sizes[which].max()), device=groups.device)
        where = places < sizes[which].unsqueeze(-1)
        index = order[torch.where(where, starts[which].unsqueeze(-1) + places, 0)]
        yield which, index.masked_fill(~where, 0), where


def _unit(values: Tensor, where: Tensor | None) -> Tensor:
    """Values with mean 0 and length 1 among those that count, 0 elsewhere; 0 for constant rows."""
    values = values.to(float_dtype(values))
    values = values if where is None else torch.where(where, values, 0.0)
    largest = values.detach().abs().amax(-1, keepdim=True) if values.shape[-1] else values
    values = divide(values, largest)
    centred = values - masked_mean(values, where).unsqueeze(-1)
    centred = centred if where is None else torch.where(where, centred, 0.0)
    squares = (centred * centred).sum(-1, keepdim=True)
    # Rounding leaves a trace of spread in a constant row. The root of 1 is taken there: that of 0
    # has no gradient.
    constant = squares <= values.shape[-1] * torch.finfo(values.dtype).eps ** 2
    return torch.where(constant, 0.0, centred / torch.where(constant, 1.0, squares).sqrt())


def _masked_last(values: Tensor, where: Tensor | None) -> Tensor:
    """Float values that sort last where they do not count."""
    values = values.to(float_dtype(values))
    return values if where is None else values.masked_fill(~where, torch.inf)


def _inversions(ranks: Tensor) -> Tensor:
    """Pairs i < j with ranks[i] > ranks[j], counted bit by bit from the highest.

    Rows stay grouped by the bits seen so far, in their original order within a group. Each bit adds
    the pairs of a group in which a 1 stands before a 0; a stable sort then splits the groups.
    """
    total = torch.zeros(ranks.shape[:-1], dtype=torch.int64, device=ranks.device)
    for bit in reversed(range(max(ranks.shape[-1] - 1, 0).bit_length())):
        ones = (ranks >> bit) & 1
        ones_before = ones.cumsum(-1) - ones
        group_start = tie_starts(ranks >> (bit + 1))
        total += ((1 - ones) * (ones_before - ones_before.gather(-1, group_start))).sum(-1)
        ranks = ranks.gather(-1, (ranks >> bit).argsort(dim=-1, stable=True))
    return total
