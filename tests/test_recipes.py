"""Losses that ship: how they are taught, their cards, the command; and the ordinary loss."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from typer.testing import CliRunner

import metricgrad as mg
from metricgrad.cli import app
from metricgrad.surrogates.random_sets import made_up_source
from metricgrad.surrogates.score_sets import broad, mixed, to_sets
from metricgrad.surrogates.wrappers import ordinary_for
from metricgrad.training import small_tasks
from metricgrad.training.recipes import (
    OF_SMALL_TASKS,
    SHIPPED,
    as_shipped,
    digit_scores,
    read_scores,
    teach,
)
from metricgrad.training.small_tasks import small_task
from tests.trainings import seeded

FOLDER = Path(mg.__file__).parent / "pretrained"
shipped = pytest.mark.parametrize("name", SHIPPED)


def sets_for(name: str, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    return broad(400, 128, classes=10 if name == "accuracy" else None)(seeded(seed))


# ------------------------------------------------------------------------------------------
# losses that ship


@shipped
def test_a_loss_that_ships_ranks_better_than_the_usual_one(name: str) -> None:
    loss, sets = mg.ReLoss.pretrained(name), [sets_for(name)]
    ours, usual = (
        mg.rank_correlation(each, name, sets) for each in (loss, mg.baselines.CrossEntropy())
    )
    assert ours.spearman > usual.spearman
    assert ours.kendall > usual.kendall


@pytest.mark.parametrize("name", [*SHIPPED, "pck"])
def test_a_loss_that_ships_is_frozen_and_its_card_tells_its_story(name: str) -> None:
    loss, card = mg.ReLoss.pretrained(name), json.loads((FOLDER / f"{name}.json").read_text())
    assert not [each for each in loss.parameters() if each.requires_grad]
    assert loss.learned
    assert card["metric"] == name
    assert card["command"].startswith(f"metricgrad learn {name} ")
    assert card["held_out"]["spearman"] > card["held_out"]["ordinary_spearman"]
    assert {"learned_from", "judged_on", "settings", "seconds", "parameters"} <= card.keys()


@shipped
def test_better_scores_have_a_lower_loss(name: str) -> None:
    """From hopeless to perfect scores the loss falls; at the ends it reads as 1 - metric."""
    loss, target = mg.ReLoss.pretrained(name), torch.arange(128) % 4 == 0
    truth = target.float() * 2 - 1
    if name == "accuracy":
        target = torch.arange(128) % 10
        truth = F.one_hot(target, 10).float() * 2
    noise = torch.randn(truth.shape, generator=seeded())
    values = torch.stack(
        [loss(noise + quality * truth, target) for quality in (-1.0, 0.0, 1.0, 2.0, 4.0)]
    )
    assert (values.diff() < 0).all()


def test_the_loss_for_accuracy_pushes_every_item_the_right_way() -> None:
    """It need not be monotone by construction, so its gradient is looked at, item by item."""
    odds = torch.linspace(-8, 8, 201).unsqueeze(-1)
    scores = torch.cat([odds, torch.zeros_like(odds)], -1).requires_grad_()
    mg.ReLoss.pretrained("accuracy")(scores, torch.zeros(201, dtype=torch.long)).backward()
    assert scores.grad is not None
    assert (scores.grad[:, 0] < 0).all()


@pytest.mark.parametrize("name", [name for name in SHIPPED if name != "accuracy"])
@pytest.mark.parametrize("source", [broad, mixed])
def test_losses_of_sets_push_most_of_their_gradient_the_right_way(name: str, source: Any) -> None:
    """A correlation over sets does not promise it for each item: what is wrong is bounded."""
    scores, target = source(400, 128)(seeded(1))
    leaf = scores.clone().requires_grad_()
    mg.ReLoss.pretrained(name)(leaf, target).backward()
    assert leaf.grad is not None
    wrong = torch.where(target.bool(), leaf.grad.clamp(min=0), leaf.grad.clamp(max=0).abs())
    assert wrong.sum() < 0.15 * leaf.grad.abs().sum()


def test_the_loss_of_poses_that_ships_ranks_sets_that_it_has_not_seen() -> None:
    """Maps of another size than those that it learned from, and another radius."""
    metric = mg.metric("pck", radius=2.0)
    source = made_up_source(metric, 100, 0, None, shape=(6, 2, 26, 22))
    loss = mg.ReLoss.pretrained("pck", metric=metric)
    assert loss.metric == metric
    assert mg.ReLoss.pretrained("pck").metric == mg.metric("pck")
    found = mg.rank_correlation(loss, metric, [source(seeded(3))], generator=seeded())
    assert found.spearman > 0.7


@pytest.mark.filterwarnings("ignore:the loss has not learned")  # in one step
@pytest.mark.parametrize("name", OF_SMALL_TASKS)
def test_a_loss_of_text_or_poses_is_taught_by_small_tasks(name: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(small_tasks, "_MOMENTS", (0, 1, 3))
    monkeypatch.setattr(small_tasks, "_DRAWN", 2)
    taught = teach(name, steps=1, progress=False)
    task = small_task(name)
    assert task is not None
    assert taught.loss.metric == task.plain  # without the ids that are the task's own
    assert taught.loss.learned
    assert taught.card.metric == name
    assert "outputs of networks for" in taught.card.learned_from
    assert taught.card.judged_on == "outputs of networks with other seeds"
    scores, target = small_tasks.task_scores(task, [5], progress=False)[-1][:2]
    assert scores.shape[:2] == target.shape[:2] == (2, 32)
    assert 0 <= task.metric(scores, target).min() <= task.metric(scores, target).max() <= 1


def test_the_small_tasks_can_be_solved_by_who_knows_the_answer() -> None:
    """Ideal scores made of the targets have the best value."""
    lines, answers, spots = (small_task(name) for name in ("bleu", "span_f1", "pck"))
    assert lines is not None
    assert answers is not None
    assert spots is not None
    _, tokens = lines.draw(64, seeded())
    assert lines.metric(50.0 * F.one_hot(tokens.clamp(min=0), 11), tokens) == 1
    _, places = answers.draw(64, seeded())
    assert (places >= 0).any(-1).all()
    _, joints = spots.draw(64, seeded())
    x, y = (joints[..., part, None, None] for part in (0, 1))
    away = (torch.arange(20) - x).square() + (torch.arange(24)[:, None] - y).square()
    assert spots.metric(-away, joints) == 1


def test_a_line_shows_the_digits_that_its_target_names_and_no_other() -> None:
    lines = small_task("bleu")
    assert lines is not None
    pixels, tokens = lines.draw(64, seeded())
    digits = ((tokens >= 0) & (tokens < 10)).sum(-1)
    inked = (pixels > 0).any(1) * torch.arange(pixels.shape[-1])
    assert (inked.amax(-1) < 12 * digits).all()  # 8 pixels each, and at most 4 in front


def test_the_losses_that_ship_are_small() -> None:
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 400_000


def test_a_loss_that_does_not_ship() -> None:
    with pytest.raises(
        ValueError, match="no pretrained loss for 'kappa'; available: accuracy, auc,"
    ):
        mg.ReLoss.pretrained("kappa")


# ------------------------------------------------------------------------------------------
# teaching


def test_digits_are_scored_along_a_training() -> None:
    found = digit_scores(True, range(1), progress=False)
    values = [mg.metric("accuracy")(*sets[:2]).mean().item() for sets in found]
    assert values[0] < 0.3
    assert values[-1] > 0.9
    assert found[0].scores.shape[1:] == (128, 10)


def test_teaching_twice_is_the_same() -> None:
    scores = [to_sets(broad(40, 32)(seeded()))]
    one, other = (teach("mcc", steps=4, seed=3, scores=scores, progress=False) for _ in range(2))
    assert all(
        torch.equal(a, b)
        for a, b in zip(one.loss.parameters(), other.loss.parameters(), strict=True)
    )
    assert one.card.held_out == other.card.held_out


def test_scores_of_a_users_own(tmp_path: Path) -> None:
    scores, target = broad(30, 16)(seeded())
    np.savez(tmp_path / "mine.npz", scores=scores, target=target)
    found = read_scores(tmp_path / "mine.npz")
    assert torch.equal(found.scores, scores)
    np.savez(tmp_path / "other.npz", logits=scores)
    with pytest.raises(ValueError, match="no array scores and target; it has logits"):
        read_scores(tmp_path / "other.npz")
    (tmp_path / "broken.npz").write_bytes(b"no zip")
    with pytest.raises(ValueError, match=r"broken\.npz is not a \.npz file"):
        read_scores(tmp_path / "broken.npz")
    content = bytearray((tmp_path / "mine.npz").read_bytes())
    content[300] ^= 1
    (tmp_path / "flipped.npz").write_bytes(content)
    with pytest.raises(ValueError, match=r"flipped\.npz is a damaged \.npz file: Bad CRC-32"):
        read_scores(tmp_path / "flipped.npz")
    np.savez(tmp_path / "text.npz", scores=np.array([["a", "b"]]), target=np.zeros((1, 2)))
    with pytest.raises(
        ValueError, match=r"the array scores of .*text\.npz must hold numbers; it holds <U1"
    ):
        read_scores(tmp_path / "text.npz")


# ------------------------------------------------------------------------------------------
# the command


def learn(*arguments: Any) -> Any:
    return CliRunner().invoke(app, ["learn", *map(str, arguments)])


def test_the_command_learns_a_loss_and_never_overwrites(tmp_path: Path) -> None:
    scores, target = broad(60, 32)(seeded())
    np.savez(tmp_path / "mine.npz", scores=scores, target=target)
    path = tmp_path / "loss.safetensors"
    options = ("auc", "--scores", tmp_path / "mine.npz", "--steps", 3, "--out", path)
    first = learn(*options)
    assert first.exit_code == 0, first.output
    assert "ordinary loss" in first.output
    loss = mg.load_surrogate(path)
    assert isinstance(loss, mg.ReLoss)
    assert loss.metric.name == "auc"
    card = json.loads((tmp_path / "loss.json").read_text())
    assert card["settings"]["steps"] == 3
    assert card["command"].endswith(f"--out auc.safetensors --scores {tmp_path / 'mine.npz'}")
    before = path.read_bytes()
    second = learn(*options)
    assert second.exit_code == 2
    assert "would be overwritten" in second.output
    assert path.read_bytes() == before
    third = learn(*options, "--force", "--json")
    assert third.exit_code == 0
    assert json.loads(third.stdout)["metric"] == "auc"


def test_a_loss_and_its_card_are_written_both_or_not_at_all(tmp_path: Path) -> None:
    scores, target = broad(60, 32)(seeded())
    np.savez(tmp_path / "mine.npz", scores=scores, target=target)
    path = tmp_path / "loss.safetensors"
    options = ("auc", "--scores", tmp_path / "mine.npz", "--steps", 3, "--out", path)
    for name in ("loss.json.partial", "loss.safetensors.partial"):
        (tmp_path / name).mkdir()  # so that this file cannot be written
        found = learn(*options)
        assert (found.exit_code, found.output.count("could not be written")) == (2, 1)
        assert sorted(each.name for each in tmp_path.iterdir()) == [name, "mine.npz"]
        (tmp_path / name).rmdir()
    assert learn(*options).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nothing",), "there is no metric named 'nothing'"),
        (("rouge_l",), "metrics of binary scores and for accuracy, span_f1, "),
        (("f1", "--scores", "nowhere.npz"), "nowhere.npz"),
    ],
)
def test_the_command_refuses_without_a_traceback(
    arguments: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    found = learn(*arguments, "--out", tmp_path / "loss.safetensors")
    assert found.exit_code == 2
    assert message in found.output
    assert "Traceback" not in found.output
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_not_there_is_told_before_anything_is_learned(tmp_path: Path) -> None:
    found = learn("f1", "--out", tmp_path / "nowhere" / "loss.safetensors")
    assert found.exit_code == 2
    assert "there is no folder" in found.output


def test_a_card_never_overwrites_its_loss(tmp_path: Path) -> None:
    found = learn("f1", "--out", tmp_path / "loss.json")
    assert found.exit_code == 2
    assert "loss.safetensors" in found.output.replace("\n", "")
    assert not list(tmp_path.iterdir())


# ------------------------------------------------------------------------------------------- beside
# the ordinary loss


def test_a_loss_beside_the_ordinary_one_is_their_weighted_sum(tmp_path: Path) -> None:
    loss, usual = mg.ReLoss.pretrained("auc"), mg.baselines.CrossEntropy()
    both = mg.with_ordinary(loss, weight=0.3)
    scores, target = broad(6, 20)(seeded())
    torch.testing.assert_close(
        both(scores, target), loss(scores, target) + 0.3 * usual(scores, target)
    )
    focal = mg.with_ordinary(loss, ordinary=mg.baselines.Focal())
    torch.testing.assert_close(
        focal(scores, target), loss(scores, target) + mg.baselines.Focal()(scores, target)
    )
    both.save(tmp_path / "both.safetensors")
    again = mg.load_surrogate(tmp_path / "both.safetensors")
    assert torch.equal(again(scores, target), both(scores, target))
    with pytest.raises(ValueError, match="weight must be 0 or more; got -1"):
        mg.with_ordinary(loss, weight=-1)
    with pytest.raises(
        TypeError, match=r"a surrogate, such as mg\.baselines\.Focal.*cross_entropy"
    ):
        mg.with_ordinary(loss, ordinary=F.cross_entropy)  # type: ignore[arg-type]


def _entropy(scores: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """torch's own, of scores `[items, C]`."""
    return F.cross_entropy(scores, target)


def _ends(scores: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of the spans 2 to 4 and 5 to 5, by start and by end."""
    start = _entropy(scores[..., 0], torch.tensor([2, 5]))
    return start + _entropy(scores[..., 1], torch.tensor([4, 5]))


ORDINARY: dict[str, tuple[Any, tuple[int, ...], torch.Tensor, Any]] = {
    "pixels": ("mean_iou", (2, 3, 4, 4), torch.randint(3, (2, 4, 4), generator=seeded()),
               lambda s, y: F.cross_entropy(s, y)),
    "grades": ("ndcg", (6,), torch.tensor([0, 2, 1, 0, 0, 2]),
               lambda s, y: F.cross_entropy(s, y.to(s.dtype).softmax(-1))),
    "labels": (mg.metric("f1", multilabel=True), (5, 3), torch.arange(15).reshape(5, 3) % 2,
               lambda s, y: F.binary_cross_entropy_with_logits(s, y.to(s.dtype))),
    "tokens": ("bleu", (2, 5, 7), torch.tensor([[1, 2, 3, -1, -1], [4, 5, 6, 1, -1]]),
               lambda s, y: _entropy(s[y >= 0], y[y >= 0])),
    "references": ("bleu", (1, 3, 7), torch.tensor([[[1, 2, 3], [4, 4, 4]]]),
                   lambda s, y: _entropy(s[0], y[0, 0])),
    "spans": (mg.metric("span_f1", decode=mg.decode_spans), (2, 6, 2),
              torch.tensor([[2, 3, 4], [5, -1, -1]]), lambda s, _: _ends(s) / 2),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:this ReLoss has not learned")
@pytest.mark.parametrize("kind", list(ORDINARY))
def test_the_ordinary_loss_has_the_shapes_of_the_metric(kind: str, tmp_path: Path) -> None:
    metric, size, target, expected = ORDINARY[kind]
    scores = torch.randn(*size, generator=seeded(), requires_grad=True)
    loss = mg.ReLoss(metric, generator=seeded())
    both = mg.with_ordinary(loss, weight=2.0)
    torch.testing.assert_close(
        both(scores, target) - loss(scores, target), 2 * expected(scores, target)
    )
    both(scores, target).backward()
    assert scores.grad is not None
    assert scores.grad.isfinite().all()
    both.save(tmp_path / "both.safetensors")
    again = mg.load_surrogate(tmp_path / "both.safetensors", metric=metric)
    assert torch.equal(again(scores, target), both(scores, target))


def test_places_that_do_not_count_are_no_class_of_a_span() -> None:
    ordinary = ordinary_for(mg.metric("span_f1", decode=mg.decode_spans))
    assert ordinary is not None
    scores, target = torch.randn(2, 6, 2, generator=seeded()), torch.tensor([[2, 3], [1, -1]])
    where = torch.arange(6).expand(2, 6) < 4
    torch.testing.assert_close(ordinary(scores, target, where), ordinary(scores[:, :4], target))


def test_where_one_of_the_two_is_undefined_the_other_counts() -> None:
    both = mg.with_ordinary(mg.UniLoss("auc"))
    scores = torch.zeros(4, requires_grad=True)
    value = both(scores, torch.ones(4))  # one class: AUC has no value, cross-entropy has
    value.backward()
    assert value.item() == pytest.approx(np.log(2))
    assert scores.grad is not None
    assert scores.grad.abs().sum() > 0


def test_only_accuracy_ships_with_a_penalty() -> None:
    assert as_shipped("f1") == {"penalty": 0.0}
    assert as_shipped("accuracy").get("penalty") == 10.0
