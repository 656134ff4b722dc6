"""Translation with all words at once, fine-tuned on BLEU (ReLoss, Table 6).

A teacher that translates word by word is trained on Multi30k, and its translations of the training
sentences are what a network learns from that gives all words at once. This network is trained on
cross-entropy, and then fine-tuned for equally many steps on each loss. Cross-entropy asks for the
right word at each place; BLEU does not mind a place. A set is a batch of sentences, whose pieces of
words are compared. What is tested is sacrebleu's BLEU of whole sentences, with people's
translations as references.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import sacrebleu
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

import metricgrad as mg
from benchmarks import multi30k
from benchmarks.classification import Settings
from benchmarks.data import data_folder
from benchmarks.multi30k import END, PAD, ids_of, texts_of
from benchmarks.starts import fine_tuning
from benchmarks.stored import stored, trained
from benchmarks.task import Examples, Keep, Loss, ScoreSets, Task, batches, run_task
from benchmarks.token_losses import (
    sequence_relation,
    token_cross_entropy,
    token_loss,
    token_sets,
)
from benchmarks.translators import Guess, Parallel, Teacher

METRIC = mg.metric("bleu", padding=PAD)
_AT_ONCE = 128
_SAMPLES = 200
_MADE_OF = ("source", "target", "pieces", "places", "width", "layers", "sentences", "teacher")


def run(
    settings: Settings, seed: int, folder: Path | None, known: list[dict[str, Any]], keep: Keep
) -> dict[str, Any]:
    """Fine-tunes the network on the loss of the row, and tests its translations."""
    return run_task(task(settings, seed, folder), settings, seed, known, keep)


def task(settings: Settings, seed: int, folder: Path | None) -> Task:
    """The network as cross-entropy left it, with the loss that the settings name."""
    plain = untrained(settings, seed, folder)

    def loss(steps: int) -> Loss:
        if not settings.get("other_direction"):
            return token_loss(plain, settings, seed, steps)
        turned = {**settings, "source": settings["target"], "target": settings["source"]}
        theirs = sequence_relation(untrained(turned, seed, folder), turned, seed)
        return token_loss(plain, settings, seed, steps, theirs)

    return fine_tuning(plain, settings, seed, loss)


def untrained(settings: Settings, seed: int, folder: Path | None) -> Task:
    """The task before the parallel network is trained: the teacher has translated."""
    place = data_folder(folder) / "multi30k"
    tokenizer = _tokenizer(settings, place)
    train = _distilled(settings, place, tokenizer)
    references: dict[int, list[str]] = {}

    def part_of(name: str) -> Examples:
        source, target = multi30k.pairs(place, name, settings["source"], settings["target"])
        ids = ids_of(tokenizer, target, settings["places"])
        part = Examples(ids_of(tokenizer, source, settings["places"]), ids.where(ids != PAD, -1))
        references[id(part.target)] = target
        return part

    def bleu(ids: Tensor, part: Examples) -> float:
        texts = texts_of(tokenizer, ids)
        return sacrebleu.corpus_bleu(texts, [references[id(part.target)]]).score

    def samples(ids: Tensor, part: Examples) -> list[list[Any]]:
        wanted = references[id(part.target)][:_SAMPLES]
        sources = texts_of(tokenizer, part.x[:_SAMPLES])
        found = texts_of(tokenizer, ids[:_SAMPLES])
        return [
            [one, two, three, round(sacrebleu.sentence_bleu(three, [two]).score, 2)]
            for one, two, three in zip(sources, wanted, found, strict=True)
        ]

    def sets(scores: Tensor, part: Examples, generator: torch.Generator) -> ScoreSets:
        return token_sets(scores, part, settings["learning_set"], generator)

    guess = _guess(settings, train, tokenizer)

    def network() -> Parallel:
        model = Parallel(*_sizes(settings, tokenizer))
        model.guess.load_state_dict(guess)
        return model

    return Task(
        metric=METRIC,
        values={"bleu": bleu},
        train=train,
        valid=part_of("val"),
        test=part_of("test_2016_flickr"),
        network=network,
        ordinary=token_cross_entropy,
        loss=lambda steps: token_cross_entropy,
        sets=sets,
        lengths=train.others[0],
        decoded=lambda scores: scores.argmax(-1),
        samples=samples,
        seen=False,
    )


def of_known_lengths(task: Task) -> Task:
    """The task with the lengths of test translations told, so that places fit those of targets."""
    lengths = (task.test.target >= 0).sum(-1).clamp(min=1)
    return replace(task, test=replace(task.test, others=(lengths,)))


def _sizes(settings: Settings, tokenizer: Tokenizer) -> tuple[int, int, int, int]:
    vocabulary = tokenizer.get_vocab_size()
    return vocabulary, settings["width"], settings["layers"], settings["places"]


def _tokenizer(settings: Settings, place: Path) -> Tokenizer:
    """The vocabulary of both languages, learned from the training sentences."""

    def make(_: Path) -> str:
        texts = [*multi30k.lines(place, "train", "en"), *multi30k.lines(place, "train", "de")]
        return multi30k.pieces(texts, settings["pieces"]).to_str()

    return Tokenizer.from_str(stored("multi30k-pieces", {"pieces": settings["pieces"]}, make))


def _made_of(settings: Settings) -> dict[str, Any]:
    return {name: settings[name] for name in _MADE_OF}


def _distilled(settings: Settings, place: Path, tokenizer: Tokenizer) -> Examples:
    """Training sentences with the teacher's translations, and the lengths of these."""
    source, target = multi30k.pairs(place, "train", settings["source"], settings["target"])
    number = settings["sentences"]
    x = ids_of(tokenizer, source[:number], settings["places"])
    y = ids_of(tokenizer, target[:number], settings["places"])

    def make_teacher(begun: Path) -> Any:
        return _taught(settings, x, y, tokenizer, begun)

    def make(_: Path) -> Tensor:
        model = Teacher(*_sizes(settings, tokenizer))
        model.load_state_dict(stored("multi30k-teacher", _made_of(settings), make_teacher)[0])
        order = (x != PAD).sum(-1).argsort()
        found = torch.empty_like(x)
        for index in order.split(_AT_ONCE):
            found[index] = model.translate(x[index])
        return found

    ids = stored("multi30k-distilled", _made_of(settings), make)
    lengths = (ids != PAD).sum(-1)
    part = Examples(x, ids.where(ids != PAD, -1), None, (lengths,))
    return part.at(lengths > 0)


def _taught(
    settings: Settings, x: Tensor, y: Tensor, tokenizer: Tokenizer, begun: Path
) -> list[dict[str, Any]]:
    """The teacher's weights, after its training on people's translations."""
    torch.manual_seed(0)
    model = Teacher(*_sizes(settings, tokenizer))
    plan = settings["teacher"]
    optimizer = torch.optim.Adam(model.parameters(), plan["rate"], (0.9, 0.98), fused=True)
    lengths = (y != PAD).sum(-1)
    per_epoch = len(x) // settings["batch"]
    part = Examples(x, y)

    def train_epoch(epoch: int) -> None:
        generator = torch.Generator().manual_seed(epoch)
        model.train()
        for step, batch in enumerate(batches(part, settings["batch"], generator, lengths)):
            done = epoch * per_epoch + step + 1
            rising = min(1.0, done / plan["warm_steps"])
            for group in optimizer.param_groups:
                group["lr"] = plan["rate"] * rising * (1 - done / (plan["epochs"] * per_epoch + 1))
            value = _teaching_loss(model, batch)
            optimizer.zero_grad(set_to_none=True)
            value.backward()
            optimizer.step()

    return trained(begun, model, optimizer, train_epoch, [plan["epochs"]])


def _teaching_loss(model: Teacher, batch: Examples) -> Tensor:
    """Cross-entropy of the next piece, with a tenth of the weight on all others."""
    target = batch.target[:, : int((batch.target != PAD).sum(-1).max())]
    wanted = F.pad(target, (0, 1), value=PAD)
    ends = (target != PAD).sum(-1, keepdim=True)
    wanted = wanted.scatter(1, ends, END)
    scores = model(batch.x, target)
    return F.cross_entropy(
        scores.flatten(0, 1), wanted.flatten(), ignore_index=PAD, label_smoothing=0.1
    )


def _guess(settings: Settings, train: Examples, tokenizer: Tokenizer) -> dict[str, Any]:
    """What guesses lengths, after its training on the teacher's translations."""

    def make(_: Path) -> dict[str, Any]:
        torch.manual_seed(0)
        model = Guess(tokenizer.get_vocab_size(), settings["places"])
        optimizer = torch.optim.Adam(model.parameters(), 2e-3)
        generator = torch.Generator().manual_seed(0)
        for _epoch in range(settings["teacher"]["epochs"]):
            for batch in batches(train, settings["batch"], generator):
                value = F.cross_entropy(model(batch.x), batch.others[0])
                optimizer.zero_grad(set_to_none=True)
                value.backward()
                optimizer.step()
        return model.state_dict()

    return stored("multi30k-guess", _made_of(settings), make)
