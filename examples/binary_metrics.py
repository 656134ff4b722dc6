"""Measure one model with every binary metric, before and after tuning its threshold.

The model is a logistic regression that looks for eights among handwritten digits. One item in ten
is an eight, so accuracy looks good for any model. The table shows each metric for the usual
decision (score > 0), and for the threshold that is best for this metric on validation data. Tuning
the threshold is the cheapest way to improve the metric you report, and training on the metric has
to do better than that.
"""

from typing import Any

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
    """Scores and targets of validation and test data; each has a quarter of all data."""
    features, digit = load_digits(return_X_y=True)
    target = (digit == 8).astype(int)
    x_train, x_rest, y_train, y_rest = train_test_split(
        features, target, test_size=0.5, stratify=target, random_state=seed
    )
    x_valid, x_test, y_valid, y_test = train_test_split(
        x_rest, y_rest, test_size=0.5, stratify=y_rest, random_state=seed
    )
    model = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=1000))
    model.fit(x_train, y_train)
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
        if metric.layout != "binary":
            continue
        tuned = "no threshold"
        if metric.has_threshold:
            threshold = mg.best_threshold(*valid, metric)
            tuned = f"{mg.metric(name, threshold=threshold)(*test):.4f}  (at {threshold:+.2f})"
        arrow = "↑" if metric.higher_is_better else "↓"
        table.add_row(f"{name} {arrow}", f"{metric(*test):.4f}", tuned, f"{metric.best:g}")
    Console().print(table)
    print(f"{len(test[1])} test items, {int(test[1].sum())} of them eights")


if __name__ == "__main__":
    main()
