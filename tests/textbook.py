"""Metrics as textbooks write them: plain torch, one set at a time, in whatever style came to hand.

Not one of them knows of metricgrad. `test_textbook.py` has `mg.reexpress` make metrics and losses
of them.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

# Decisions: binary, a score above 0 is a positive


def accuracy(scores: Tensor, target: Tensor) -> Tensor:
    return ((scores > 0) == target).float().mean()


def error_rate(scores: Tensor, target: Tensor) -> Tensor:
    return ((scores > 0) != (target == 1)).double().mean()


def balanced_accuracy(scores: Tensor, target: Tensor) -> Tensor:
    predicted = scores > 0
    sensitivity = predicted[target == 1].float().mean()
    specificity = (~predicted[target == 0]).float().mean()
    return (sensitivity + specificity) / 2


def precision(scores: Tensor, target: Tensor) -> Tensor:
    predicted = scores > 0
    return (predicted & (target == 1)).sum() / predicted.sum().clamp(min=1)


def recall(scores: Tensor, target: Tensor) -> Tensor:
    predicted = (scores > 0).float()
    return (predicted * target).sum() / target.sum()


def recall_of_positives(scores: Tensor, target: Tensor) -> Tensor:
    return (scores[target == 1] > 0).float().mean()


def fbeta(scores: Tensor, target: Tensor, beta: float) -> Tensor:
    found, missed = precision(scores, target), recall(scores, target)
    return (1 + beta**2) * found * missed / (beta**2 * found + missed).clamp(min=1e-12)


def f1(scores: Tensor, target: Tensor, threshold: float = 0.0) -> Tensor:
    predicted, truth = scores > threshold, target.bool()
    tp = (predicted & truth).sum()
    fp = (predicted & ~truth).sum()
    fn = (~predicted & truth).sum()
    return 2 * tp / (2 * tp + fp + fn)


def f1_of_probabilities(scores: Tensor, target: Tensor) -> Tensor:
    predicted = scores.sigmoid().round()
    return 2 * (predicted * target).sum() / (predicted + target).sum()


def jaccard(scores: Tensor, target: Tensor) -> Tensor:
    predicted, truth = scores.gt(0), target.bool()
    return torch.logical_and(predicted, truth).sum() / torch.logical_or(predicted, truth).sum()


def mcc(scores: Tensor, target: Tensor) -> Tensor:
    predicted = torch.where(scores > 0, 1.0, 0.0)
    tp, tn = (predicted * target).sum(), ((1 - predicted) * (1 - target)).sum()
    fp, fn = (predicted * (1 - target)).sum(), ((1 - predicted) * target).sum()
    return (tp * tn - fp * fn) / ((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)).sqrt().clamp(
        min=1e-12
    )


def kappa(scores: Tensor, target: Tensor) -> Tensor:
    predicted, truth = (scores > 0).float(), target.float()
    observed = (predicted == truth).float().mean()
    expected = predicted.mean() * truth.mean() + (1 - predicted).mean() * (1 - truth).mean()
    return (observed - expected) / (1 - expected)


def gmean(scores: Tensor, target: Tensor) -> Tensor:
    predicted = scores > 0
    recalls = [(predicted[target == c] == c).float().mean() for c in (0, 1)]
    return (recalls[0] * recalls[1]).sqrt()


# Decisions: many classes, the highest score is the prediction


def multiclass_accuracy(scores: Tensor, target: Tensor) -> Tensor:
    return (scores.argmax(-1) == target).float().mean()


def accuracy_by_max(scores: Tensor, target: Tensor) -> Tensor:
    _, predicted = scores.max(dim=1)
    return predicted.eq(target).sum() / target.numel()


def accuracy_with_the_target_first(scores: Tensor, target: Tensor) -> Tensor:
    return (target == torch.argmax(scores, dim=1)).double().mean()


def accuracy_of_equal_to_max(scores: Tensor, target: Tensor) -> Tensor:
    predicted = scores == scores.amax(-1, keepdim=True)
    return predicted.gather(-1, target.unsqueeze(-1)).float().mean()


def top_k_accuracy(scores: Tensor, target: Tensor, k: int) -> Tensor:
    _, predicted = scores.topk(k, dim=-1)
    return (predicted == target.unsqueeze(-1)).any(-1).float().mean()


def top_k_accuracy_by_rank(scores: Tensor, target: Tensor, k: int) -> Tensor:
    own = scores.gather(-1, target.unsqueeze(-1))
    return ((scores > own).sum(-1) < k).float().mean()


def multiclass_error_rate(scores: Tensor, target: Tensor) -> Tensor:
    return 1 - multiclass_accuracy(scores, target)


def multiclass_balanced_accuracy(scores: Tensor, target: Tensor) -> Tensor:
    correct = (scores.argmax(-1) == target).float()
    return torch.stack([correct[target == c].mean() for c in target.unique()]).mean()


def multiclass_gmean(scores: Tensor, target: Tensor) -> Tensor:
    predicted = scores.argmax(-1)
    recalls = [(predicted[target == c] == c).double().mean() for c in target.unique()]
    return torch.stack(recalls).prod() ** (1 / len(recalls))


def macro_precision(scores: Tensor, target: Tensor) -> Tensor:
    predicted = F.one_hot(scores.argmax(-1), scores.shape[-1])
    truth = F.one_hot(target, scores.shape[-1])
    tp, fp, fn = (
        (predicted * truth).sum(0),
        (predicted * (1 - truth)).sum(0),
        ((1 - predicted) * truth).sum(0),
    )
    occurs = tp + fp + fn > 0
    return (tp / (tp + fp).clamp(min=1)).sum() / occurs.sum()


def macro_recall(scores: Tensor, target: Tensor) -> Tensor:
    matrix = confusion_matrix(scores, target)
    occurs = (matrix.sum(0) + matrix.sum(1)) > 0
    return (matrix.diagonal() / matrix.sum(1).clamp(min=1)).sum() / occurs.sum()


def macro_f1(scores: Tensor, target: Tensor) -> Tensor:
    predicted = scores.argmax(-1)
    total = classes = torch.zeros(())
    for c in range(scores.shape[-1]):
        tp = ((predicted == c) & (target == c)).sum()
        size = (predicted == c).sum() + (target == c).sum()
        total = total + 2 * tp / size.clamp(min=1)
        classes = classes + (size > 0)
    return total / classes


def macro_f1_of_classes(scores: Tensor, target: Tensor) -> Tensor:
    predicted, classes = scores.argmax(-1).unsqueeze(-1), torch.arange(scores.shape[-1])
    hits, truth = predicted == classes, target.unsqueeze(-1) == classes
    size = hits.sum(0) + truth.sum(0)
    return (2 * (hits & truth).sum(0) / size.clamp(min=1)).sum() / (size > 0).sum()


def micro_f1(scores: Tensor, target: Tensor) -> Tensor:
    predicted, truth = (
        F.one_hot(scores.argmax(-1), scores.shape[-1]).bool(),
        F.one_hot(target, scores.shape[-1]).bool(),
    )
    tp, fp, fn = (predicted & truth).sum(), (predicted & ~truth).sum(), (~predicted & truth).sum()
    return tp / (tp + 0.5 * (fp + fn))


def weighted_f1(scores: Tensor, target: Tensor) -> Tensor:
    predicted = scores.argmax(-1)
    classes, support = target.unique(return_counts=True)
    values = []
    for c in classes:
        tp = ((predicted == c) & (target == c)).sum()
        values.append(2 * tp / ((predicted == c).sum() + (target == c).sum()))
    return (torch.stack(values) * support).sum() / support.sum()


def macro_jaccard(scores: Tensor, target: Tensor) -> Tensor:
    classes = torch.arange(scores.shape[-1])
    predicted, truth = scores.argmax(-1, keepdim=True) == classes, target.unsqueeze(-1) == classes
    intersection, union = (predicted & truth).sum(0), (predicted | truth).sum(0)
    return (intersection / union.clamp(min=1)).sum() / (union > 0).sum()


def macro_fbeta(scores: Tensor, target: Tensor, beta: float) -> Tensor:
    predicted, values, occur = scores.argmax(-1), [], []
    for c in range(scores.shape[-1]):
        tp, fp = ((predicted == c) & (target == c)).sum(), ((predicted == c) & (target != c)).sum()
        fn = ((predicted != c) & (target == c)).sum()
        below = (1 + beta**2) * tp + beta**2 * fn + fp
        values.append((1 + beta**2) * tp / below.clamp(min=1e-12))
        occur.append(below > 0)
    return torch.stack(values).sum() / torch.stack(occur).sum()


def multiclass_mcc(scores: Tensor, target: Tensor) -> Tensor:
    predicted = F.one_hot(scores.argmax(-1), scores.shape[-1]).double()
    truth = F.one_hot(target, scores.shape[-1]).double()

    def covariance(a: Tensor, b: Tensor) -> Tensor:
        return ((a - a.mean(0)) * (b - b.mean(0))).sum()

    spread = covariance(predicted, predicted) * covariance(truth, truth)
    return covariance(predicted, truth) / spread.sqrt().clamp(min=1e-12)


def confusion_matrix(scores: Tensor, target: Tensor) -> Tensor:
    size = scores.shape[-1]
    return torch.bincount(target * size + scores.argmax(-1), minlength=size**2).reshape(size, size)


def multiclass_kappa(scores: Tensor, target: Tensor) -> Tensor:
    matrix = confusion_matrix(scores, target).double()
    matrix = matrix / matrix.sum()
    observed, expected = matrix.trace(), (matrix.sum(0) * matrix.sum(1)).sum()
    return (observed - expected) / (1 - expected)


def quadratic_kappa(scores: Tensor, target: Tensor) -> Tensor:
    size, predicted = scores.shape[-1], scores.argmax(-1)
    weight = (torch.arange(size).unsqueeze(1) - torch.arange(size)) ** 2
    matrix = F.one_hot(target, size).double().T @ F.one_hot(predicted, size).double()
    expected = torch.outer(matrix.sum(1), matrix.sum(0)) / matrix.sum()
    return 1 - (weight * matrix).sum() / (weight * expected).sum()


def quadratic_kappa_of_differences(scores: Tensor, target: Tensor) -> Tensor:
    predicted = scores.argmax(-1)
    observed = ((predicted - target) ** 2).double().mean()
    expected = ((predicted.unsqueeze(0) - target.unsqueeze(1)) ** 2).double().mean()
    return 1 - observed / expected


# Decisions: many labels


def hamming(scores: Tensor, target: Tensor) -> Tensor:
    return ((scores > 0) ^ target.bool()).float().mean()


def multilabel_f1(scores: Tensor, target: Tensor) -> Tensor:
    predicted = (scores > 0).long()
    tp = (predicted * target).sum(0)
    return (2 * tp / (predicted.sum(0) + target.sum(0)).clamp(min=1)).mean()


def multilabel_micro_f1(scores: Tensor, target: Tensor) -> Tensor:
    return f1(scores.flatten(), target.flatten())


# Curves


def roc(scores: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    labels = target[scores.argsort(descending=True)]
    return (1 - labels).cumsum(0) / (1 - target).sum(), labels.cumsum(0) / target.sum()


def precision_recall(scores: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    labels = target[torch.argsort(scores, descending=True)]
    hits = labels.cumsum(0)
    return hits / torch.arange(1, len(labels) + 1), hits / target.sum()


def auc(scores: Tensor, target: Tensor) -> Tensor:
    positives, negatives = scores[target == 1], scores[target == 0]
    return (positives.unsqueeze(1) > negatives.unsqueeze(0)).double().mean()


def auc_by_trapezoids(scores: Tensor, target: Tensor) -> Tensor:
    fpr, tpr = roc(scores, target)
    start = torch.zeros(1)
    return torch.trapezoid(torch.cat([start, tpr]), torch.cat([start, fpr]))


def auc_by_ranks(scores: Tensor, target: Tensor) -> Tensor:
    ranks = scores.argsort().argsort() + 1
    positives, negatives = (target == 1).sum(), (target == 0).sum()
    return (ranks[target == 1].sum() - positives * (positives + 1) / 2) / (positives * negatives)


def auc_with_ties(scores: Tensor, target: Tensor) -> Tensor:
    difference = scores[target == 1].unsqueeze(1) - scores[target == 0]
    return ((difference > 0).double() + 0.5 * (difference == 0).double()).mean()


def multiclass_auc(scores: Tensor, target: Tensor) -> Tensor:
    probabilities = scores.softmax(-1)
    return torch.stack(
        [auc(probabilities[:, c], (target == c).long()) for c in target.unique()]
    ).mean()


def partial_auc(scores: Tensor, target: Tensor, max_fpr: float) -> Tensor:
    fpr, tpr = roc(scores, target)
    widths = fpr.clamp(max=max_fpr).diff(prepend=torch.zeros(1))
    smallest = max_fpr**2 / 2
    return (1 + ((widths * tpr).sum() - smallest) / (max_fpr - smallest)) / 2


def average_precision(scores: Tensor, target: Tensor) -> Tensor:
    _, order = scores.sort(descending=True)
    labels = target[order]
    precision = labels.cumsum(0) / torch.arange(1, len(labels) + 1)
    return (precision * labels).sum() / labels.sum()


def average_precision_by_steps(scores: Tensor, target: Tensor) -> Tensor:
    precision, recall = precision_recall(scores, target)
    return (precision * recall.diff(prepend=torch.zeros(1))).sum()


def interpolated_average_precision(scores: Tensor, target: Tensor) -> Tensor:
    precision, recall = precision_recall(scores, target)
    envelope = precision.flip(0).cummax(0).values.flip(0)
    return (envelope * recall.diff(prepend=torch.zeros(1))).sum()


def multilabel_average_precision(scores: Tensor, target: Tensor) -> Tensor:
    labels = target.gather(0, scores.argsort(dim=0, descending=True))
    precision = labels.cumsum(0) / torch.arange(1, len(labels) + 1).unsqueeze(1)
    return ((precision * labels).sum(0) / labels.sum(0)).mean()


def eer(scores: Tensor, target: Tensor) -> Tensor:
    fpr, tpr = roc(scores, target)
    return torch.maximum(fpr, 1 - tpr).min()


def recall_at_precision(scores: Tensor, target: Tensor, min_precision: float) -> Tensor:
    precision, recall = precision_recall(scores, target)
    return torch.where(precision >= min_precision, recall, 0.0).max()


def precision_at_recall(scores: Tensor, target: Tensor, min_recall: float) -> Tensor:
    precision, recall = precision_recall(scores, target)
    return torch.where(recall >= min_recall, precision, 0.0).max()


# Ranked lists


def precision_at_k(scores: Tensor, target: Tensor, k: int) -> Tensor:
    return (target[scores.topk(k).indices] > 0).float().mean()


def recall_at_k(scores: Tensor, target: Tensor, k: int) -> Tensor:
    relevant = (target > 0).float()
    return relevant[scores.argsort(descending=True)[:k]].sum() / relevant.sum()


def recall_at_k_by_cut(scores: Tensor, target: Tensor, k: int) -> Tensor:
    cut = scores.topk(k).values[-1]
    return ((scores >= cut) & (target > 0)).sum() / (target > 0).sum()


def dcg(gains: Tensor) -> Tensor:
    return (gains / torch.log2(torch.arange(len(gains)) + 2)).sum()


def ndcg(scores: Tensor, target: Tensor, k: int | None = None) -> Tensor:
    order = scores.argsort(descending=True)
    ideal = target.sort(descending=True).values
    return dcg(target[order][:k]) / dcg(ideal[:k])


def exponential_ndcg(scores: Tensor, target: Tensor) -> Tensor:
    gains = 2.0**target - 1
    return dcg(gains[scores.sort(descending=True).indices]) / dcg(
        gains.sort(descending=True).values
    )


def ndcg_of_ranks(scores: Tensor, target: Tensor) -> Tensor:
    gains = 2.0**target - 1
    ranks = scores.argsort(descending=True).argsort()
    return (gains / torch.log2(ranks + 2)).sum() / dcg(gains.sort(descending=True).values)


def mean_average_precision(scores: Tensor, target: Tensor) -> Tensor:
    relevant = (target > 0)[scores.argsort(descending=True)]
    precision = relevant.cumsum(0) / torch.arange(1, len(relevant) + 1)
    return precision[relevant].mean()


def mean_average_precision_at_k(scores: Tensor, target: Tensor, k: int) -> Tensor:
    relevant = (target > 0)[scores.topk(k).indices]
    precision = relevant.cumsum(0) / torch.arange(1, k + 1)
    return (precision * relevant).sum() / (target > 0).sum().clamp(max=k)


def reciprocal_rank(scores: Tensor, target: Tensor) -> Tensor:
    relevant = target[scores.argsort(descending=True)] > 0
    return 1 / (1 + relevant.int().argmax())


def reciprocal_rank_of_relevance(scores: Tensor, target: Tensor) -> Tensor:
    relevant = (target > 0)[scores.argsort(descending=True)]
    return (relevant / torch.arange(1, len(relevant) + 1)).max()


def reciprocal_rank_at_k(scores: Tensor, target: Tensor, k: int) -> Tensor:
    best = scores[target > 0].max()
    above = (scores[target == 0] > best).sum()
    return torch.where(above < k, 1 / (1 + above), 0.0)


# Maps: label maps [N, C, H, W] and [N, H, W], heatmaps [N, K, H, W] and joints [N, K, 3]


def mean_iou(scores: Tensor, target: Tensor, ignore_index: int = -100) -> Tensor:
    kept = target != ignore_index
    predicted, truth = scores.argmax(1)[kept], target[kept]
    total = classes = torch.zeros(())
    for c in set(range(scores.shape[1])) - {ignore_index}:
        intersection = ((predicted == c) & (truth == c)).sum()
        union = ((predicted == c) | (truth == c)).sum()
        total = total + intersection / union.clamp(min=1)
        classes = classes + (union > 0)
    return total / classes


def dice(scores: Tensor, target: Tensor) -> Tensor:
    classes = scores.shape[1]
    predicted = F.one_hot(scores.argmax(1), classes).flatten(0, -2)
    truth = F.one_hot(target, classes).flatten(0, -2)
    both, size = torch.einsum("nc,nc->c", predicted, truth), predicted.sum(0) + truth.sum(0)
    return (2 * both / size.clamp(min=1)).sum() / (size > 0).sum()


def pck(scores: Tensor, joints: Tensor) -> Tensor:
    width = scores.shape[-1]
    highest = scores.flatten(-2).argmax(-1)
    x, y = highest % width, highest // width
    distance = ((x - joints[..., 0]) ** 2 + (y - joints[..., 1]) ** 2).sqrt()
    return (distance <= 0.5 * joints[..., 2]).float().mean()
