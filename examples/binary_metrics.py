"""Every binary metric of one model: a logistic regression that looks for eights among handwritten digits.

One item in ten is an eight, so accuracy looks good for any model. The table shows each metric at
the usual decision (score > 0) and, where a metric has one, at its own best threshold, found on
validation scores and applied to test scores: the cheapest way to train on what you report, and the
yardstick for every loss that wants to do better.
"""

from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import metricgrad as mg


def scores_of_a_model(seed: int) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """Validation and test scores and targets; half of the data trains the model, a quarter goes to each of the two."""
    features, digit = load_digits(return_X_y=True)
    target = (digit == 8).astype(int)
    x_train, x_rest, y_train, y_rest = train_test_split(
        features, target, test_size=0.5, stratify=target, random_state=seed
    )
    x_valid, x_test, y_valid, y_test = train_test_split(
        x_rest, y_rest, test_size=0.5, stratify=y_rest, random_state=seed
    )
    model = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=1000)).fit(
        x_train, y_train
    )
    return (model.decision_function(x_valid), y_valid), (model.decision_function(x_test), y_test)


def main() -> None:
    """Prints the table."""
    valid, test = scores_of_a_model(seed=0)
    table = Table(
        box=box.SIMPLE_HEAD,
        title="Eights among digits, logistic regression, test set",
        title_justify="left",
    )
    for column in ("metric", "at score > 0", "threshold tuned on validation", "best possible"):
        table.add_column(column, justify="left" if column == "metric" else "right")
    for name in mg.metric_names():
        metric = mg.metric(name)
        if "binary" not in metric.families:
            continue
        tuned = "ranks only"
        if hasattr(metric, "threshold"):
            threshold = mg.best_threshold(*valid, metric)
            tuned = f"{mg.metric(name, threshold=threshold)(*test):.4f}  (at {threshold:+.2f})"
        arrow = "↑" if metric.higher_is_better else "↓"
        table.add_row(f"{name} {arrow}", f"{metric(*test):.4f}", tuned, f"{metric.best:g}")
    Console().print(table)
    print(
        f"{len(test[1])} test items, {int(test[1].sum())} of them eights; torch {torch.__version__}"
    )


if __name__ == "__main__":
    main()
