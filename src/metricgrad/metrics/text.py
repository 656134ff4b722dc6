"""Metrics of text: token ids, or the text made of them, against references.

Every metric says what an item contributes (matches, lengths, distances) and how the sums over a set
become its value: BLEU and the word error rate are ratios of sums over the whole set (a corpus), the
others means over the items.
"""

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from metricgrad import ops
from metricgrad.metrics.checks import whole
from metricgrad.metrics.edits import edit_distances
from metricgrad.metrics.tokens import (
    TextMetric,
    common_subsequence,
    lengths,
    ngram_matches,
)


@dataclass(frozen=True, kw_only=True)
class ItemMetric(TextMetric):
    """Mean over the items of the value with their most favourable reference."""

    @abstractmethod
    def of_pairs(self, hypothesis: Tensor, references: Tensor) -> Tensor:
        """Value `[B, R]` of each hypothesis with each reference; higher is better."""

    def of_items(self, hypothesis: Tensor, references: Tensor) -> Tensor:
        """The best value over the references that are there, `[B, 1]`."""
        values = self.of_pairs(hypothesis, references).masked_fill(~_there(references), -torch.inf)
        return values.amax(-1, keepdim=True)

    def of_sums(self, sums: Tensor, items: Tensor) -> Tensor:
        """The mean."""
        return ops.divide(sums[..., 0], items)


@dataclass(frozen=True, kw_only=True)
class ExactMatch(ItemMetric):
    """Share of the items that equal one of their references.

    Example:
        >>> target = torch.tensor([[1, 2, -1], [3, 4, 6]])
        >>> ExactMatch()(torch.tensor([[1, 2, -1], [3, 4, 5]]), target)
        tensor(0.5000, dtype=torch.float64)

    Reference:
        A loop over items; SQuAD's exact match without its normalisation of text.
    """

    name = "exact_match"
    reference = "a loop over items"

    def of_pairs(self, hypothesis: Tensor, references: Tensor) -> Tensor:
        """1 where no edit is needed."""
        return (edit_distances(hypothesis, references) == 0).to(torch.float64)


@dataclass(frozen=True, kw_only=True)
class SpanF1(ItemMetric):
    """Mean over the items of the F1 of their tokens as a bag: 2 |common| / (|answer| + |truth|).

    Two empty answers agree (1), one empty answer does not (0). For models that score the start and
    the end of an answer, `decode=mg.decode_spans` compares positions instead of tokens.

    Example:
        >>> SpanF1()(torch.tensor([[1, 2, -1]]), torch.tensor([[2, 3, 4]]))
        tensor(0.4000, dtype=torch.float64)

    Reference:
        SQuAD's F1 without its normalisation of text; a loop over items.
    """

    name = "span_f1"
    reference = "SQuAD's F1 (a loop)"

    def of_pairs(self, hypothesis: Tensor, references: Tensor) -> Tensor:
        """2 |common| / (|hypothesis| + |reference|)."""
        common = ngram_matches(hypothesis, references, 1, pool=False).squeeze(-1)
        return _dice(common, hypothesis, references, both_empty=1.0)


@dataclass(frozen=True, kw_only=True)
class RougeL(ItemMetric):
    """Mean F1 of the longest common subsequence (lcs): 2 |lcs| / (|hypothesis| + |reference|).

    Example:
        >>> RougeL()(torch.tensor([[1, 2, 3, 4]]), torch.tensor([[1, 3, 4, 5]]))
        tensor(0.7500, dtype=torch.float64)

    Reference:
        `rouge_score.rouge_scorer.RougeScorer(["rougeL"])`.
    """

    name = "rouge_l"
    reference = "rouge-score rougeL"

    def of_pairs(self, hypothesis: Tensor, references: Tensor) -> Tensor:
        """2 |lcs| / (|hypothesis| + |reference|)."""
        common = common_subsequence(hypothesis, references)
        return _dice(common, hypothesis, references, both_empty=0.0)


@dataclass(frozen=True, kw_only=True)
class EditDistance(TextMetric):
    """Insertions, deletions and substitutions from the closest reference, summed over the set.

    Args:
        normalized: Whether to average, over the items, the distance divided by the longer of the
            two lengths; 0 to 1.

    Example:
        >>> scores = torch.tensor([[1, 2, 3, 4]])
        >>> EditDistance()(scores, torch.tensor([[1, 3, 4, 5]]))
        tensor(2., dtype=torch.float64)
        >>> EditDistance(normalized=True)(scores, torch.tensor([[1, 3, 4, 5]]))
        tensor(0.5000, dtype=torch.float64)

    Reference:
        `rapidfuzz.distance.Levenshtein`.
    """

    name = "edit_distance"
    higher_is_better = False
    best = 0.0
    reference = "rapidfuzz Levenshtein"
    splits_characters = True

    normalized: bool = False
    worst: float = field(init=False, repr=False, compare=False)
    is_total: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "worst", 1.0 if self.normalized else torch.inf)
        object.__setattr__(self, "is_total", not self.normalized)

    def of_items(self, hypothesis: Tensor, references: Tensor) -> Tensor:
        """The smallest distance, `[B, 1]`."""
        distance = edit_distances(hypothesis, references).to(torch.float64)
        if self.normalized:
            longer = torch.maximum(lengths(hypothesis).unsqueeze(-1), lengths(references))
            distance = ops.divide(distance, longer.to(torch.float64))
        return distance.masked_fill(~_there(references), torch.inf).amin(-1, keepdim=True)

    def of_sums(self, sums: Tensor, items: Tensor) -> Tensor:
        """The total, or the mean of the normalised distances."""
        return ops.divide(sums[..., 0], items) if self.normalized else sums[..., 0]


@dataclass(frozen=True, kw_only=True)
class WordErrorRate(TextMetric):
    """Edits from the closest reference over its words, both summed over the set; may exceed 1.

    Example:
        >>> WordErrorRate()(torch.tensor([[1, 2, 3, 4]]), torch.tensor([[1, 3, 4, 5]]))
        tensor(0.5000, dtype=torch.float64)

    Reference:
        `torchmetrics.functional.text.word_error_rate`; several references: a loop.
    """

    name = "word_error_rate"
    higher_is_better = False
    best = 0.0
    worst = torch.inf
    undefined = "0 where the references have no words"
    reference = "torchmetrics word_error_rate"

    def of_items(self, hypothesis: Tensor, references: Tensor) -> Tensor:
        """Edits from and words of the (first) closest reference, `[B, 2]`."""
        distance = edit_distances(hypothesis, references).to(torch.float64)
        distance = distance.masked_fill(~_there(references), torch.inf)
        edits, closest = distance.min(-1, keepdim=True)
        return torch.cat([edits, lengths(references).gather(-1, closest).to(torch.float64)], -1)

    def of_sums(self, sums: Tensor, items: Tensor) -> Tensor:
        """Edits / words."""
        return ops.divide(sums[..., 0], sums[..., 1])


@dataclass(frozen=True, kw_only=True)
class CharacterErrorRate(WordErrorRate):
    """Edits from the closest reference over its characters, both summed over the set.

    With `detokenize`, texts are compared character by character; without, tokens are characters.

    Example:
        >>> letters = dict(enumerate("abc"))
        >>> metric = CharacterErrorRate(detokenize=lambda ids: "".join(letters[i] for i in ids))
        >>> metric(torch.tensor([[0, 1]]), torch.tensor([[0, 1, 2, 2]]))
        tensor(0.5000, dtype=torch.float64)

    Reference:
        `torchmetrics.functional.text.char_error_rate`; several references: a loop.
    """

    name = "character_error_rate"
    undefined = "0 where the references have no characters"
    reference = "torchmetrics char_error_rate"
    splits_characters = True


@dataclass(frozen=True, kw_only=True)
class Bleu(TextMetric):
    """Corpus BLEU of the set, 0 to 1: brevity penalty times geometric mean of n-gram precisions.

    Matches are clipped to the reference that has an n-gram most often. The brevity penalty is
    exp(1 - r / h) for h < r, with h the sum of the hypotheses' lengths and r the sum of the
    reference lengths closest to them (the shorter of equally close ones).

    Args:
        max_order: Length of the longest n-grams that are compared; 4 is BLEU-4.
        smoothing: What replaces a precision of 0, as in sacrebleu's `smooth_method`: `"exp"`
            halves from one such order to the next, `"floor"` puts 0.1 matches, `"add-k"` adds 1 to
            matches and totals above unigrams.
        effective_order: Whether only orders count that the hypotheses are long enough for, as for
            single sentences.

    Example:
        >>> Bleu()(torch.tensor([[1, 2, 3, 4, 5]]), torch.tensor([[1, 2, 3, 4, 6]]))
        tensor(0.6687, dtype=torch.float64)

    Reference:
        `sacrebleu.BLEU(tokenize="none")` on ids written as words, divided by 100.
    """

    name = "bleu"
    undefined = "0 for no items, or if no token matches"
    reference = "sacrebleu corpus_score / 100"

    max_order: int = 4
    smoothing: Literal["exp", "floor", "add-k", "none"] = "exp"
    effective_order: bool = False

    def __post_init__(self) -> None:
        whole("max_order", self.max_order, 1)
        if self.smoothing not in ("exp", "floor", "add-k", "none"):
            allowed = "'exp', 'floor', 'add-k' or 'none'"
            raise ValueError(f"smoothing must be {allowed}; got {self.smoothing!r}")

    def of_items(self, hypothesis: Tensor, references: Tensor) -> Tensor:
        """Matches, n-grams, hypothesis and reference length: `[B, 2 * max_order + 2]`."""
        matches = ngram_matches(hypothesis, references, self.max_order, pool=True)
        length = lengths(hypothesis).unsqueeze(-1)
        totals = (length - torch.arange(self.max_order, device=length.device)).clamp(min=0)
        candidates = lengths(references)
        # Twice the difference, plus 1 for longer ones: the shorter of equally close ones wins.
        difference = 2 * (candidates - length).abs() + (candidates > length)
        difference = difference.masked_fill(~_there(references), torch.iinfo(torch.int64).max)
        closest = candidates.gather(-1, difference.argmin(-1, keepdim=True))
        return torch.cat([matches, totals, length, closest], -1).to(torch.float64)

    def of_sums(self, sums: Tensor, items: Tensor) -> Tensor:
        """The geometric mean of the smoothed precisions, times the brevity penalty."""
        matches, totals, length, reference = sums.split([self.max_order, self.max_order, 1, 1], -1)
        precisions, reached = self._smooth(matches, totals)
        logs = torch.where(reached, precisions, 0.0).log()
        mean = ops.masked_mean(logs, reached) if self.effective_order else logs.mean(-1)
        brevity = torch.exp((1 - ops.divide(reference, length)).clamp(max=0.0)).squeeze(-1)
        return torch.where(matches.any(-1), brevity * mean.exp(), 0.0)

    def _smooth(self, matches: Tensor, totals: Tensor) -> tuple[Tensor, Tensor]:
        """Precisions `[..., max_order]`, and which orders have any n-grams."""
        none = matches == 0
        match self.smoothing:
            case "exp":
                halvings = (none & (totals > 0)).cumsum(-1).to(matches.dtype)
                matches = torch.where(none, torch.exp2(-halvings), matches)
            case "floor":
                matches = torch.where(none, 0.1, matches)
            case "add-k":
                extra = (torch.arange(self.max_order, device=totals.device) > 0).to(totals.dtype)
                matches = matches + extra
                totals = totals + extra
            case "none":
                pass
        return ops.divide(matches, totals), totals > 0


def _there(references: Tensor) -> Tensor:
    """Which references count, `[B, R]`: those with tokens, or all if none has any."""
    filled = lengths(references) > 0
    return filled | ~filled.any(-1, keepdim=True)


def _dice(common: Tensor, hypothesis: Tensor, references: Tensor, both_empty: float) -> Tensor:
    """2 |common| / (|hypothesis| + |reference|), `[B, R]`."""
    total = (lengths(hypothesis).unsqueeze(-1) + lengths(references)).to(torch.float64)
    return torch.where(total > 0, ops.divide(2 * common.to(torch.float64), total), both_empty)
