"""Names as people write them: `cross-entropy` for cross_entropy, `F1` for f1.

Identifiers are what users type and files store; sentences, tables and figures show labels.
"""

_LABELS = {
    "error_rate": "error rate",
    "balanced_accuracy": "balanced accuracy",
    "fbeta": "F-beta",
    "f1": "F1",
    "jaccard": "Jaccard index",
    "mcc": "MCC",
    "kappa": "Cohen's kappa",
    "gmean": "G-mean",
    "hamming": "Hamming loss",
    "auc": "AUC",
    "partial_auc": "partial AUC",
    "average_precision": "average precision",
    "eer": "equal error rate",
    "recall_at_precision": "recall at precision",
    "precision_at_recall": "precision at recall",
    "precision_at_k": "precision at k",
    "recall_at_k": "recall at k",
    "ndcg": "NDCG",
    "map": "MAP",
    "mrr": "MRR",
    "mean_iou": "mean IoU",
    "dice": "Dice",
    "pck": "PCK",
    "span_f1": "span F1",
    "exact_match": "exact match",
    "bleu": "BLEU",
    "rouge_l": "ROUGE-L",
    "edit_distance": "edit distance",
    "word_error_rate": "word error rate",
    "metric_loss": "MetricLoss",
    "uniloss": "UniLoss",
    "reloss": "ReLoss",
    "bilevel": "BilevelLoss",
    "cross_entropy": "cross-entropy",
    "focal": "focal loss",
    "soft_f_beta": "soft F-beta",
    "soft_jaccard": "soft Jaccard",
    "soft_mcc": "soft MCC",
    "lovasz": "Lovasz loss",
    "pairwise_ranking": "pairwise ranking",
    "smooth_ap": "smooth AP",
    "global_objective": "global objective",
    "approx_ndcg": "ApproxNDCG",
    "lambda_loss": "LambdaLoss",
    "list_net": "ListNet",
    "rank_loss": "RankLoss",
    "heatmap_mse": "heatmap MSE",
}


def label(name: str) -> str:
    """The label of a metric or a loss; what follows the name, and names of users' own, stay.

    Example:
        >>> label("cross_entropy"), label("uniloss (slope 8)"), label("fbeta:beta=2")
        ('cross-entropy', 'UniLoss (slope 8)', 'F-beta (beta=2)')
    """
    plain, colon, options = name.partition(":")
    if colon:
        return f"{label(plain)} ({options})"
    head, space, rest = name.partition(" ")
    return _LABELS.get(head, head) + space + rest
