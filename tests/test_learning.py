"""Learning a loss by rank correlation, the score sets it learns from, and rank_correlation."""

import math
from typing import Any

import matplotlib.image
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

import metricgrad as mg
from metricgrad.surrogates import learning
from metricgrad.surrogates.learning import lesson
from metricgrad.surrogates.score_sets import Pool, broad, relabelled, to_sets
from metricgrad.surrogates.wrappers import ordinary_for, takes_ordinary
from tests.trainings import same, seeded

QUICK: dict[str, Any] = {"steps": 30, "sets": 32, "size": 40, "progress": False}


def fresh(metric: Any = "f1", **options: Any) -> mg.ReLoss:
    net = options.pop("net", mg.nets.SetNetwork(width=16, context=8, generator=seeded()))
    return mg.ReLoss(metric, net=net, **{"penalty": 0.0, **options})


# -------------------------------------------------------------------------------------------------
# learning


def test_a_learned_loss_ranks_better_than_the_usual_one_is_frozen_and_can_be_read() -> None:
    loss = fresh()
    learned = loss.learn(**{**QUICK, "steps": 150}, generator=seeded())
    assert learned.spearman > learned.ordinary_spearman + 0.1
    assert learned.kendall > learned.ordinary_kendall
    assert loss.learned
    assert not [each for each in loss.parameters() if each.requires_grad]
    scores = torch.randn(50, requires_grad=True)
    loss(scores, torch.arange(50) % 3 == 0).backward()
    assert scores.grad is not None
    assert scores.grad.abs().sum() > 0
    scores, target = broad(500, 40)(seeded(9))
    found = loss.per_set(scores, target)
    truth = 1 - mg.metric("f1")(scores, target)
    assert loss.scale > 0
    assert found.mean().item() == pytest.approx(truth.mean().item(), abs=0.05)
    assert (found - truth).abs().mean() < 0.6 * (truth - truth.median()).abs().mean()


def test_a_loss_that_starts_upside_down_learns_all_the_same() -> None:
    """The penalty is blind to the sign, and would hold the loss where it starts."""
    upright = fresh(penalty=1.0, smooth="equal")
    upright.learn(**QUICK, generator=seeded())
    net = mg.nets.SetNetwork(width=16, context=8, generator=seeded())
    with torch.no_grad():
        for parameter in net.h[-1].parameters():
            parameter.neg_()
    turned = fresh(net=net, penalty=1.0, smooth="equal")
    found = turned.learn(**QUICK, generator=seeded())
    assert turned.orientation == -upright.orientation
    assert found.spearman > 0.5


def test_a_loss_that_turns_over_later_is_turned_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The paper's penalty would hold a loss that is upside down, as it is put here, where it is."""
    oriented = learning._orient

    def wrongly(loss: mg.ReLoss, groups: Any) -> None:
        oriented(loss, groups)
        loss.orientation.neg_()

    monkeypatch.setattr(learning, "_orient", wrongly)
    loss = mg.ReLoss(
        "accuracy", net=mg.nets.Classification(16, monotone=False), penalty=10.0, smooth="equal"
    )
    learned = loss.learn(steps=20, sets=32, size=32, classes=4, progress=False, generator=seeded())
    assert learned.spearman > 0.5


def test_learning_is_the_same_for_the_same_generator() -> None:
    one, other = fresh(), fresh()
    options = {**QUICK, "steps": 10}
    first, second = (loss.learn(**options, generator=seeded(2)) for loss in (one, other))
    assert same(one.state_dict(), other.state_dict())
    assert first == second


def test_the_best_moment_remains() -> None:
    loss = fresh()
    learned = loss.learn(
        **{**QUICK, "steps": 60, "rate": 0.3}, generator=seeded()
    )  # so fast that it staggers
    assert learned.spearman == pytest.approx(max(found for _, _, found in learned.curve), abs=1e-6)
    assert learned.step == next(
        step for step, _, found in learned.curve if found == max(c[2] for c in learned.curve)
    )


def test_learning_again_goes_on_from_where_it_is() -> None:
    loss = fresh()
    first = loss.learn(**{**QUICK, "steps": 60}, generator=seeded())
    again = loss.learn(**{**QUICK, "steps": 10, "rate": 1e-4}, generator=seeded(1))
    assert again.curve[0][2] > first.curve[0][2]
    assert not [each for each in loss.parameters() if each.requires_grad]


def test_a_learning_that_diverges_loses_nothing() -> None:
    loss = fresh()
    before = {name: value.clone() for name, value in loss.state_dict().items()}
    with pytest.raises(RuntimeError, match=r"diverged at step .* smaller rate than 1e\+30"):
        loss.learn(**{**QUICK, "rate": 1e30}, generator=seeded())
    assert same(loss.state_dict(), before)
    assert not loss.learned


def test_a_loss_that_learns_nothing_says_so() -> None:
    class Stubborn(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(()))

        def forward(self, scores: Tensor, target: Tensor, where: Tensor | None) -> Tensor:
            return scores.mean(-1) * 0 + self.weight * 0

    loss = fresh(net=Stubborn())
    with pytest.warns(UserWarning, match="the loss has not learned f1"):
        learned = loss.learn(**QUICK, generator=seeded())
    assert learned.spearman == 0
    assert loss.per_set(*broad(4, 30)(seeded())).isfinite().all()


def test_the_ordinary_loss_follows_the_metric() -> None:
    assert isinstance(ordinary_for(mg.metric("f1")), mg.baselines.CrossEntropy)
    assert isinstance(ordinary_for(mg.metric("recall_at_k")), mg.baselines.CrossEntropy)
    assert isinstance(ordinary_for(mg.metric("ndcg")), mg.baselines.ListNet)
    assert isinstance(ordinary_for(mg.metric("pck")), mg.baselines.HeatmapMSE)
    own = mg.metric("exact_match", decode=lambda scores: scores.argmax(-1))
    assert ordinary_for(own) is None
    scores, target = broad(4, 10)(seeded())
    grades = target.long() * 2
    both = mg.with_ordinary(mg.UniLoss("ndcg"), weight=0.5).per_set(scores, grades)
    parts = mg.UniLoss("ndcg").per_set(scores, grades), mg.baselines.ListNet()
    torch.testing.assert_close(both, parts[0] + 0.5 * parts[1].per_set(scores, grades))


def test_the_ordinary_loss_of_labels_minds_what_counts() -> None:
    entropy, metric = ordinary_for(mg.metric("f1", multilabel=True)), mg.baselines.CrossEntropy()
    assert entropy is not None
    scores, target = broad(4, 10, classes=3, multilabel=True)(seeded())
    where = torch.arange(10) < 6
    expected = metric.per_set(scores[:, :6].flatten(1), target[:, :6].flatten(1))
    torch.testing.assert_close(entropy.per_set(scores, target, where.expand(4, 10)), expected)


@pytest.mark.parametrize("rank", ["pairwise", "projection", "sorting_network"])
def test_all_ranks_teach(rank: Any) -> None:
    loss = fresh(rank=rank)
    assert loss.learn(**{**QUICK, "steps": 40}, generator=seeded()).spearman > 0.75


def test_approximation_learns_the_values() -> None:
    loss = fresh(objective="approximation")
    loss.learn(**{**QUICK, "steps": 200}, generator=seeded())
    assert loss.scale.item() == pytest.approx(1.0, abs=0.3)  # it has the metric's scale by itself


def test_the_published_recipe_is_followed_unless_told_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ten epochs of what is stored, without made-up sets, with random labels, at a fixed rate."""
    seen: dict[str, Any] = {}

    def noted(*arguments: Any) -> Any:
        seen["lesson"] = arguments
        return lesson(*arguments)

    class Noted(torch.optim.Adam):
        def __init__(self, parameters: Any, rate: float, **options: Any) -> None:
            super().__init__(parameters, rate, **options)
            seen["adam"] = (rate, options["weight_decay"])
            seen["rates"] = []

        def step(self, closure: Any = None) -> Any:
            seen["rates"].append(self.param_groups[0]["lr"])
            return super().step(closure)

    monkeypatch.setattr("metricgrad.surrogates.reloss.lesson", noted)
    monkeypatch.setattr(torch.optim, "Adam", Noted)
    stored = broad(40, 16, classes=3)(seeded())
    loss = mg.ReLoss.as_published(generator=seeded())
    found = loss.learn([stored], sets=16, progress=False, generator=seeded())
    _, made, share, sets, relabel, _ = seen["lesson"]
    assert (made, share, sets, relabel) == (None, 0.0, 16, True)
    assert seen["adam"] == (1e-2, 1e-3)
    assert seen["rates"] == pytest.approx([1e-2] * 20)  # ten epochs of two steps: 32 sets are left
    assert found.curve[-1][0] == 20
    ours = fresh()
    ours.learn(steps=5, progress=False, generator=seeded())
    assert seen["adam"] == (1e-2, 1e-4)
    assert seen["rates"][-1] < 2e-3
    assert seen["lesson"][2:5] == (0.5, 64, False)


def test_embeddings_learn_by_approximation_as_ls_ed_does() -> None:
    loss = mg.ReLoss(
        "error_rate",
        net=mg.nets.Embeddings(4, generator=seeded()),
        objective="approximation",
        penalty=0.0,
    )
    learned = loss.learn(**{**QUICK, "steps": 40}, classes=4, generator=seeded())
    assert learned.spearman > 0.8
    perfect = 50 * torch.eye(4)
    assert loss.raw(loss.check(perfect, torch.arange(4), None)) < 1e-3  # the target's own embedding


def test_the_papers_penalty_makes_gradients_alike() -> None:
    options = {**QUICK, "steps": 80}
    plain, alike = (
        fresh(penalty=weight, smooth="equal").learn(**options, generator=seeded()).penalty
        for weight in (0.0, 10.0)
    )
    assert alike < plain / 2


@pytest.mark.parametrize(
    ("metric", "options"),
    [
        ("auc", {}),
        ("accuracy", {"classes": 4}),
        (mg.metric("f1", multilabel=True), {"classes": 3}),
        ("ndcg", {}),
        (lambda scores, target: float(((scores > 0) == target).mean()), {}),
    ],
    ids=["auc", "accuracy", "f1 of labels", "ndcg", "a function"],
)
def test_every_kind_of_made_up_set_teaches(metric: Any, options: dict[str, Any]) -> None:
    net = mg.nets.SetNetwork(width=8, context=4, generator=seeded())
    loss = mg.ReLoss(metric, net=net, penalty=0.1)
    learned = loss.learn(**{**QUICK, "steps": 40}, **options, generator=seeded())
    assert learned.spearman > 0.5


def test_stored_sets_and_sources_may_be_mixed() -> None:
    stored = [broad(40, 30)(seeded(seed)) for seed in range(3)]
    loss = fresh("auc")
    learned = loss.learn([*stored, broad(10, 30)], **{**QUICK, "size": None}, generator=seeded())
    assert learned.spearman > 0.5
    alone = fresh("auc").learn(stored, share=0.0, **{**QUICK, "size": None}, generator=seeded())
    assert alone.spearman > 0.5


def test_one_score_set_may_be_passed_as_it_is() -> None:
    sets = broad(40, 30)(seeded())
    options = {**QUICK, "steps": 20}
    found = [fresh().learn(given, **options, generator=seeded()) for given in (sets, [sets])]
    assert found[0] == found[1]


def test_targets_that_cross_entropy_does_not_take_are_learned_from_all_the_same() -> None:
    def error(scores: Any, target: Any) -> float:
        return (scores - target).abs().mean().item()

    scores = torch.randn(60, 20, generator=seeded())
    target = scores + torch.rand(60, 1, generator=seeded(1)) * torch.randn(
        60, 20, generator=seeded(2)
    )
    loss = mg.ReLoss(mg.from_function(error, higher_is_better=False), generator=seeded())
    found = loss.learn([(scores, target)], **{**QUICK, "share": 0.0}, generator=seeded())
    assert math.isnan(found.ordinary_spearman)
    assert found.spearman > 0.3


def test_held_out_sets_may_be_given() -> None:
    held = broad(100, 25)(seeded(5))
    held[1][:, 0], held[1][:, 1] = True, False  # every set has both classes, and so a value
    loss = fresh("auc")
    learned = loss.learn(valid=[held], **QUICK, generator=seeded())
    found = mg.rank_correlation(loss, "auc", [held])
    assert found.spearman == pytest.approx(learned.spearman, abs=1e-6)
    assert found.kendall == pytest.approx(learned.kendall, abs=1e-6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fresh().learn(steps=0), "steps must be 1 or more; got 0"),
        (lambda: fresh().learn(share=2.0), "share=2.0"),
        (lambda: fresh().learn([]), "no score sets: what was passed is empty"),
        (lambda: fresh().learn([torch.zeros(3)]), "a score set is"),
        (
            lambda: fresh().learn([(torch.zeros(3), torch.zeros(4))]),
            r"scores \[3\] and target \[4\]",
        ),
        (
            lambda: fresh("accuracy").learn(
                [(torch.zeros(50, 9), torch.zeros(50, 9))], share=0.0, progress=False
            ),
            "accuracy is the same on all 10 held-out sets",
        ),
        (lambda: fresh(mg.metric("f1", multilabel=True)).learn(), r"learn\(classes=...\)"),
    ],
)
def test_what_cannot_be_learned_from_is_refused(call: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        call()


# -------------------------------------------------------------------------------------------------
# score sets


def test_collect_scores_leaves_the_model_as_it_was_and_cuts_sets() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1))
    model[2].eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    x, y = torch.randn(70, 3), torch.randint(2, (70,))
    loader = [(x[:30], y[:30]), (x[30:], y[30:])]
    sets = mg.collect_scores(model, loader, size=16)
    assert sets.scores.shape == sets.target.shape == (4, 16)
    assert same(model.state_dict(), before)
    assert [each.training for each in model] == [True, True, False, True]
    assert not sets.scores.requires_grad
    torch.testing.assert_close(sets.scores.flatten(), model.eval()(x)[:64, 0].detach())
    assert torch.equal(sets.target.flatten(), y[:64])
    assert len(mg.collect_scores(model, loader, size=16, limit=1).target) == 1
    column = mg.collect_scores(model, [(x, y.unsqueeze(-1))], size=16)
    assert torch.equal(column.target, sets.target)
    with pytest.raises(
        ValueError, match=r"different shapes, such as \[2, 7\] and \[2, 5\]; pad them"
    ):
        mg.collect_scores(
            nn.Identity(), [(torch.zeros(2, n), torch.zeros(2, n)) for n in (7, 5)], size=None
        )
    queries = mg.collect_scores(nn.Identity(), [(torch.zeros(5, 7), torch.zeros(5, 7))], size=None)
    assert queries.scores.shape == (5, 7)


def test_collect_scores_of_other_batches() -> None:
    batches = [{"inputs": torch.randn(8, 3), "labels": torch.zeros(8)}]
    with pytest.raises(TypeError, match=r"batches \(x, y\); got dict"):
        mg.collect_scores(nn.Linear(3, 1), batches)
    sets = mg.collect_scores(
        nn.Linear(3, 1),
        batches,
        size=4,
        forward=lambda model, batch: (model(batch["inputs"]), batch["labels"]),
    )
    assert sets.scores.shape == (2, 4)
    with pytest.raises(ValueError, match="8 items, which make no set of 9"):
        mg.collect_scores(nn.Linear(3, 1), [(torch.zeros(8, 3), torch.zeros(8))], size=9)


def test_a_pool_draws_each_stored_set_alike() -> None:
    small, large = (torch.full((number, 2), float(number)) for number in (3, 9))
    pool = Pool.of([(small, small), (large, large)])
    (drawn,) = pool.draw(12_000, seeded())
    assert (drawn.scores[:, 0] == 9).float().mean().item() == pytest.approx(0.75, abs=0.02)


def test_a_pool_splits_without_overlap() -> None:
    scores = torch.arange(50.0).unsqueeze(-1).expand(50, 2)
    first, second = Pool.of([(scores, scores)]).split(0.2, seeded())
    parts = [set(pool.stored[0].scores[:, 0].tolist()) for pool in (first, second)]
    assert len(parts[1]) == 10
    assert parts[0] | parts[1] == set(range(50))
    assert not parts[0] & parts[1]


def test_relabelling_spreads_the_accuracy_evenly() -> None:
    sets = to_sets(broad(400, 200, classes=5)(seeded()))
    values = mg.metric("accuracy")(*relabelled(sets, seeded(1))[:2])
    assert stats.kstest(values.numpy(), stats.uniform(0.2, 0.8).cdf).statistic < 0.1


# -------------------------------------------------------------------------------------------------
# rank correlation


@pytest.mark.parametrize("name", ["accuracy", "error_rate", "f1"])
def test_rank_correlation_equals_scipys(name: str) -> None:
    scores, target = broad(120, 30, classes=3)(seeded())
    found = mg.rank_correlation(
        nn.functional.cross_entropy, name, [(scores, target)], generator=seeded()
    )
    losses = [nn.functional.cross_entropy(s, y).item() for s, y in zip(scores, target, strict=True)]
    truth = mg.metric(name)(scores, target)
    truth = truth if name == "error_rate" else -truth
    assert found.spearman == pytest.approx(stats.spearmanr(losses, truth)[0], abs=1e-9)
    assert found.kendall == pytest.approx(stats.kendalltau(losses, truth)[0], abs=1e-9)
    for value, (low, high) in (
        (found.spearman, found.spearman_interval),
        (found.kendall, found.kendall_interval),
    ):
        assert low < value < high < 1
    assert "cross_entropy and " + name in str(found)


def test_the_interval_narrows_with_more_sets() -> None:
    widths = []
    for number in (40, 640):
        found = mg.rank_correlation(
            mg.baselines.CrossEntropy(), "f1", [broad(number, 30)(seeded())], generator=seeded()
        )
        widths.append(found.spearman_interval[1] - found.spearman_interval[0])
    assert widths[0] / widths[1] == pytest.approx(4.0, rel=0.5)


def test_a_metric_is_its_own_best_loss(tmp_path: Any) -> None:
    found = mg.rank_correlation(mg.UniLoss("auc"), "auc", broad(50, 30), generator=seeded())
    assert found.spearman > 0.99  # equal values of the metric differ by rounding as losses
    assert 490 < len(found.losses) < 512  # sets of one class have no value
    found.plot(tmp_path / "scatter.png")
    assert matplotlib.image.imread(tmp_path / "scatter.png").std() > 0.05


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: mg.rank_correlation(
                nn.MSELoss(), "auc", [(torch.zeros(2, 5), torch.ones(2, 5))]
            ),
            "three sets",
        ),
        (
            lambda: mg.rank_correlation(
                lambda s, y: s, "accuracy", [(torch.zeros(4, 5), torch.ones(4, 5))]
            ),
            r"one number for each set; it gave shape \[5\]",
        ),
        (
            lambda: mg.rank_correlation(
                lambda s, y: 0 * s.sum() + 2.5, "accuracy", broad(9, 5)(seeded())
            ),
            "is 2.5 on all 9 sets",
        ),
        (
            lambda: mg.rank_correlation(
                nn.MSELoss(), "accuracy", [(torch.ones(4, 5), torch.ones(4, 5))]
            ),
            "MSELoss is 0 on all 4 sets, so there is no order",
        ),
        (lambda: mg.rank_correlation(nn.MSELoss(), "accuracy", []), "no score sets"),
    ],
)
def test_rank_correlation_refuses(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_a_set_without_a_value_is_left_out() -> None:
    def undefined_without_positives(scores: Any, target: Any) -> float:
        return math.nan if not target.any() else ((scores > 0) == target).float().mean().item()

    scores, target = broad(30, 10)(seeded())
    target[:5], target[5:, 0] = False, True
    found = mg.rank_correlation(
        mg.baselines.CrossEntropy(), undefined_without_positives, [(scores, target)]
    )
    assert len(found.values) == 25


def test_a_loss_that_is_not_a_number_is_told() -> None:
    scores, target = broad(30, 10)(seeded())

    def broken(scores: Tensor, target: Tensor) -> Tensor:
        return (scores * (1 - 2 * target)).mean() if scores[0] > 0 else torch.tensor(torch.nan)

    with pytest.warns(
        UserWarning, match="broken has no finite value on .* of 30 sets; these are left out"
    ):
        found = mg.rank_correlation(broken, "accuracy", [(scores, target)])
    assert len(found.values) == int((scores[:, 0] > 0).sum())


def test_sets_of_one_class_are_left_out_for_every_loss() -> None:
    scores, target = broad(30, 10)(seeded())
    target[:, 0], target[:, 1], target[:4] = True, False, False
    for loss in (mg.baselines.CrossEntropy(), mg.UniLoss("auc"), mg.ReLoss.pretrained("auc")):
        assert len(mg.rank_correlation(loss, "auc", [(scores, target)]).values) == 26


def test_short_learning_looks_after_every_step() -> None:
    learned = fresh().learn(**{**QUICK, "steps": 3}, generator=seeded())
    assert [step for step, _, _ in learned.curve] == [1, 2, 3]


def test_one_stored_set_can_be_drawn() -> None:
    stored = to_sets((torch.randn(5, 8, generator=seeded()), torch.arange(40).reshape(5, 8) % 2))
    (drawn,) = Pool([], [stored]).draw(1, seeded())
    assert drawn.target.shape == (1, 8)
    assert Pool([], [stored]).draw(0, seeded()) == []


def test_universal_learning_needs_a_step() -> None:
    with pytest.raises(ValueError, match="steps must be 1 or more; got 0"):
        mg.BilevelLoss("f1").learn_universal(steps=0)


def test_no_more_batches_are_scored_than_asked_for() -> None:
    batches = [(torch.randn(10, 4), torch.randint(3, (10,))) for _ in range(5)]
    read: list[int] = []

    def noted() -> Any:
        for number, batch in enumerate(batches):
            read.append(number)
            yield batch

    found = mg.collect_scores(torch.nn.Linear(4, 3), noted(), size=10, limit=2)
    assert len(found.scores) == 2
    assert read == [0, 1]


def test_sets_lose_their_trailing_dimension_of_one() -> None:
    batches = [(torch.randn(2, 3, 4), torch.randint(2, (2, 3))) for _ in range(3)]
    found = mg.collect_scores(torch.nn.Linear(4, 1), batches, size=None)
    assert found.scores.shape == found.target.shape == (6, 3)


SHAPES = {
    "binary": ((3, 8), (3, 8), 2),
    "classes": ((3, 8, 4), (3, 8), 4),
    "maps": ((3, 2, 4, 5, 6), (3, 2, 5, 6), 4),
}


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("masked", [False, True])
def test_facts_tell_whether_the_ordinary_loss_takes_a_functions_sets(
    name: str, masked: bool
) -> None:
    """What `takes_ordinary` says without trying is what happens when it is tried."""
    scores, shape, classes = SHAPES[name]
    own = mg.from_function(lambda s, y: float((s.sum() + y.sum()) > 0), higher_is_better=True)
    loss = ordinary_for(own)
    assert loss is not None
    target = torch.randint(classes, shape, generator=seeded())
    where = None
    if masked:
        where = torch.rand(shape, generator=seeded(1)) < 0.5
        target = target.masked_fill(~where, -100)
    found = torch.randn(scores, generator=seeded(2))
    wrong = [
        target + 0.5,
        torch.where(target >= 0, -7, target),
        torch.full_like(target, classes),
    ]
    assert takes_ordinary(own, found, target, where)
    assert loss.losses(found, target, where)[0].shape == (3,)
    for given in wrong:
        assert not takes_ordinary(own, found, given, where)
        with pytest.raises(ValueError, match="must hold"):
            loss.losses(found, given, where)


def test_the_ordinary_loss_of_text_needs_references_as_long_as_the_scores() -> None:
    metric = mg.metric("exact_match")
    scores = torch.randn(2, 3, 5, 7, generator=seeded())
    ids = torch.randint(7, (2, 3, 5), generator=seeded())
    assert takes_ordinary(metric, scores, ids)
    assert takes_ordinary(metric, scores, ids.unsqueeze(-2))
    assert not takes_ordinary(metric, scores, ids[..., :4])
    assert not takes_ordinary(metric, scores, ids + 7)
    own = mg.from_function(lambda s, y: 0.0, higher_is_better=True, set_dims=(3, 1))
    assert not takes_ordinary(own, scores, ids[..., 0])
