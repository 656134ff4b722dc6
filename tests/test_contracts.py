"""The laws of every metric, over the one table of cases, and the facts that metrics state."""

import json
import zlib

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import torch

import metricgrad as mg
from metricgrad.metrics import TIE_RULES, metric_config, metric_from_config
from metricgrad.metrics.reexpression import ComparisonMetric
from metricgrad.metrics.registry import with_options
from tests.cases import CASES, VARIANTS, Case
from tests.sets import KINDS, Kind, ideal_set, make_set

SETS = {"plain": 10, "ties": 10, "imbalanced": 2, "tiny": 20}
MORE = 4  # times as many sets of lists, whose cut-offs few of them touch
every_case = pytest.mark.parametrize("case", CASES, ids=str)


def generator(case: Case, salt: int = 0) -> np.random.Generator:
    return np.random.default_rng([zlib.crc32(str(case).encode()), salt])


def tensors(scores: np.ndarray, target: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.as_tensor(scores), torch.as_tensor(target)


def test_every_name_is_in_the_table() -> None:
    assert {case.name for case in CASES} == set(mg.metric_names())


@pytest.mark.parametrize("case", [*CASES, *VARIANTS], ids=str)
def test_equals_its_reference(case: Case) -> None:
    rng = generator(case)
    more = MORE if case.family in ("binary", "ranking") else 1
    for kind in KINDS:
        for _ in range(more * SETS[kind]):
            scores, target = make_set(case.family, kind, rng)
            value = case.metric(*tensors(scores, target))
            assert value.shape == ()
            assert value.dtype == torch.float64
            np.testing.assert_allclose(
                value.item(), case.reference(scores, target), rtol=0, atol=1e-6, err_msg=kind
            )


@hypothesis.settings(max_examples=300)
@hypothesis.given(
    case=st.sampled_from([*CASES, *VARIANTS]),
    seed=st.integers(0, 2**32 - 1),
    kind=st.sampled_from(["plain", "ties", "tiny"]),
)
def test_no_counter_example_to_the_reference(case: Case, seed: int, kind: Kind) -> None:
    scores, target = make_set(case.family, kind, np.random.default_rng(seed))
    np.testing.assert_allclose(
        case.metric(*tensors(scores, target)).item(), case.reference(scores, target), atol=1e-6
    )


@every_case
def test_many_sets_equal_one_by_one(case: Case) -> None:
    rng = generator(case)
    sets = [tensors(*make_set(case.family, KINDS[i % 2], rng, size=7)) for i in range(6)]
    together = case.metric(torch.stack([s for s, _ in sets]), torch.stack([y for _, y in sets]))
    one_by_one = torch.stack([case.metric(s, y) for s, y in sets])
    torch.testing.assert_close(together, one_by_one, rtol=0, atol=1e-12)
    scores, target = (torch.stack(column) for column in zip(*sets, strict=True))
    grid = case.metric(scores.unflatten(0, (3, 1, 2)), target.unflatten(0, (3, 1, 2)))
    torch.testing.assert_close(grid, one_by_one.reshape(3, 1, 2), rtol=0, atol=1e-12)


@every_case
def test_masked_items_do_not_count(case: Case) -> None:
    rng = generator(case)
    scores, target = tensors(*make_set(case.family, "ties", rng, size=9))
    where = torch.as_tensor(rng.permutation(np.arange(9) < 6))
    expected = case.metric(scores[where], target[where])
    scores[~where] = torch.nan
    target[~where] = -77
    torch.testing.assert_close(
        case.metric(scores, target, where=where), expected, rtol=0, atol=1e-12
    )
    pair = case.metric(
        torch.stack([scores, scores]),
        torch.stack([target, target]),
        where=torch.stack([where, where]),
    )
    torch.testing.assert_close(pair, expected.expand(2), rtol=0, atol=1e-12)


@every_case
def test_groups_cut_a_flat_set(case: Case) -> None:
    rng = generator(case)
    scores, target = tensors(*make_set(case.family, "ties", rng, size=11))
    groups = torch.as_tensor(rng.permutation([3] * 5 + [-2] * 2 + [7] * 4))
    expected = [case.metric(scores[groups == g], target[groups == g]) for g in (-2, 3, 7)]
    torch.testing.assert_close(
        case.metric(scores, target, groups=groups), torch.stack(expected), rtol=0, atol=1e-12
    )
    where = torch.as_tensor(rng.random(11) < 0.6)
    expected = [
        case.metric(scores[(groups == g) & where], target[(groups == g) & where])
        for g in (-2, 3, 7)
    ]
    values = case.metric(scores, target, where=where, groups=groups)
    torch.testing.assert_close(values, torch.stack(expected), rtol=0, atol=1e-12)


@every_case
def test_item_order_is_irrelevant(case: Case) -> None:
    rng = generator(case)
    for kind in KINDS[:2]:
        scores, target = tensors(*make_set(case.family, kind, rng, size=12))
        order = torch.as_tensor(rng.permutation(12))
        torch.testing.assert_close(
            case.metric(scores[order], target[order]),
            case.metric(scores, target),
            rtol=0,
            atol=1e-12,
        )


@pytest.mark.parametrize("case", [case for case in CASES if case.reaches_best], ids=str)
def test_ideal_scores_give_the_best_value(case: Case) -> None:
    scores, target = tensors(*ideal_set(case.family, generator(case), size=9))
    assert case.metric(scores, target).item() == pytest.approx(case.metric.best, abs=1e-12)


@every_case
def test_values_lie_between_worst_and_best(case: Case) -> None:
    metric, rng = case.metric, generator(case)
    assert (metric.best > metric.worst) == metric.higher_is_better
    low, high = sorted([metric.best, metric.worst])
    for _ in range(20):
        scores, target = make_set(case.family, "plain", rng, size=20)
        if np.unique(target).size == 1:
            continue  # undefined for some: 0 stands in
        value = metric(*tensors(scores, target)).item()
        assert low - 1e-12 <= value <= high + 1e-12


@every_case
def test_shorter_floats_give_the_same_value(case: Case) -> None:
    scores, target = tensors(*make_set(case.family, "plain", generator(case), size=8))
    scores = (scores * 4).round() / 4
    expected = case.metric(scores, target)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        value = case.metric(scores.to(dtype), target)
        assert value.dtype == torch.float32
        torch.testing.assert_close(value.double(), expected, rtol=0, atol=2e-6)


@every_case
def test_degenerate_sets_have_a_finite_value(case: Case) -> None:
    rng, metric = generator(case), case.metric
    scores, target = tensors(*make_set(case.family, "plain", rng, size=5))
    nothing = torch.zeros(5, dtype=torch.bool)
    assert metric(scores, target, where=nothing).item() == 0
    assert metric(scores[:0], target[:0]).item() == 0
    no_items = scores.new_zeros(3, 0, *scores.shape[1:]), target.new_zeros(3, 0, *target.shape[1:])
    assert metric(*no_items).tolist() == [0, 0, 0]
    for constant in (0, 1):
        one_class = torch.full_like(target, constant)
        for size in (1, 5):
            assert metric(scores[:size], one_class[:size]).isfinite()
            assert metric(torch.zeros_like(scores[:size]), one_class[:size]).isfinite()


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.family != "pose"], ids=str
)  # joints are real numbers
def test_targets_may_be_of_any_dtype(case: Case) -> None:
    scores, target = tensors(*make_set(case.family, "plain", generator(case), size=8))
    expected = case.metric(scores, target)
    dtypes = [torch.int32, torch.float32] + [torch.bool] * (
        case.family in ("binary", "multi-label")
    )
    for dtype in dtypes:
        assert case.metric(scores, target.to(dtype)) == expected
    assert case.metric(scores.numpy(), target.numpy()) == expected


@every_case
def test_gradients_are_not_tracked(case: Case) -> None:
    scores, target = tensors(*make_set(case.family, "plain", generator(case), size=4))
    assert not case.metric(scores.requires_grad_(), target).requires_grad


@every_case
def test_scores_that_are_no_numbers_are_counted_and_placed(case: Case) -> None:
    scores, target = tensors(*make_set(case.family, "plain", generator(case), size=6))
    target[2] = 1  # a class that no case ignores
    place = [2] + [1] * (scores.dim() - 1)
    for bad in (float("nan"), float("inf"), -float("inf")):
        scores[tuple(place)] = bad
        with pytest.raises(ValueError, match="scores has 1 NaN or infinite value of") as error:
            case.metric(scores, target)
        assert str(place) in str(error.value)
        assert str(list(scores.shape)) in str(error.value)


@every_case
def test_wrong_inputs_are_refused_by_name(case: Case) -> None:
    scores, target = tensors(*make_set(case.family, "plain", generator(case), size=6))
    with pytest.raises(TypeError, match=r"scores must be real; got torch\.complex128 of shape"):
        case.metric(scores.to(torch.complex128), target)
    with pytest.raises(TypeError, match="target must be real"):
        case.metric(scores, target.to(torch.complex64))
    with pytest.raises(ValueError, match=r"target") as error:
        case.metric(scores, target[:5])
    assert str([5, *target.shape[1:]]) in str(error.value)
    with pytest.raises(ValueError, match=r"where must have shape .* got \[4\]"):
        case.metric(scores, target, where=torch.ones(4, dtype=torch.bool))
    with pytest.raises(TypeError, match="target must hold numbers; got list"):
        case.metric(scores, ["yes"] * 6)
    with pytest.raises(ValueError, match="groups must be one integer id per item"):
        case.metric(scores, target, groups=torch.zeros(6))


@every_case
def test_targets_out_of_range_are_refused(case: Case) -> None:
    scores, target = tensors(*make_set(case.family, "plain", generator(case), size=6))
    target = target.double()
    place = (2,) + (0,) * (target.dim() - 1)
    values: dict[str, list[tuple[float, str]]] = {
        "binary": [(0.5, "only 0 and 1; got 0.5"), (2, "only 0 and 1; got 2"), (-1, "got -1")],
        "multi-label": [(0.5, "only 0 and 1; got 0.5"), (2, "only 0 and 1; got 2")],
        "multi-class": [(4, "class indices 0 to 3.* got 4"), (-1, "got -1"), (0.5, "got 0.5")],
        "segmentation": [(4, "class indices 0 to 3.* got 4"), (1.5, "got 1.5")],
        "ranking": [(-1, "grades of 0 or more; got -1"), (float("inf"), "got inf")],
        "pose": [(float("nan"), "finite joints")],
        "text": [(0.5, "token ids, whole numbers")],
        "text-references": [(0.5, "token ids, whole numbers")],
    }
    family = "ranking" if case.name in ("precision_at_k", "recall_at_k") else case.family
    for value, message in values[family]:
        wrong = target.clone()
        wrong[place] = value
        with pytest.raises(ValueError, match=message):
            case.metric(scores, wrong)


@every_case
def test_metrics_describe_themselves(case: Case) -> None:
    metric = case.metric
    assert metric.name == case.name
    assert metric.ties in TIE_RULES
    assert metric.undefined
    assert metric.reference
    assert case.family.removesuffix("-references") in metric.families
    assert metric == mg.metric(case.name, **case.options)
    assert hash(metric) == hash(mg.metric(case.name, **case.options))


LAYOUTS = {
    "binary": "binary",
    "multi-class": "binary",
    "multi-label": "labels",
    "ranking": "grades",
    "segmentation": "maps",
    "pose": "heatmaps",
    "text": "tokens",
    "text-references": "tokens",
}


def plain_sets(case: Case, number: int = 6) -> list[tuple[torch.Tensor, torch.Tensor]]:
    rng = generator(case)
    return [tensors(*make_set(case.family, "plain", rng, size=12)) for _ in range(number)]


@every_case
def test_layouts_and_their_ordinary_losses(case: Case) -> None:
    metric = case.metric
    cut_off = case.name in ("precision_at_k", "recall_at_k")  # classifiers report these, too
    assert metric.layout == ("binary" if cut_off else LAYOUTS[case.family])
    losses = {"grades": "list_net", "heatmaps": "heatmap_mse"}
    assert metric.ordinary == losses.get(metric.layout, "cross_entropy")
    classes = [other for other in CASES if other.family == "multi-class"]
    assert metric.takes_classes == (case.name in [other.name for other in classes])


@every_case
def test_what_decides_a_metric_is_stated(case: Case) -> None:
    """Only metrics of order are blind to strictly increasing maps; others have thresholds."""
    metric = case.metric
    neither = metric.layout == "tokens" or case.name == "oks_ap"
    assert (
        metric.decided_by == "anything" if neither else metric.decided_by in ("thresholds", "order")
    )
    assert metric.has_threshold == (
        metric.decided_by == "thresholds" and metric.layout in ("binary", "labels")
    )
    if case.family not in ("binary", "multi-label", "ranking"):
        return
    sets = plain_sets(case)
    mapped = [metric(scores**3 + scores - 1, target) for scores, target in sets]
    same = torch.allclose(torch.stack(mapped), torch.stack([metric(*each) for each in sets]))
    assert same == (metric.decided_by == "order")


@every_case
def test_thresholds_are_those_of_moved_scores(case: Case) -> None:
    metric = case.metric
    scores, target = plain_sets(case)[0]
    at_none, unmoved = metric.at_threshold(None, scores)
    assert at_none == metric
    assert unmoved is scores
    if not metric.has_threshold:
        with pytest.raises(ValueError, match="has no best threshold"):
            mg.best_threshold(scores, target, metric)
        return
    if case.family == "multi-class":
        return  # decided by the highest class
    at_zero = with_options(metric, threshold=0.0)
    several = torch.linspace(-0.5, 0.5, scores.shape[-1], dtype=scores.dtype)
    for threshold in [torch.tensor(0.4)] + [several] * (metric.layout == "labels"):
        moved, given = metric.at_threshold(threshold, scores)
        assert moved(given, target) == at_zero(scores - threshold, target)


@every_case
def test_scale_free_metrics_do_not_see_the_scale(case: Case) -> None:
    metric = case.metric
    if case.family == "multi-class" and metric.decided_by == "order":
        return  # ranked by softmax
    sets = plain_sets(case)
    scaled = torch.stack([metric(3 * scores, target) for scores, target in sets])
    same = torch.allclose(scaled, torch.stack([metric(*each) for each in sets]))
    assert same >= metric.scale_free
    if case.family in ("binary", "multi-label", "ranking"):
        assert same == metric.scale_free


@every_case
def test_a_mean_of_items_is_one(case: Case) -> None:
    metric = case.metric
    assert metric.mean_of_items == (case.name in ("accuracy", "error_rate"))
    if metric.layout not in ("binary", "labels") or "micro" in case.options.values():
        return  # the micro average of classes is a mean of items in disguise
    sets = plain_sets(case)
    items = torch.stack([metric.of_sets(s.unsqueeze(1), y.unsqueeze(1)).mean() for s, y in sets])
    same = torch.allclose(items, torch.stack([metric(*each) for each in sets]))
    assert same >= metric.mean_of_items
    if metric.layout == "binary":
        assert same == metric.mean_of_items


@every_case
def test_a_portable_metric_is_rebuilt_from_its_description(case: Case) -> None:
    assert case.metric.portable
    stored = json.dumps(metric_config(case.metric))
    assert metric_from_config(json.loads(stored)) == case.metric


@every_case
def test_scores_of_models_are_taken_as_items(case: Case) -> None:
    """`[N, 1]` is one score per item unless the target has that shape; two classes are s1 - s0."""
    metric = case.metric
    scores, target = plain_sets(case)[0]
    assert metric.item_scores(scores, target) is scores
    if case.family in ("binary", "ranking"):
        torch.testing.assert_close(metric.item_scores(scores.unsqueeze(-1), target), scores)
    if case.family == "multi-label":
        assert metric.item_scores(scores[:, :1], target[:, :1]).shape == (12, 1)
    if case.family == "binary" and metric.takes_classes:
        two = torch.stack([0.5 * scores, 1.5 * scores], -1)
        torch.testing.assert_close(metric.item_scores(two, target), scores)
        averaged = with_options(metric, average="macro") if case.name == "f1" else None
        assert averaged is None or averaged.item_scores(two, target) is two


@every_case
def test_sets_without_a_value_are_told_apart(case: Case) -> None:
    """A metric that comparisons decide knows them; others pass on what they are told."""
    metric = case.metric
    scores, target = tensors(*ideal_set(case.family, generator(case), size=9))
    where = torch.stack([torch.ones(9, dtype=torch.bool), torch.zeros(9, dtype=torch.bool)])
    inputs = metric.check(torch.stack([scores] * 2), torch.stack([target] * 2), where)
    everywhere = torch.ones(2, dtype=torch.bool)
    known = isinstance(metric, ComparisonMetric)
    assert metric.has_value(inputs, everywhere).tolist() == [True, not known]
    assert not metric.has_value(inputs, ~everywhere).any()
    if isinstance(metric, ComparisonMetric):
        assert metric.settled(inputs) is metric


@pytest.mark.parametrize("name", ["accuracy", "balanced_accuracy", "gmean", "f1", "mcc", "kappa"])
@pytest.mark.parametrize("pairs", ["best", "all"])
def test_only_metrics_with_rivals_can_keep_the_strongest(name: str, pairs: str) -> None:
    metric = mg.metric(name, pairs=pairs)
    assert isinstance(metric, ComparisonMetric)
    scores = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    target = torch.tensor([0, 1, 2, 3, 0])
    plan = metric.reexpress(scores.shape, target, None, scores.dtype)
    if metric.has_rivals:
        values, live = plan.strongest(scores, 2).comparisons(scores)
        assert values.shape == live.shape == (10,)
    else:
        with pytest.raises(ValueError, match="rivals=2 needs scores"):
            plan.strongest(scores, 2)
