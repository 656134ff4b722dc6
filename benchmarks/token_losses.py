"""Losses of tokens by name, for the tasks that read words and translate.

Scores are [N, T, V] and targets [N, T], with -1 where there is no token. A set is a batch.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

import metricgrad as mg
from benchmarks.classification import Settings
from benchmarks.starts import learned
from benchmarks.task import Examples, Loss, ScoreSets, Task


def token_cross_entropy(scores: Tensor, batch: Examples) -> Tensor:
    """Cross-entropy of the tokens; the target may have more places than the scores."""
    target = batch.target[:, : scores.shape[1]]
    return F.cross_entropy(scores.flatten(0, 1), target.flatten(), ignore_index=-1)


def token_loss(
    task: Task, settings: Settings, seed: int, steps: int, relation: mg.ReLoss | None = None
) -> Loss:
    """The loss of a row; `ordinary` in the settings is the weight of cross-entropy beside it.

    `relation` is a learned loss that another task has learned; without one, ReLoss learns from
    this task.
    """
    options = settings.get("loss_options", {})
    match settings["method"]:
        case "cross_entropy":
            return token_cross_entropy
        case "uniloss":
            return _with(_of_targets(mg.UniLoss(task.metric, **options)), settings)
        case "metric_loss":
            return _of_targets(mg.MetricLoss(task.metric, steps=steps, **options))
        case "reloss" | "reloss_bag":
            ours = _of_targets(relation or sequence_relation(task, settings, seed))
            return _with(ours, settings)
        case "ls_ed":
            return _with(_of_targets(embedding_distance(task, settings, seed)), settings)
        case "bag_of_ngrams":
            return _with(bag_of_ngrams, settings)
        case method:
            raise ValueError(f"there is no method {method!r} for tokens")


def _of_targets(surrogate: mg.Surrogate) -> Loss:
    return lambda scores, batch: surrogate(scores, batch.target[:, : scores.shape[1]])


def _with(loss: Loss, settings: Settings) -> Loss:
    """The loss times its `factor`, plus those that stand beside it."""
    factor = settings.get("factor", 1.0)
    weight = settings.get("ordinary", 0.0)
    bag = settings.get("bag", 0.0)

    def value(scores: Tensor, batch: Examples) -> Tensor:
        found = factor * loss(scores, batch)
        if weight:
            found = found + weight * token_cross_entropy(scores, batch)
        return found + bag * bag_of_ngrams(scores, batch) if bag else found

    return value


def sequence_relation(task: Task, settings: Settings, seed: int) -> mg.ReLoss:
    """ReLoss of the task's metric, learned from what the network gave before the fine-tuning."""
    net = mg.nets.Sequence(generator=torch.Generator().manual_seed(seed))
    return learned(task, settings, seed, mg.ReLoss(task.metric, net=net), "relation")


def embedding_distance(task: Task, settings: Settings, seed: int) -> mg.ReLoss:
    """LS-ED: the distance of embeddings, learned to be the metric's value."""
    number = settings["tokens"]
    net = mg.nets.Embeddings(number, generator=torch.Generator().manual_seed(seed))
    loss = mg.ReLoss(task.metric, net=net, objective="approximation")
    return learned(task, settings, seed, loss, "ls_ed")


def bag_of_ngrams(scores: Tensor, batch: Examples, n: int = 2) -> Tensor:
    r"""How far the expected n-grams are from those of the target (Shao et al., 2020).

    .. math:: 1 - \sum_g \min\Big(c_g, \sum_t \prod_{k < n} p_{t+k}(g_k)\Big) \Big/ (T - n + 1)

    c_g says how often the n-gram g occurs in the target of T tokens; the sum over g is the part of
    the L1 distance of both bags that depends on the scores. The mean is over texts with n-grams.
    """
    target = batch.target[:, : scores.shape[1]]
    chances = scores.softmax(-1)
    known = target >= 0
    # at[i, t, j] is the probability at place t of the target's token j.
    index = target.clamp(min=0).unsqueeze(1).expand(-1, scores.shape[1], -1)
    at = chances.gather(-1, index) * known.unsqueeze(-1)
    places = target.shape[1] - n + 1
    product = torch.ones_like(at[:, :places, :places])
    same = torch.ones_like(product, dtype=torch.bool)
    whole = known[:, :places]
    for k in range(n):
        tokens = target[:, k : k + places]
        product = product * at[:, k : k + places, k : k + places]
        same = same & (tokens.unsqueeze(1) == tokens.unsqueeze(2))
        whole = whole & known[:, k : k + places]
    expected = product.sum(1)
    counts = (same & whole.unsqueeze(1)).sum(-1)
    shared = torch.minimum(expected, counts.to(expected.dtype)) / counts.clamp(min=1)
    number = whole.sum(-1)
    matched = (shared * whole).sum(-1) / number.clamp(min=1)
    return 1 - matched[number > 0].mean() if bool(number.any()) else scores.sum() * 0


def token_sets(scores: Tensor, part: Examples, size: int, generator: torch.Generator) -> ScoreSets:
    """Cuts a part into sets of so many texts: scores `[S, N, T, V]`, targets `[S, N, T]`."""
    number = len(scores) // size * size
    order = torch.randperm(len(scores), generator=generator)[:number].reshape(-1, size)
    return [(scores[order], part.target[order])]
