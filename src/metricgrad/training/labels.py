"""Names as people write them: `cross-entropy` for cross_entropy, `F1` for f1.

Identifiers are what users type and files store; sentences, tables and figures show labels. The
label of a metric or a method is its name with spaces, unless people write it otherwise.
"""

from metricgrad.metrics import metric_names
from metricgrad.training.candidates import method_names

_LABELS = {
    "fbeta": "F-beta",
    "f1": "F1",
    "jaccard": "Jaccard index",
    "mcc": "MCC",
    "kappa": "Cohen's kappa",
    "gmean": "G-mean",
    "hamming": "Hamming loss",
    "auc": "AUC",
    "partial_auc": "partial AUC",
    "eer": "equal error rate",
    "ndcg": "NDCG",
    "map": "MAP",
    "mrr": "MRR",
    "mean_iou": "mean IoU",
    "dice": "Dice",
    "pck": "PCK",
    "oks_ap": "OKS AP",
    "span_f1": "span F1",
    "bleu": "BLEU",
    "rouge_l": "ROUGE-L",
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
    "smooth_ap": "smooth AP",
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
    known = head in _LABELS or head in (*metric_names(), *method_names())
    return (_LABELS.get(head, head.replace("_", " ")) if known else head) + space + rest
