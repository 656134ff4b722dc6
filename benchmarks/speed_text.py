"""Speed of metrics of text: a thousand sentence pairs, against the packages that they must equal.

The packages get sentences as text and split them into words; our metrics get token ids.
"""

import random
from collections.abc import Callable, Iterator

import sacrebleu
import torch
from rapidfuzz.distance import Levenshtein
from rouge_score.rouge_scorer import RougeScorer
from torch import Tensor

import metricgrad as mg
from benchmarks.timing import Row, within

PAIRS = 1000
SEED = 0
_COMMON = 60  # words that make up half of the text
_WORDS = 3000


def reading() -> Iterator[Row]:
    """BLEU, ROUGE-L and edit distance of a thousand sentences of 5 to 40 words."""
    source = random.Random(SEED)
    references = [_sentence(source) for _ in range(PAIRS)]
    hypotheses = [_corrupted(sentence, source) for sentence in references]
    ids = _padded(hypotheses), _padded(references)
    mine, right = ([" ".join(map(str, row)) for row in rows] for rows in (hypotheses, references))
    bleu = sacrebleu.BLEU(tokenize="none", force=True)
    rouge = RougeScorer(["rougeL"], tokenizer=_Words())

    def rouge_l() -> float:
        pairs = zip(right, mine, strict=True)
        return sum(rouge.score(one, other)["rougeL"].fmeasure for one, other in pairs) / PAIRS

    def edits() -> float:
        pairs = zip(mine, right, strict=True)
        return sum(Levenshtein.distance(one.split(), other.split()) for one, other in pairs)

    packages: tuple[tuple[str, str, Callable[[], float]], ...] = (
        ("bleu", "sacrebleu", lambda: bleu.corpus_score(mine, [right]).score / 100),
        ("rouge_l", "rouge-score", rouge_l),
        ("edit_distance", "rapidfuzz", edits),
    )
    for name, package, theirs in packages:
        metric = mg.metric(name)
        ours = lambda m=metric: m(*ids).item()  # noqa: E731
        if abs(ours() - theirs()) > 1e-9:
            raise ValueError(f"{name} is {ours()}, and {theirs()} by {package}")
        yield within(f"{name} of {PAIRS:,} sentence pairs, against {package}", ours, theirs, 3, 20)


class _Words:
    """Splits at spaces, where rouge-score would also change the words."""

    def tokenize(self, text: str) -> list[str]:
        return text.split()


def _sentence(source: random.Random) -> list[int]:
    return [_word(source) for _ in range(source.randint(5, 40))]


def _word(source: random.Random) -> int:
    return source.randint(1, _COMMON if source.random() < 0.5 else _WORDS)


def _corrupted(sentence: list[int], source: random.Random) -> list[int]:
    """The sentence with a tenth of its words left out, as many inserted, and others replaced."""
    words: list[int] = []
    for word in sentence:
        chance = source.random()
        if chance > 0.1:
            words += [_word(source)] * (chance < 0.2)
            words.append(word if chance < 0.85 else _word(source))
    return words or sentence


def _padded(rows: list[list[int]]) -> Tensor:
    longest = max(map(len, rows))
    return torch.tensor([row + [-1] * (longest - len(row)) for row in rows])
