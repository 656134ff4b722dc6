"""Text metrics: ids, padding, end tokens, decoders and detokenizers."""

import re
import string
from collections import Counter
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import sacrebleu
import torch
from rapidfuzz.distance import LCSseq, Levenshtein
from torchmetrics.functional.text import char_error_rate

import metricgrad as mg
from metricgrad.metrics import edits, tokens

TEXT = [name for name in mg.metric_names() if mg.metric(name).families == ("text",)]
WORDS = ["<pad>", "the", "cat", "sat", "on", "a", "mat"]
sequences = st.lists(st.integers(0, 3), max_size=8)


def words(ids: list[int]) -> str:
    return " ".join(WORDS[i] for i in ids)


def padded(rows: list[list[int]], length: int) -> torch.Tensor:
    return torch.tensor([row + [-1] * (length - len(row)) for row in rows])


@hypothesis.given(st.lists(st.tuples(sequences, sequences), min_size=1, max_size=5))
def test_dynamic_programmes_equal_rapidfuzz(pairs: list[tuple[list[int], list[int]]]) -> None:
    hypothesis_ids = padded([h for h, _ in pairs], 8)
    references = padded([r for _, r in pairs], 8).unsqueeze(1)
    distances = [Levenshtein.distance(h, r) for h, r in pairs]
    assert edits.edit_distances(hypothesis_ids, references).squeeze(1).tolist() == distances
    common = [LCSseq.similarity(h, r) for h, r in pairs]
    assert tokens.common_subsequence(hypothesis_ids, references).squeeze(1).tolist() == common


@hypothesis.given(st.lists(st.tuples(sequences, sequences, sequences), min_size=1, max_size=4))
def test_clipped_matches_equal_counters(
    triples: list[tuple[list[int], list[int], list[int]]],
) -> None:
    def grams(ids: list[int], n: int) -> Counter[tuple[int, ...]]:
        return Counter(tuple(ids[i : i + n]) for i in range(len(ids) - n + 1))

    left = padded([h for h, _, _ in triples], 8)
    right = torch.stack([padded([list(r) for r in refs], 8) for _, *refs in triples])
    pooled = tokens.ngram_matches(left, right, 3, pool=True)
    apart = tokens.ngram_matches(left, right, 3, pool=False)
    for row, (h, *refs) in enumerate(triples):
        for n in (1, 2, 3):
            assert (
                pooled[row, n - 1]
                == (grams(h, n) & (grams(refs[0], n) | grams(refs[1], n))).total()
            )
            assert apart[row, :, n - 1].tolist() == [
                (grams(h, n) & grams(ref, n)).total() for ref in refs
            ]


@pytest.mark.parametrize("name", TEXT)
def test_ids_and_scores_that_decode_to_them_agree(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(2, 5, 7, 6, generator=generator)
    target = torch.randint(-1, 6, (2, 5, 7), generator=generator)
    metric = mg.metric(name)
    torch.testing.assert_close(metric(scores, target).double(), metric(scores.argmax(-1), target))


@pytest.mark.parametrize("name", TEXT)
def test_ids_may_be_as_large_as_integers_are(name: str) -> None:
    """Hashed tokens are such ids."""
    source = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 5, (6, 9), generator=source)
    target = torch.randint(0, 5, (6, 2, 7), generator=source)
    large = torch.tensor([0, 1, 2**61, 2**62 + 1, 2**63 - 1])
    expected = mg.metric(name)(ids, target)
    assert mg.metric(name)(large[ids], large[target]) == expected


@pytest.mark.parametrize("name", TEXT)
def test_end_padding_and_where_say_the_same(name: str) -> None:
    ids, target = torch.tensor([[3, 4, 5, 1, 4]]), torch.tensor([[3, 5, 5, 1, 5]])
    expected = mg.metric(name)(torch.tensor([[3, 4, 5]]), torch.tensor([[3, 5, 5]]))
    assert mg.metric(name, end=1)(ids, target) == expected
    assert mg.metric(name)(ids, target, where=torch.tensor([[True] * 3 + [False] * 2])) == expected
    zeros = torch.tensor([[3, 0, 4, 5, 0]]), torch.tensor([[0, 3, 5, 0, 5]])
    assert mg.metric(name, padding=0)(*zeros) == expected


@pytest.mark.parametrize("name", TEXT)
def test_a_decoder_may_change_the_length(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    scores, target = (
        torch.randn(3, 6, 4, generator=generator),
        torch.randint(0, 4, (3, 2), generator=generator),
    )
    first_two = mg.metric(name, decode=lambda s: s.argmax(-1)[..., :2])
    assert first_two(scores, target) == mg.metric(name)(scores[:, :2], target)
    where = torch.tensor([True, False, True])
    assert first_two(scores, target, where=where) == mg.metric(name)(
        scores[where, :2], target[where]
    )
    with pytest.raises(
        ValueError, match=r"decode must give integer ids .* it gave torch.float32 of shape \[3, 6\]"
    ):
        mg.metric(name, decode=lambda s: s.amax(-1))(scores, target)
    with pytest.raises(ValueError, match="it gave list"):
        mg.metric(name, decode=lambda s: s.argmax(-1).tolist())(scores, target)


def test_detokenized_text_is_compared_by_words_or_characters() -> None:
    ids, target = torch.tensor([[1, 2, 3, 4, 5, 6]]), torch.tensor([[1, 2, 3, 4, 1, 6]])
    mine, right = words(ids[0].tolist()), words(target[0].tolist())
    bleu = sacrebleu.BLEU(tokenize="none", force=True).corpus_score([mine], [[right]]).score / 100
    assert mg.metric("bleu", detokenize=words)(ids, target).item() == pytest.approx(bleu)
    assert mg.metric("edit_distance", detokenize=words)(ids, target) == Levenshtein.distance(
        mine, right
    )
    assert mg.metric("word_error_rate", detokenize=words)(ids, target) == pytest.approx(1 / 6)
    assert (
        mg.metric("exact_match", detokenize=lambda row: words(row).replace("a mat", "the mat"))(
            ids, target
        )
        == 1
    )
    letters = mg.metric("rouge_l", detokenize=lambda row: [word[0] for word in words(row).split()])
    assert letters(ids, target) == pytest.approx(2 * 5 / 12)


# Letters with combining marks, no spaces, other spaces, right to left, beyond 16 bits.
TEXTS = {
    "Czech": ("příliš žluťoučký kůň", "prilis žluťoučký kun"),
    "decomposed": ("cafe\u0301 noe\u0308l", "café noe\u0308l"),
    "Chinese": ("我爱自然语言处理", "我喜欢自然语言"),
    "Japanese": ("日本語の\u3000テスト です", "日本語 の\u3000テスト"),
    "Arabic": ("اللغة العربية جميلة", "اللغه العربية"),
    "Hindi": ("नमस्ते दुनिया", "नमस्ते संसार"),
    "Turkish": ("İstanbul ıssız", "istanbul ISSIZ"),  # noqa: RUF001
    "emoji": ("👩‍👩‍👧 happy 🏳️‍🌈", "👩 happy 🌈"),
    "no-break": ("dix\u00a0mille personnes", "dix mille personnes"),
}


@pytest.mark.parametrize("language", TEXTS)
def test_text_of_any_language_is_split_and_compared_as_the_references_do(language: str) -> None:
    """Characters are code points, as they are for Python; nothing is folded or normalised."""
    mine, right = TEXTS[language]
    texts = {1: mine, 2: right}
    ids, target = torch.tensor([[1]]), torch.tensor([[2]])

    def value(name: str, **options: Any) -> float:
        return mg.metric(name, detokenize=lambda row: texts[row[0]], **options)(ids, target).item()

    bleu = sacrebleu.BLEU(tokenize="none", force=True).corpus_score([mine], [[right]]).score / 100
    assert value("bleu") == pytest.approx(bleu)
    assert value("edit_distance") == Levenshtein.distance(mine, right)
    assert value("character_error_rate") == pytest.approx(float(char_error_rate(mine, right)))
    words = Levenshtein.distance(mine.split(), right.split()) / len(right.split())
    assert value("word_error_rate") == pytest.approx(words)
    common = 2 * LCSseq.similarity(mine.split(), right.split())
    both = len(mine.split()) + len(right.split())
    assert value("rouge_l") == pytest.approx(common / both)
    for name in TEXT:
        same = mg.metric(name, detokenize=lambda row: mine)
        best = same.best if name != "bleu" else value_of_itself(mine)
        assert same(ids, target).item() == pytest.approx(best)


def value_of_itself(text: str) -> float:
    """BLEU of a text that may be too short for n-grams of four."""
    return sacrebleu.BLEU(tokenize="none", force=True).corpus_score([text], [[text]]).score / 100


def test_an_answers_normalisation_is_the_users_and_may_be_of_any_language() -> None:
    """SQuAD's own: lower case, without ASCII punctuation and English articles."""

    def normal(text: str) -> list[str]:
        kept = "".join(sign for sign in text.lower() if sign not in string.punctuation)
        return re.sub(r"\b(a|an|the)\b", " ", kept).split()

    for mine, right, f1 in (
        ("The Beatles!", "beatles", 1.0),
        ("the École Normale", "école normale supérieure", 0.8),
        ("北京市。", "北京市", 0.0),  # a full stop that is not ASCII stays
        ("L'Île-de-France", "lîledefrance", 1.0),
        ("Απόλλων, ο θεός", "απόλλων ο θεόσ", 2 / 3),  # noqa: RUF001, the final sigma
    ):
        texts = {1: mine, 2: right}
        metric = mg.metric("span_f1", detokenize=lambda row, texts=texts: normal(texts[row[0]]))
        assert metric(torch.tensor([[1]]), torch.tensor([[2]])).item() == pytest.approx(f1)


@pytest.mark.parametrize(
    ("items", "refs", "length"), [(1, 1, 1), (3, 2, 5), (7, 3, 40), (2, 1, 90)]
)
@pytest.mark.parametrize("largest", [3, 40_000, 2**40])
def test_edit_distances_of_all_lengths_and_ids(
    items: int, refs: int, length: int, largest: int
) -> None:
    rng = np.random.default_rng(length)
    draw = lambda: (rng.integers(0, 4, rng.integers(0, length + 1)) * largest).tolist()  # noqa: E731
    hypotheses = [draw() for _ in range(items)]
    references = [[draw() for _ in range(refs)] for _ in range(items)]
    right = torch.stack([padded(rows, length + 2) for rows in references])
    found = edits.edit_distances(padded(hypotheses, length), right)
    expected = [
        [Levenshtein.distance(h, r) for r in rows]
        for h, rows in zip(hypotheses, references, strict=True)
    ]
    assert found.tolist() == expected
    empty = edits.edit_distances(padded(hypotheses, length)[:, :0], right)
    assert empty.tolist() == [[len(r) for r in rows] for rows in references]


def test_detokenize_takes_many_sets_and_empty_texts() -> None:
    ids, target = (
        torch.tensor([[[1, 2], [-1, -1]], [[3, 4], [5, 6]]]),
        torch.tensor([[[1, 2], [1, -1]], [[3, 4], [5, 5]]]),
    )
    for name in TEXT:
        value = mg.metric(name, detokenize=words)(ids, target)
        assert value.shape == (2,)
        assert value.isfinite().all()
    nothing = torch.full((1, 2, 3), -1)
    assert mg.metric("exact_match", detokenize=words)(nothing, nothing).tolist() == [1]


def test_masked_targets_are_not_looked_at_and_others_are() -> None:
    ids, target = torch.tensor([[1, 2, 3]]), torch.tensor([[1.0, 2.0, float("nan")]])
    assert mg.metric("exact_match")(ids, target, where=torch.tensor([[True, True, False]])) == 1
    for wrong in (float("nan"), float("inf"), 0.5):
        target[0, 2] = wrong
        with pytest.raises(
            ValueError, match=r"token ids, whole numbers; got torch.float32 of shape \[1, 3\]"
        ):
            mg.metric("exact_match")(ids, target)


def test_two_empty_texts_agree_for_some_metrics_only() -> None:
    nothing = torch.full((1, 3), -1)
    values = {name: mg.metric(name)(nothing, nothing).item() for name in TEXT}
    assert values == {
        **{"span_f1": 1, "exact_match": 1, "bleu": 0},
        **{"rouge_l": 0, "edit_distance": 0, "word_error_rate": 0},
        "character_error_rate": 0,
    }


def test_ranges_follow_the_options() -> None:
    assert mg.metric("edit_distance").worst == torch.inf
    assert mg.metric("edit_distance", normalized=True).worst == 1
    assert mg.metric("partial_auc", max_fpr=1.0).worst == 0
    assert mg.metric("partial_auc", max_fpr=0.5).worst == pytest.approx(1 / 3)


def test_sentence_bleu_is_a_set_of_one() -> None:
    generator = np.random.default_rng(0)
    scorer = sacrebleu.BLEU(tokenize="none", effective_order=True)
    metric = mg.metric("bleu", effective_order=True)
    for _ in range(50):
        ids, target = generator.integers(0, 5, (2, 1, 7))
        expected = (
            scorer.sentence_score(" ".join(map(str, ids[0])), [" ".join(map(str, target[0]))]).score
            / 100
        )
        assert metric(ids, target).item() == pytest.approx(expected, abs=1e-9)


def test_spans_are_decoded_from_start_and_end_scores() -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(50, 9, 2, generator=generator)
    for row, positions in zip(scores, mg.decode_spans(scores), strict=True):
        best = max(
            ((i, j) for i in range(9) for j in range(i, 9)),
            key=lambda ij: row[ij[0], 0] + row[ij[1], 1],
        )
        assert positions[positions >= 0].tolist() == list(range(best[0], best[1] + 1))
    with pytest.raises(
        ValueError, match=r"takes start and end scores \[..., N, T, 2\]; got shape \[50, 9, 3\]"
    ):
        mg.decode_spans(torch.zeros(50, 9, 3))


def test_span_f1_of_positions_leaves_masked_places_alone() -> None:
    scores = torch.tensor([[[0.0, 0.0], [5.0, 0.0], [0.0, 5.0], [9.0, 9.0]]])
    target, where = torch.tensor([[1, 2, -1, -1]]), torch.tensor([[True, True, True, False]])
    span_f1 = mg.metric("span_f1", decode=mg.decode_spans)
    assert span_f1(scores, target, where=where) == 1
    assert span_f1(scores, target) == 0


@pytest.mark.parametrize("name", TEXT)
def test_shapes(name: str) -> None:
    metric = mg.metric(name)
    with pytest.raises(
        ValueError,
        match=r"takes scores \[..., N, T, V\], or integer token ids .* of shape \[3, 4\]",
    ):
        metric(torch.zeros(3, 4), torch.zeros(3))
    with pytest.raises(ValueError, match=r"got target \[2, 4\] and decoded ids \[3, 4\]"):
        metric(torch.zeros(3, 4, 5), torch.zeros(2, 4))
    with pytest.raises(ValueError, match=r"takes token ids \[..., N, T\]; got shape \[3\]"):
        metric(torch.tensor([1, 2, 3]), torch.tensor([1, 2, 3]))
    with pytest.raises(ValueError, match=r"got target \[3, 0, 4\]"):
        metric(torch.zeros(3, 4, 5), torch.zeros(3, 0, 4))


def test_facts_follow_the_decoder() -> None:
    spans = mg.metric("span_f1", decode=mg.decode_spans)
    own = mg.metric("bleu", decode=lambda scores: scores.argmax(-1))
    words = mg.metric("bleu", detokenize=str)
    assert [each.layout for each in (spans, own, words)] == ["spans", "tokens", "tokens"]
    assert [each.ordinary for each in (spans, own, words)] == [
        "cross_entropy",
        None,
        "cross_entropy",
    ]
    assert spans.portable  # the library's own function
    assert not own.portable
    assert not words.portable
