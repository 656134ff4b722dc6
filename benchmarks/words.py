"""Words in images, fine-tuned on the edit distance (ReLoss, Table 7; LS-ED before it).

A network reads all places of a word at once. It is trained on cross-entropy with photographed and
rendered words, and then fine-tuned for equally many steps on each loss. A set is a batch of words.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import metricgrad as mg
from benchmarks.classification import Settings
from benchmarks.data import data_folder
from benchmarks.multi30k import lines
from benchmarks.starts import fine_tuning
from benchmarks.stored import stored
from benchmarks.task import Examples, Keep, ScoreSets, Task, run_task, value_of
from benchmarks.token_losses import token_cross_entropy, token_loss, token_sets
from benchmarks.word_images import END, WordNet, iiit5k, rendered, targets, varied, word

_VALID = 0.15  # of the photographed training words
_SAMPLES = 200


def run(
    settings: Settings, seed: int, folder: Path | None, known: list[dict[str, Any]], keep: Keep
) -> dict[str, Any]:
    """Fine-tunes the network on the loss of the row, and tests what it reads."""
    return run_task(task(settings, seed, folder), settings, seed, known, keep)


def task(settings: Settings, seed: int, folder: Path | None) -> Task:
    """The network as cross-entropy left it, with the loss that the settings name."""
    plain = untrained(settings, seed, folder)
    return fine_tuning(
        plain, settings, seed, lambda steps: token_loss(plain, settings, seed, steps)
    )


def untrained(settings: Settings, seed: int, folder: Path | None) -> Task:
    """The task before anything is trained."""
    train, valid, test = _parts(settings, seed, folder)
    metric = mg.metric("edit_distance", end=END)
    exact = mg.metric("exact_match", end=END)
    relative = mg.metric("edit_distance", end=END, normalized=True)

    def sets(scores: Tensor, part: Examples, generator: torch.Generator) -> ScoreSets:
        return token_sets(scores, part, settings["learning_set"], generator)

    return Task(
        metric=metric,
        values={
            "total": value_of(metric),
            "accuracy": value_of(exact),
            "similarity": lambda ids, part: 1 - float(relative(ids, part.target)),
        },
        train=train,
        valid=valid,
        test=test,
        network=lambda: WordNet(settings["width"]),
        ordinary=token_cross_entropy,
        loss=lambda steps: token_cross_entropy,
        augment=lambda batch, generator: replace(batch, x=varied(batch.x, generator)),
        sets=sets,
        decoded=lambda scores: scores.argmax(-1),
        samples=_samples,
        seen=False,
    )


def _parts(
    settings: Settings, seed: int, folder: Path | None
) -> tuple[Examples, Examples, Examples]:
    """Training words, rendered and photographed; validation and test words, photographed."""
    place = data_folder(folder)
    photographed = _examples(*iiit5k(place / "iiit5k", "train"))
    order = torch.randperm(len(photographed), generator=torch.Generator().manual_seed(seed))
    held = round(_VALID * len(order))
    own = photographed.at(order[held:])
    number = settings["rendered"]

    def make(_: Path) -> dict[str, Tensor]:
        known = sorted(
            {each for line in lines(place / "multi30k", "train", "en") for each in line.split()}
        )
        vocabulary = [each for each in known if each.isascii() and each.isalpha()]
        images, texts = rendered(vocabulary, number, seed=0)
        return {"images": images, "targets": targets(texts)}

    made = stored("words-rendered", {"number": number}, make)
    # Photographed words are few, and what is tested: they count several times.
    several = settings["repeated"]
    train = Examples(
        torch.cat([_scaled(made["images"]), own.x.repeat(several, 1, 1, 1)]),
        torch.cat([made["targets"], own.target.repeat(several, 1)]),
    )
    return train, photographed.at(order[:held]), _examples(*iiit5k(place / "iiit5k", "test"))


def _scaled(images: Tensor) -> Tensor:
    return images.float() / 127.5 - 1


def _examples(images: Tensor, texts: list[str]) -> Examples:
    return Examples(_scaled(images), targets(texts))


def _samples(ids: Tensor, part: Examples) -> list[list[Any]]:
    """Number of the image, word, what was read, and their edit distance, of the first words."""
    metric = mg.metric("edit_distance", end=END)
    found = ids[:_SAMPLES]
    distances = metric(found.unsqueeze(1), part.target[: len(found)].unsqueeze(1)).tolist()
    return [
        [f"test word {row + 1}", word(part.target[row]), word(found[row]), -distances[row]]
        for row in range(len(found))
    ]
