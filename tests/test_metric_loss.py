"""MetricLoss: the ordinary loss and the metric at one gradient length, with a free intercept."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import metricgrad as mg
from metricgrad.surrogates.wrappers import ordinary_for


def drawn(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def layouts() -> dict[str, tuple[Any, Tensor, Tensor]]:
    """A metric, scores and target in every layout that comparisons decide."""
    g = drawn()
    rare = torch.arange(24) % 4 == 0
    return {
        "binary": ("f1", torch.randn(24, generator=g), rare),
        "order": ("average_precision", torch.randn(24, generator=g), rare),
        "many sets": ("auc", torch.randn(3, 24, generator=g), rare.expand(3, -1)),
        "two logits": ("mcc", torch.randn(24, 2, generator=g), rare.long()),
        "classes": ("f1", torch.randn(24, 4, generator=g), torch.arange(24) % 4),
        "accuracy": ("accuracy", torch.randn(24, 4, generator=g), torch.arange(24) % 4),
        "labels": (
            mg.metric("f1", multilabel=True),
            torch.randn(24, 3, generator=g),
            torch.randint(2, (24, 3), generator=g),
        ),
        "grades": ("ndcg", torch.randn(5, 8, generator=g), torch.randint(3, (5, 8), generator=g)),
        "maps": (
            "mean_iou",
            torch.randn(2, 4, 6, 6, generator=g),
            torch.randint(4, (2, 6, 6), generator=g),
        ),
        "heatmaps": (
            mg.metric("pck", radius=1.5),
            torch.randn(3, 2, 6, 6, generator=g),
            torch.randint(6, (3, 2, 2), generator=g).float(),
        ),
        "tokens": (
            "rouge_l",
            torch.randn(4, 6, 5, generator=g),
            torch.randint(5, (4, 6), generator=g),
        ),
        "function": (profit, torch.randn(24, generator=g), rare),
    }


def profit(scores: Tensor, target: Tensor) -> Tensor:
    return ((scores > 0) * (5 * target - 1)).sum()


def gradient(loss: Any, scores: Tensor, target: Tensor, where: Tensor | None = None) -> Tensor:
    leaf = scores.clone().requires_grad_()
    value = loss(leaf, target) if where is None else loss(leaf, target, where)
    return torch.autograd.grad(value, leaf)[0]


@pytest.mark.parametrize("name", layouts())
def test_the_gradient_is_the_equation(name: str) -> None:
    metric, scores, target = layouts()[name]
    loss = mg.MetricLoss(metric, weight=0.7)
    soft = name != "maps"  # rivals, among many classes or pixels
    g_m = gradient(mg.UniLoss(metric, soft_rivals=soft), scores, target)
    g_o = gradient(ordinary_for(loss.metric), scores, target)  # the offset starts at 0
    expected = 0.3 * g_o + 0.7 * g_o.norm() / g_m.norm() * g_m
    torch.testing.assert_close(gradient(loss, scores, target), expected)


@pytest.mark.parametrize("name", layouts())
def test_the_value_is_the_metric_and_the_gradient_no_longer_than_the_ordinary_one(
    name: str,
) -> None:
    metric, scores, target = layouts()[name]
    loss = mg.MetricLoss(metric)
    torch.testing.assert_close(loss(scores, target), mg.UniLoss(metric)(scores, target))
    g_o = gradient(ordinary_for(loss.metric), scores, target)
    fresh = mg.MetricLoss(metric)
    assert gradient(fresh, scores, target).norm() <= g_o.norm() * 1.0001


@pytest.mark.parametrize("name", layouts())
def test_inference_mode_reads_the_value_and_moves_nothing(name: str) -> None:
    metric, scores, target = layouts()[name]
    loss = mg.MetricLoss(metric)
    with torch.inference_mode():
        found = loss(scores, target)
    assert loss.done == 0
    assert not loss.offset.is_inference()
    leaf = scores.clone().requires_grad_()
    value = loss(leaf, target)
    assert value == found
    value.backward()
    assert leaf.grad is not None


def test_weights_0_and_1_are_the_ordinary_loss_and_the_metric_at_its_length() -> None:
    _, scores, target = layouts()["binary"]
    g_o = gradient(F.binary_cross_entropy_with_logits, scores, target.float())
    g_m = gradient(mg.UniLoss("f1"), scores, target)
    torch.testing.assert_close(gradient(mg.MetricLoss("f1", weight=0), scores, target), g_o)
    alone = gradient(mg.MetricLoss("f1", weight=1), scores, target)
    torch.testing.assert_close(alone, g_m * g_o.norm() / g_m.norm())


def test_a_metric_without_a_gradient_leaves_the_ordinary_loss_whole() -> None:
    scores = torch.randn(16, generator=drawn())
    target = torch.zeros(16)  # no positive: average precision is undefined
    loss = mg.MetricLoss("average_precision")
    expected = gradient(F.binary_cross_entropy_with_logits, scores, target)
    torch.testing.assert_close(gradient(loss, scores, target), expected)
    assert loss(scores, target) == 0


@pytest.mark.parametrize(("metric", "short"), [("f1", True), ("average_precision", False)])
def test_a_batch_that_says_little_about_decisions_moves_little(metric: str, short: bool) -> None:
    scores = torch.randn(64, generator=drawn())
    target = (torch.arange(64) % 4 == 0).float()
    sure = torch.where(target == 1, 1.2, -1.2) + 0.1 * scores
    loss = mg.MetricLoss(metric, intercept=False)
    first = gradient(mg.UniLoss(metric), scores, target)
    g_m = gradient(mg.UniLoss(metric), sure, target)
    assert g_m.norm() < 0.2 * first.norm()
    gradient(loss, scores, target)
    g_o = gradient(F.binary_cross_entropy_with_logits, sure, target)
    usual = ((first.square().sum() + g_m.square().sum()) / 2).sqrt() if short else g_m.norm()
    expected = 0.15 * g_o + 0.85 * g_o.norm() / usual * g_m
    torch.testing.assert_close(gradient(loss, sure, target), expected)


def test_sets_without_a_value_keep_their_ordinary_loss_and_do_not_change_the_reading() -> None:
    scores = torch.randn(3, 16, generator=drawn())
    target = torch.zeros(3, 16)
    target[:2, :4] = 1
    loss = mg.MetricLoss("average_precision")
    torch.testing.assert_close(
        loss(scores, target), mg.UniLoss("average_precision")(scores, target)
    )
    assert gradient(loss, scores, target)[2].abs().sum() > 0


@pytest.mark.parametrize("lead", [(), (1,)])
def test_the_offset_calibrates_cross_entropy_and_leaves_the_scores_alone(lead: tuple) -> None:
    scores = 2 * torch.randn(*lead, 400, generator=drawn()) + 1.5
    target = (torch.rand(scores.shape, generator=drawn(1)) < (scores - 3).sigmoid()).float()
    loss = mg.MetricLoss("f1")
    for _ in range(200):
        gradient(loss, scores, target)
    assert abs((scores + loss.offset).sigmoid().mean() - target.mean()) < 0.005
    assert loss.offset < -2


def test_offsets_of_classes_calibrate_each_and_share_nothing() -> None:
    scores = torch.randn(600, 3, generator=drawn())
    wanted = torch.tensor([1.5, 0.0, -1.5])
    target = torch.distributions.Categorical(logits=scores + wanted)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        classes = target.sample()
    loss = mg.MetricLoss("f1")
    for _ in range(300):
        gradient(loss, scores, classes)
    torch.testing.assert_close(loss.offset, wanted, atol=0.25, rtol=0)
    assert abs(float(loss.offset.mean())) < 1e-5


def test_offsets_only_where_a_threshold_or_the_highest_class_decides() -> None:
    for metric, expected in {
        "f1": True,
        "mean_iou": True,
        "accuracy": False,
        "auc": False,
        "ndcg": False,
        "pck": False,
    }.items():
        given = mg.metric("pck", radius=2.0) if metric == "pck" else metric
        assert mg.MetricLoss(given).intercept is expected, metric
    assert mg.MetricLoss("accuracy", intercept=True).intercept


def test_the_ordinary_part_fades_between_half_and_four_fifths_of_the_steps() -> None:
    _, scores, target = layouts()["order"]
    g_o = gradient(F.binary_cross_entropy_with_logits, scores, target.float())
    g_m = gradient(mg.UniLoss("average_precision"), scores, target)
    g_m = g_m * g_o.norm() / g_m.norm()
    loss = mg.MetricLoss("average_precision", steps=100)
    for step in range(100):
        found = gradient(loss, scores, target)
        weight = 0.85 + 0.05 * min(max((step / 100 - 0.5) / 0.3, 0), 1)
        torch.testing.assert_close(found, (1 - weight) * g_o + weight * g_m)


def test_the_metric_weighs_half_among_many_classes_unless_a_weight_is_given() -> None:
    source = torch.Generator().manual_seed(0)
    scores = torch.randn(12, 4, generator=source)
    target = torch.arange(12) % 4

    def mean_right(scores: Tensor, target: Tensor) -> Tensor:
        return (scores.argmax(-1) == target).float().mean()

    g_o = gradient(F.cross_entropy, scores, target)
    for metric in ("accuracy", mean_right):
        g_m = gradient(mg.UniLoss(metric, soft_rivals=True), scores, target)
        g_m = g_m * g_o.norm() / g_m.norm()
        for steps, given, weight in ((None, None, 0.5), (1, None, 0.5), (None, 0.85, 0.85)):
            loss = mg.MetricLoss(metric, intercept=False, steps=steps, weight=given)
            gradient(loss, scores, target)
            found = gradient(loss, scores, target)  # after all of the steps
            torch.testing.assert_close(found, (1 - weight) * g_o + weight * g_m)
    loss = mg.MetricLoss("f1")  # the same loss sees classes, then binary scores
    gradient(loss, scores, target)
    assert loss.by_metric.among_classes
    _, binary, labels = layouts()["binary"]
    torch.testing.assert_close(
        gradient(loss.eval(), binary, labels), gradient(loss, binary, labels)
    )
    assert not loss.by_metric.among_classes


def test_nothing_moves_in_eval_mode() -> None:
    _, scores, target = layouts()["binary"]
    loss = mg.MetricLoss("f1", steps=10).eval()
    gradient(loss, scores, target)
    assert loss.done == 0
    assert loss.offset == 0
    gradient(loss.train(), scores, target)
    assert loss.done == 1
    assert loss.offset != 0


def test_stacked_models_have_lengths_and_offsets_of_their_own() -> None:
    scores = torch.randn(3, 24, generator=drawn()) * torch.tensor([[0.1], [1.0], [10.0]])
    target = (torch.arange(24) % 4 == 0).expand(3, -1)
    together = mg.MetricLoss("f1")
    together.models = 3
    alone = [mg.MetricLoss("f1") for _ in range(3)]
    for step in range(3):
        scores = scores.roll(step, -1) * (1 + step)
        leaf = scores.clone().requires_grad_()
        values, _ = together.losses(leaf, target, None)
        (found,) = torch.autograd.grad(values.sum(), leaf)
        for row, loss in enumerate(alone):
            torch.testing.assert_close(found[row], gradient(loss, scores[row], target[row]))
            torch.testing.assert_close(together.offset[row], loss.offset)


def test_stacked_models_of_classes_and_queries() -> None:
    for metric, scores, target in (
        ("f1", torch.randn(2, 24, 3, generator=drawn()), (torch.arange(24) % 3).expand(2, -1)),
        ("ndcg", torch.randn(2, 4, 6, generator=drawn()), torch.arange(24).reshape(4, 6) % 3),
    ):
        target = target.expand(2, *target.shape[-1 if metric == "f1" else -2 :])
        together = mg.MetricLoss(metric)
        together.models = 2
        leaf = scores.clone().requires_grad_()
        values, counted = together.losses(leaf, target, None)
        means = values.reshape(2, -1).sum(-1) / counted.reshape(2, -1).sum(-1)
        (found,) = torch.autograd.grad(means.sum(), leaf)
        for row in range(2):
            torch.testing.assert_close(
                found[row], gradient(mg.MetricLoss(metric), scores[row], target[row])
            )


def test_saved_and_loaded_it_goes_on_as_it_was(tmp_path: Any) -> None:
    _, scores, target = layouts()["classes"]
    loss = mg.MetricLoss("f1", steps=9, weight=0.6, ordinary=mg.baselines.Focal())
    gradient(loss, scores, target)
    loss.save(tmp_path / "loss.safetensors")
    loaded = mg.load_surrogate(tmp_path / "loss.safetensors")
    assert isinstance(loaded, mg.MetricLoss)
    assert loaded.config() == loss.config()
    assert loaded.done == 1
    torch.testing.assert_close(loaded.offset, loss.offset)
    expected = gradient(loss, scores, target)
    torch.testing.assert_close(gradient(loaded, scores, target), expected, atol=0, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions_have_finite_gradients_of_their_own_kind(dtype: torch.dtype) -> None:
    _, scores, target = layouts()["classes"]
    found = gradient(mg.MetricLoss("f1"), 1e3 * scores.to(dtype), target)
    assert found.dtype == dtype
    assert found.isfinite().all()


def test_masked_scores_may_be_infinite() -> None:
    _, scores, target = layouts()["binary"]
    scores = scores.clone()
    scores[-1] = -torch.inf
    where = torch.arange(24) < 23
    found = gradient(mg.MetricLoss("f1"), scores, target, where)
    assert found.isfinite().all()
    assert found[-1] == 0


def test_a_linear_model_reaches_a_higher_f1_than_cross_entropy_with_its_threshold_tuned() -> None:
    g = drawn()
    x = torch.randn(4000, 2, generator=g)
    near = (x[:, 0] > 1.2) & (x[:, 1].abs() < 0.8)
    far = (x[:, 0] < -1.2) & (torch.rand(4000, generator=g) < 0.5)  # draws cross-entropy away
    target = (near | far).long()

    def trained(loss: Any) -> float:
        torch.manual_seed(0)
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.Adam(model.parameters(), 0.02)
        for step in range(300):
            batch = torch.arange(step * 100, step * 100 + 200) % 4000
            optimizer.zero_grad()
            loss(model(x[batch]).squeeze(-1), target[batch]).backward()
            optimizer.step()
        scores = model(x).detach().squeeze(-1)
        threshold = mg.best_threshold(scores, target, "f1")
        return float(mg.metric("f1", threshold=float(threshold))(scores, target))

    plain = trained(lambda s, t: F.binary_cross_entropy_with_logits(s, t.float()))
    assert trained(mg.MetricLoss("f1")) > plain + 0.02


def test_label_maps_have_an_offset_for_each_class() -> None:
    loss = mg.MetricLoss("mean_iou")
    scores = torch.randn(2, 3, 4, 5, requires_grad=True)
    loss(scores, torch.randint(3, (2, 4, 5))).backward()
    assert loss.offset.shape == (3,)
    assert loss.offset.any()


def test_one_step_is_a_number_of_steps() -> None:
    loss = mg.MetricLoss("f1", steps=1)
    assert loss.steps == 1
    with pytest.raises(ValueError, match="steps must be"):
        mg.MetricLoss("f1", steps=0)


def test_the_usual_length_is_that_of_training_batches() -> None:
    loss = mg.MetricLoss("f1")
    scores = torch.randn(50, requires_grad=True)
    target = (torch.rand(50) < 0.3).long()
    loss(scores, target).backward()
    known = loss.usual.clone()
    assert known > 0
    loss.eval()
    loss(3 * scores, 1 - target).backward()
    assert torch.equal(loss.usual, known)


def test_wrong_options_are_told() -> None:
    with pytest.raises(ValueError, match=r"weight must lie between 0 and 1; got 1\.5"):
        mg.MetricLoss("f1", weight=1.5)
    with pytest.raises(ValueError, match="steps must be"):
        mg.MetricLoss("f1", steps=0)
    with pytest.raises(TypeError, match="ordinary must be a surrogate"):
        mg.MetricLoss("f1", ordinary=F.cross_entropy)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="span_f1 has a custom decoder"):
        mg.MetricLoss(mg.metric("span_f1", decode=mg.decode_spans))
