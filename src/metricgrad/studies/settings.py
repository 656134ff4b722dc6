"""What a run is asked for: one frozen record per command, which is written to `config.json`.

The keys of the file are the names of the fields. A folder belongs to the settings it was started
with, so a second start with other settings is refused (`run_folder.py`).
"""

import inspect
import json
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar, Self

from metricgrad.estimators import MetricClassifier, MetricRanker
from metricgrad.estimators.ranker import ranks_documents
from metricgrad.estimators.target import Target, default_positive, plain
from metricgrad.metrics import Metric
from metricgrad.processes import alone
from metricgrad.studies.own_metrics import named_metric, without_file
from metricgrad.studies.records import DroppedColumn, checked
from metricgrad.studies.tables import column_names
from metricgrad.training.fit_trees import fits_trees
from metricgrad.training.row_space import WIDE

_TAKES = {  # what metrics take that do not take one class a row
    "labels": "several labels for each item",
    "maps": "label maps",
    "heatmaps": "heatmaps of joints",
    "tokens": "texts",
    "spans": "texts",
}
UNRANKED = ("bilevel",)  # methods that are not trained on queries
_PACKAGES = ("metricgrad", "torch", "numpy", "scikit-learn", "pandas")


@dataclass(frozen=True, kw_only=True)
class TableSettings:
    """What training and comparing have in common, as the help of the commands describes it.

    `budget` is in seconds, and `positive` is text, whatever the type of the target. `amounts` has a
    column for each parameter of the metric that takes one. `model` None is the command's default.
    """

    command: ClassVar[str]

    data: str | None = None
    target: str = "target"
    metric: str = "f1"
    model: str | None = None
    engine: str | None = None
    hidden: Sequence[int] = (100, 30, 10)
    test_share: float = 0.25
    positive: str | None = None
    epochs: int = 20
    budget: float | None = None
    seed: int = 0
    drop: str | None = None
    group: str | None = None
    amounts: Mapping[str, str] | None = None
    keep: str | None = None

    @property
    def source(self) -> str:
        """The data as a page names it."""
        return self.data or "digits from scikit-learn"

    @property
    def folder_name(self) -> str:
        """Name of the run's folder, unless the user gives one: `fraud-f1` for fraud.csv and f1."""
        digits = "digits" if self.target == "target" else f"digits-{self.target}"
        stem = digits if self.data is None else Path(self.data).name.split(".")[0]
        return f"{stem}-{re.sub(r'[^0-9A-Za-z_.]+', '-', self.metric_name)}"

    @property
    def metric_name(self) -> str:
        """The metric as pages name it, with its options and without the file it comes from."""
        return without_file(self.metric)

    def default_model(self, method: str, *, wide: bool) -> str:
        """The kind of model unless one is asked for; losses are compared on networks."""
        return "network"

    @property
    def dropped(self) -> list[DroppedColumn]:
        """The columns of the file that are not features, and the option that makes each so."""
        found = dict.fromkeys(column_names(self.drop), "--drop")
        amounts = set((self.amounts or {}).values())
        found |= dict.fromkeys(sorted(amounts - set(column_names(self.keep))), "--amount")
        found |= {} if self.group is None else {self.group: "--group"}
        found |= {self.target: "--target"}
        return [DroppedColumn(*each) for each in found.items()]

    def classifier(
        self, x: Any, y: Any, method: str, seed: int, *, progress: bool
    ) -> MetricClassifier:
        """An unfitted classifier with these settings; `y` says which classes there are."""
        asked = self._arguments(MetricClassifier, method, x)
        positive = chosen_class(self.positive, y, asked["metric"])
        asked |= {"positive": positive, "random_state": seed, "progress": progress}
        return MetricClassifier(**asked)

    def ranker(self, x: Any, method: str, seed: int, *, progress: bool) -> MetricRanker:
        """An unfitted ranker with these settings, for a table of queries."""
        asked = self._arguments(MetricRanker, method, x)
        return MetricRanker(**asked, random_state=seed, progress=progress)

    def _arguments(self, estimator: type, method: str, x: Any) -> dict[str, Any]:
        """Arguments of an estimator: fields of the same name; None leaves it its own default."""
        taken = inspect.signature(estimator).parameters
        asked = {each.name: getattr(self, each.name) for each in fields(self) if each.name in taken}
        given = {name: value for name, value in asked.items() if value is not None}
        rows, columns = x.shape
        model = self.model or self.default_model(method, wide=columns > WIDE * rows)
        return given | {"metric": named_metric(self.metric), "method": method, "model": model}

    def to_json(self) -> dict[str, Any]:
        """The settings under the names of their fields, with the command."""
        return {"command": self.command, **asdict(self)}

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> Self:
        """Settings that `to_json` wrote; fields that the file does not have keep their defaults."""
        known = {each.name for each in fields(cls)} & stored.keys()
        return cls(**{name: stored[name] for name in known})


@dataclass(frozen=True, kw_only=True)
class RunSettings(TableSettings):
    """What `metricgrad train` is asked for; `memory` is in bytes."""

    command: ClassVar[str] = "train"

    method: str = "auto"
    test: str | None = None
    memory: int | None = None

    def default_model(self, method: str, *, wide: bool) -> str:
        """Trees, for a table of classes a linear model, too; a network where trees are not for it.

        Trees are not for losses of networks, several processes, or far more columns than rows.
        """
        task = "binary" if self.group is None else "grades"
        if not alone() or wide or not fits_trees(method, task):
            return "network"
        return "boosted" if self.group else "boosted,linear"


@dataclass(frozen=True, kw_only=True)
class ComparisonSettings(TableSettings):
    """What `metricgrad compare` is asked for; `methods` are names, cross-entropy first."""

    command: ClassVar[str] = "compare"

    methods: Sequence[str] = ()
    splits: int = 5

    @property
    def folder_name(self) -> str:
        """Name of the comparison's folder, unless the user gives one."""
        return f"{super().folder_name}-compared"


@dataclass(frozen=True)
class RunConfig:
    """The content of `config.json`: settings, digests of the data files, and package versions."""

    settings: RunSettings | ComparisonSettings
    sha256: list[str | None] | None
    versions: dict[str, str]

    def asked(self) -> dict[str, Any]:
        """Everything that a second start must agree with, ready for JSON."""
        digests = {} if self.sha256 is None else {"sha256": self.sha256}
        return self.settings.to_json() | digests

    def told(self) -> str:
        """The same as text, for pages."""
        return json.dumps(self.asked(), indent=2)

    def to_json(self) -> dict[str, Any]:
        """The content of the file."""
        return {"asked": self.asked(), "versions": self.versions}

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> Self:
        """A configuration that `to_json` wrote; ValueError where a value is of another type."""
        asked = stored["asked"]
        kind = ComparisonSettings if asked["command"] == "compare" else RunSettings
        settings = checked(kind.from_json(asked))
        return checked(cls(settings, asked.get("sha256"), stored["versions"]))


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that decide the numbers of a run."""
    return {"python": platform.python_version(), **{name: version(name) for name in _PACKAGES}}


def refuse_misfit(metric: Metric, y: Any, positive: Any) -> None:
    """Raises ValueError for a metric that has no value for the target `y` of a table."""
    if metric.layout == "grades":
        raise ValueError(
            f"{metric.name} ranks the documents of each query; pass --group COLUMN, which says "
            "what query a row belongs to"
        )
    if metric.layout in _TAKES:
        raise ValueError(
            f"{metric.name} takes {_TAKES[metric.layout]}, and column {y.name!r} has one class per "
            "row; pass a metric of classes, such as f1 or average_precision"
        )
    Target.of(plain(y), metric, positive)


def refuse_unranked(metric: Metric, positive: str | None, methods: Sequence[str]) -> None:
    """Raises ValueError for a metric or a method that is not for the documents of queries."""
    if not ranks_documents(metric):
        raise ValueError(
            f"--group is for metrics of ranked documents, such as ndcg, map or mrr; got "
            f"--metric {metric.name}"
        )
    if positive is not None:
        raise ValueError(f"grades have no positive class; leave out --positive {positive}")
    wrong = [name for name in methods if name in UNRANKED]
    if wrong:
        raise ValueError(
            f"{wrong[0]} trains model and loss in turns on one set of rows, not on queries; choose "
            "another method, such as metric_loss, uniloss or lambda_loss"
        )


def chosen_class(positive: str | None, y: Any, metric: Metric | None = None) -> Any:
    """The class of a target that text such as `1` or `yes` stands for.

    With a metric, None stands for the class that is positive by default in the whole target, so
    that all parts of a table have the same.
    """
    if positive is None:
        return None if metric is None else default_positive(plain(y), metric)
    by_name = {str(each): each for each in y.unique()}
    if positive not in by_name:
        raise ValueError(f"--positive must be one of {', '.join(sorted(by_name))}; got {positive}")
    return by_name[positive]
