"""Multi30k: captions of pictures in English and German, as ids of pieces of words.

One vocabulary of pieces (byte-pair encoding) serves both languages, so a loss that was learned from
translations into one can be used for the other.
"""

import gzip
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor

PAD, BEGIN, END, UNKNOWN = range(4)
_SPECIAL = ["<pad>", "<s>", "</s>", "<unk>"]


def lines(place: Path, part: str, language: str) -> list[str]:
    """The sentences of a part ("train", "val", "test_2016_flickr") in a language, "en" or "de"."""
    path = place / f"{part}.{language}.txt.gz"
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [line.strip() for line in file]


def pairs(place: Path, part: str, source: str, target: str) -> tuple[list[str], list[str]]:
    """The sentences of a part and their translations."""
    found = lines(place, part, source), lines(place, part, target)
    if len(found[0]) != len(found[1]):
        raise ValueError(
            f"{part} has {len(found[0])} sentences in {source} and {len(found[1])} in {target}; "
            "line by line, one must be the translation of the other"
        )
    return found


def pieces(texts: Iterable[str], number: int) -> Tokenizer:
    """Learns a vocabulary of so many pieces from sentences of both languages."""
    tokenizer = Tokenizer(models.BPE(unk_token=_SPECIAL[UNKNOWN]))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=number, special_tokens=_SPECIAL, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def ids_of(tokenizer: Tokenizer, texts: Sequence[str], places: int) -> Tensor:
    """Ids `[N, places]`, padded; longer sentences are cut."""
    found = torch.full((len(texts), places), PAD)
    for row, each in enumerate(tokenizer.encode_batch(list(texts))):
        ids = each.ids[:places]
        found[row, : len(ids)] = torch.tensor(ids, dtype=torch.int64)
    return found


def texts_of(tokenizer: Tokenizer, ids: Tensor) -> list[str]:
    """The sentences that ids `[N, T]` stand for, without padding."""
    rows = [[each for each in row if each not in (PAD, -1)] for row in ids.tolist()]
    return tokenizer.decode_batch(rows)
