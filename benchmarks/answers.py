"""Reading comprehension: answers in a paragraph, trained on F1 and exact match (ReLoss, Table 5).

The upper layers of MiniLM score every token as the start and as the end of the answer. A set is a
batch of questions. What a loss of spans looks like:

    ordinary      two decisions among the places of the text, the start's and the end's
    UniLoss       the same two decisions as tokens, [N, 2, places]: an answer is exact if both are
                  won, and its F1 is that of the places between them
    ReLoss        start and end scores [N, places, 2], which its network sees at every place, or as
                  overlaps with the answer (`overlaps.py`)

Values are those of SQuAD's own evaluation on the text of the answers, with all references.
"""

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import metricgrad as mg
from benchmarks import squad
from benchmarks.classification import Settings
from benchmarks.data import data_folder
from benchmarks.overlaps import Overlaps
from benchmarks.squad import Encoded, Encoder, Question, Reader
from benchmarks.starts import fine_tuning, learned
from benchmarks.stored import stored
from benchmarks.task import Examples, Keep, Loss, ScoreSets, Task, Value, run_task

TRAIN = "train-v1.1-subset.json.gz"
TEST = "dev-v1.1.json.gz"
_VALID = 0.15  # of the training articles
_SAMPLES = 200

METRIC = mg.metric("span_f1", decode=mg.decode_spans)


def run(
    settings: Settings, seed: int, folder: Path | None, known: list[dict[str, Any]], keep: Keep
) -> dict[str, Any]:
    """Fine-tunes the reader on the loss of the row, and tests its answers."""
    return run_task(task(settings, seed, folder), settings, seed, known, keep)


def task(settings: Settings, seed: int, folder: Path | None) -> Task:
    """The reader as cross-entropy left it, with the loss that the settings name."""
    plain = untrained(settings, seed, folder)
    return fine_tuning(plain, settings, seed, lambda steps: span_loss(plain, settings, seed, steps))


def untrained(settings: Settings, seed: int, folder: Path | None) -> Task:
    """The task before anything is trained: its network has a new head."""
    encoder = squad.minilm()
    train, valid, test, texts = _parts(settings, seed, folder, encoder)
    upper = encoder.layers[settings["frozen"] :]

    def value(of: Callable[[str, Sequence[str]], float]) -> Value:
        return lambda scores, part: _mean(of, texts(scores, part))

    return Task(
        metric=METRIC,
        values={
            "f1": value(squad.f1),
            "exact_match": value(squad.exact_match),
            "rouge_l": lambda scores, part: of_words("rouge_l", texts(scores, part)),
            "bleu": lambda scores, part: of_words("bleu", texts(scores, part)),
        },
        train=train,
        valid=valid,
        test=test,
        network=lambda: Reader(copy.deepcopy(upper), encoder.width),
        ordinary=ends_cross_entropy,
        loss=lambda steps: ends_cross_entropy,
        sets=sets_of_questions(settings["batch"]),
        samples=lambda scores, part: _samples(texts(scores, part)),
        seen=False,
    )


Answers = list[tuple[str, Question]]


def _parts(
    settings: Settings, seed: int, folder: Path | None, encoder: Encoder
) -> tuple[Examples, Examples, Examples, Callable[[Tensor, Examples], Answers]]:
    """Training, validation and test questions, and the answers that scores give to them."""
    place = data_folder(folder) / "squad"
    number = settings["questions"]
    of = {name: settings[name] for name in ("length", "frozen", "questions")}
    parts = {
        name: _part(f"squad-{name}", place / file, {**of, "file": file}, number[name], encoder)
        for name, file in (("train", TRAIN), ("test", TEST))
    }
    train, valid = _split_by_article(parts["train"][0], seed)
    questions = [each for part, _, _ in parts.values() for each in part]
    offsets = torch.cat([found for _, _, found in parts.values()])
    first = parts["train"][1]
    # The last number of a target is that of the question among those of both files.
    second = parts["test"][1]
    second.target[:, -1] += len(first)

    def texts(scores: Tensor, part: Examples) -> Answers:
        found = mg.decode_spans(scores)
        ends = zip(_first(found).tolist(), found.amax(-1).tolist(), strict=True)
        numbers = part.target[:, -1].tolist()
        return [
            (squad.answer_of(questions[number], offsets[number], *each), questions[number])
            for number, each in zip(numbers, ends, strict=True)
        ]

    return first.at(train), first.at(valid), second, texts


def _first(found: Tensor) -> Tensor:
    """The first place of every span `[N]`, from places that are -1 outside of it."""
    return found.masked_fill(found < 0, found.shape[-1]).amin(-1)


def _part(
    name: str, path: Path, of: dict[str, Any], number: int, encoder: Encoder
) -> tuple[list[Question], Examples, Tensor]:
    """Some questions of a file, their features, and the characters of their tokens."""
    everything = squad.read(path)

    def make(_: Path) -> dict[str, Any]:
        order = torch.randperm(len(everything), generator=torch.Generator().manual_seed(0))
        # Three times as many, because some are too long.
        drawn = [everything[each] for each in order[: 3 * number].tolist()]
        found = squad.encoded(drawn, encoder.tokenizer, of["length"])
        found = Encoded(found.questions[:number], *(each[:number] for each in found[1:]))
        places = {id(each): place for place, each in enumerate(everything)}
        return {
            "questions": [places[id(each)] for each in found.questions],
            "features": squad.features(encoder, found, of["frozen"]),
            **{key: getattr(found, key) for key in ("live", "context", "offsets", "spans")},
        }

    kept = stored(name, of, make)
    questions = [everything[each] for each in kept["questions"]]
    target = torch.cat([kept["spans"], torch.arange(len(questions)).unsqueeze(-1)], -1)
    others = (kept["live"], kept["context"])
    part = Examples(kept["features"], target, kept["context"], others)
    return questions, part, kept["offsets"]


def _split_by_article(questions: list[Question], seed: int) -> tuple[Tensor, Tensor]:
    """Flags of training and validation questions; no article has both."""
    articles = sorted({each.article for each in questions})
    order = torch.randperm(len(articles), generator=torch.Generator().manual_seed(seed)).tolist()
    held = {articles[each] for each in order[: max(1, round(_VALID * len(articles)))]}
    valid = torch.tensor([each.article in held for each in questions])
    return ~valid, valid


def _mean(of: Callable[[str, Sequence[str]], float], answers: Answers) -> float:
    return sum(of(text, question.answers) for text, question in answers) / len(answers)


def of_words(name: str, answers: Answers) -> float:
    """A metric of the library on the words of answers, with all references of each."""
    numbers: dict[str, int] = {}
    several = max(len(question.answers) for _, question in answers)
    rows = []
    for text, question in answers:
        references = [*question.answers, *[""] * (several - len(question.answers))]
        rows.append(
            [
                [numbers.setdefault(word, len(numbers)) for word in squad.words(each)]
                for each in (text, *references)
            ]
        )
    longest = max(len(ids) for row in rows for ids in row)
    padded = [[ids + [-1] * (longest - len(ids)) for ids in row] for row in rows]
    ids = torch.tensor(padded).reshape(len(rows), 1 + several, longest)
    return float(mg.metric(name)(ids[:, 0], ids[:, 1:]))


def _samples(answers: Answers) -> list[list[Any]]:
    """Question, first reference, answer and its F1, of the first questions."""
    return [
        [question.question, question.answers[0], text, round(squad.f1(text, question.answers), 4)]
        for text, question in answers[:_SAMPLES]
    ]


def ends_cross_entropy(scores: Tensor, batch: Examples) -> Tensor:
    """Cross-entropy of the start and the end among all places."""
    return F.cross_entropy(scores, batch.target[:, :2])


def span_positions(target: Tensor, length: int) -> Tensor:
    """The places of the true span `[N, T]`, -1 elsewhere, as `mg.decode_spans` gives them."""
    places = torch.arange(length)
    return torch.where((places >= target[:, :1]) & (places <= target[:, 1:2]), places, -1)


def sets_of_questions(size: int) -> Callable[[Tensor, Examples, torch.Generator], ScoreSets]:
    """Cuts a part into sets of so many questions: scores `[S, N, T, 2]`, places `[S, N, T]`."""

    def sets(scores: Tensor, part: Examples, generator: torch.Generator) -> ScoreSets:
        number = len(scores) // size * size
        order = torch.randperm(len(scores), generator=generator)[:number].reshape(-1, size)
        return [(scores[order], span_positions(part.target, scores.shape[1])[order])]

    return sets


def places_between(ends: list[int]) -> list[int]:
    """The places of a span from its first and last one; none if it ends before it starts."""
    return list(range(ends[0], ends[1] + 1))


def span_loss(task: Task, settings: Settings, seed: int, steps: int) -> Loss:
    """The loss of a row; `ordinary` in the settings is the weight of cross-entropy beside it."""
    options = settings.get("loss_options", {})
    match settings["method"]:
        case "cross_entropy":
            return ends_cross_entropy
        case "uniloss":
            ours = mg.UniLoss("exact_match", **options)
        case "metric_loss" if settings["metric"] == "span_f1":
            between = mg.metric("span_f1", detokenize=places_between)
            ours = mg.MetricLoss(between, steps=steps, **options)
        case "metric_loss":
            ours = mg.MetricLoss(settings["metric"], steps=steps, **options)
        case "reloss":
            return _learned(task, settings, seed)
        case method:
            raise ValueError(f"there is no method {method!r} for answers")
    weight = settings.get("ordinary", 0.0)
    return lambda scores, batch: (
        ours(scores.transpose(-1, -2), batch.target[:, :2])
        + weight * (ends_cross_entropy(scores, batch) if weight else 0.0)
    )


def relation(task: Task, settings: Settings, seed: int, sees: str) -> mg.ReLoss:
    """ReLoss of the spans' F1, learned from what the network gave before the fine-tuning.

    It sees the places of the text, "places", as in the paper, or how the spans overlap, "overlaps".
    """
    generator = torch.Generator().manual_seed(seed)
    net = Overlaps(generator=generator)
    if sees == "places":
        net = mg.nets.Spans(generator=generator)
    return learned(task, settings, seed, mg.ReLoss(METRIC, net=net), sees)


def _learned(task: Task, settings: Settings, seed: int) -> Loss:
    ours = relation(task, settings, seed, settings["sees"])
    weight = settings.get("ordinary", 0.0)
    return lambda scores, batch: (
        ours(scores, span_positions(batch.target, scores.shape[1]), where=batch.where)
        + weight * ends_cross_entropy(scores, batch)
    )
