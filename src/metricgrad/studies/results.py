"""What a run found, as typed records: reports and commands read these, `result.json` stores them.

The keys of the JSON file are the names of the fields, and stay as they are, so that folders written
by any version can be read. Only the finalists are stored by their role.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Literal, Self

from metricgrad.metrics import Metric, metric_config, metric_from_config
from metricgrad.studies.records import (
    DroppedColumn,
    ImportantColumns,
    SuspiciousColumn,
    checked,
    column_facts,
)
from metricgrad.training.labels import label

Role = Literal["cross_entropy", "challenger"]
Verdict = Literal["better", "no difference shown", "worse"]
Interval = tuple[float, float]


@dataclass(frozen=True)
class Finalist:
    """The ordinary loss, or the best of its challengers, with its values at the end.

    Attributes:
        interval: 95 % interval of the test value, from resampled rows.
        threshold: A score above it is a positive decision; a list has one for each label.
        epoch: The epoch that was kept, or the number of trees.
        curve: Loss and metric after every epoch, or after some more trees; None where training
            diverged, and for the loss of trees.
        step: How many trees a row of the curve adds; 1 for epochs.
    """

    role: Role
    method: str
    validation: float
    test: float
    interval: Interval
    threshold: float | list[float] | None
    rate: float
    epoch: int
    curve: list[tuple[float | None, float | None]]
    step: int = 1

    @property
    def label(self) -> str:
        """The finalist as tables and figures name it."""
        return label(self.method)


@dataclass(frozen=True)
class TrialSummary:
    """One candidate trained at one learning rate; `value` is None where training diverged."""

    method: str
    rate: float
    epochs: int
    epoch: int
    value: float | None


@dataclass(frozen=True)
class RowCounts:
    """Rows that were trained on, tested on, and left out because they have no target.

    Of a streamed table, `validation` rows are apart from those for training; None for others, which
    are split again and again.
    """

    train: int
    test: int
    without_target: int
    validation: int | None = None

    def told(self) -> str:
        """The numbers of rows in a sentence, without its full stop."""
        told = f"{self.train:,} training rows"
        if self.validation is not None:
            told += f" (read in row groups), {self.validation:,} validation rows"
        told += f", {self.test:,} test rows"
        if self.without_target:
            told += f", rows without a target left out: {self.without_target:,}"
        return told


@dataclass(frozen=True)
class ModelSummary:
    """A kind of model, the loss that it was trained on, and its value on validation data."""

    name: str
    method: str
    value: float


@dataclass(frozen=True)
class MetricConfig:
    """A metric of the library with its options, or the name of a function, which no file holds."""

    name: str | None = None
    options: dict[str, Any] | None = None
    function: str | None = None

    @classmethod
    def of(cls, metric: Metric) -> Self:
        """What a file says of a metric."""
        return cls(**metric_config(metric))

    def metric(self) -> Metric:
        """The metric; ValueError for a function."""
        return metric_from_config(self.stored())

    def stored(self) -> dict[str, Any]:
        """What is known, as saved losses and models have it, too."""
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """What `metricgrad train` found.

    Attributes:
        classes: Names of the classes in the order of their numbers.
        positive_share: Share of positives among the test rows; None unless there are two classes.
        finalists: The ordinary loss and its best challenger, as far as they took part.
        gain: How much better the challenger is on validation data.
        test_gain_interval: 95 % interval of the gain on test data, from the same resampled rows.
        luck: The gain that could be chance.
        again: Whether the two were compared again on other splits.
        folds: Folds of cross-validation; 1 is a single split.
        stopped: Whether the user stopped the search, so that it can continue.
        columns: Names of the columns that the model was trained on.
        models: The kinds of models that were tried, the one that was taken first.
        models_verdict: A sentence that says how they compare on validation data.
        unit: What a training counts: epochs or trees.
        dropped: Columns of the file that it was not trained on.
        suspicious: Columns that look wrong for training, by the training rows.
        importances: What columns are worth on test rows; None in files of earlier versions.
    """

    command: str | None = None
    metric: str
    higher_is_better: bool
    metric_config: MetricConfig
    classes: list[str]
    positive_share: float | None = None
    finalists: list[Finalist]
    chosen: Role
    gain: float | None
    test_gain_interval: Interval | None = None
    luck: float | None
    again: bool
    folds: int
    verdict: str
    tried: list[TrialSummary]
    seconds: float
    stopped: bool
    rows: RowCounts
    columns: list[str] = field(default_factory=list)
    models: list[ModelSummary] = field(default_factory=list)
    models_verdict: str = ""
    unit: Literal["epoch", "tree"] = "epoch"
    dropped: list[DroppedColumn] = field(default_factory=list)
    suspicious: list[SuspiciousColumn] = field(default_factory=list)
    importances: ImportantColumns | None = None

    @property
    def winner(self) -> Finalist:
        """The finalist that the model comes from."""
        return next(each for each in self.finalists if each.role == self.chosen)

    @property
    def test_gain(self) -> float:
        """How much better the challenger is on test data, where there are two finalists."""
        ordinary, challenger = self.finalists
        gain = challenger.test - ordinary.test
        return gain if self.higher_is_better else -gain

    @property
    def test_verdict(self) -> Verdict | None:
        """The challenger on test data, by the interval of its gain; None where there is none."""
        if self.test_gain_interval is None:
            return None
        low, high = self.test_gain_interval
        return "better" if low > 0 else "worse" if high < 0 else "no difference shown"

    def told(self) -> str:
        """What test data says of the challenger, and which loss was chosen without it."""
        if self.test_gain_interval is None:
            return self.verdict
        low, high = self.test_gain_interval
        usual, challenger = (each.label for each in self.finalists)
        head = f"{challenger} is {self.test_verdict} than {usual} on the test rows"
        if self.test_verdict == "no difference shown":
            head = f"No difference between {challenger} and {usual} is shown on the test rows"
        return (
            f"{head}: the gain in {label(self.metric)} is {self.test_gain:+.4f}, 95 % interval "
            f"{low:+.4f} to {high:+.4f}. The choice of {self.winner.label} was made on validation "
            "data alone."
        )

    def to_json(self) -> dict[str, Any]:
        """The content of `result.json`."""
        stored = asdict(self)
        stored["finalists"] = {each.pop("role"): each for each in stored["finalists"]}
        stored["metric_config"] = self.metric_config.stored()
        return stored

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> Self:
        """A result that `to_json` wrote; ValueError where it is damaged."""
        with _damage_told():
            typed: dict[str, Any] = {
                "finalists": [
                    checked(Finalist(role, **each)) for role, each in stored["finalists"].items()
                ],
                "tried": [checked(TrialSummary(**each)) for each in stored["tried"]],
                "rows": checked(RowCounts(**stored["rows"])),
                "metric_config": checked(MetricConfig(**stored["metric_config"])),
                "models": [checked(ModelSummary(**each)) for each in stored.get("models", [])],
                **column_facts(stored),
            }
            if stored["chosen"] not in stored["finalists"]:
                raise KeyError(stored["chosen"])
            result = checked(cls(**stored | typed))
            if result.positive_share is not None and len(result.classes) != 2:
                raise ValueError(f"a positive class among {result.classes!r:.40}")
            if result.test_gain_interval is not None and len(result.finalists) != 2:
                raise ValueError(f"a gain among {len(result.finalists)} finalists")
            return result


@dataclass(frozen=True)
class Difference:
    """A method against the ordinary loss over all splits; a positive mean is an improvement.

    Attributes:
        error: Standard error of the mean, which allows for rows that splits share. It is at least
            what one test item in every split would give.
        interval: 95 % interval of the mean.
        p: The p-value after Holm's correction for the number of methods.
    """

    mean: float
    error: float
    interval: Interval
    p: float

    @property
    def significant(self) -> bool:
        """Whether the difference is shown at the 5 % level."""
        return self.p < 0.05

    @property
    def verdict(self) -> Verdict:
        """What the difference shows."""
        if not self.significant:
            return "no difference shown"
        return "better" if self.mean > 0 else "worse"


@dataclass(frozen=True, kw_only=True)
class ComparisonResult:
    """What `metricgrad compare` found; values and differences are kept by method.

    `columns` are the names of the columns that models were trained on, `dropped` are the others of
    the file, and `suspicious` are columns that look wrong for training. `ordinary` is the method
    that the others are compared with.
    """

    stopped: ClassVar[bool] = False  # a comparison has a result only once it is complete

    command: str | None = None
    metric: str
    higher_is_better: bool
    splits: int
    values: dict[str, list[float]]
    differences: dict[str, Difference]
    columns: list[str] = field(default_factory=list)
    ordinary: str = "cross_entropy"
    dropped: list[DroppedColumn] = field(default_factory=list)
    suspicious: list[SuspiciousColumn] = field(default_factory=list)

    @property
    def yardstick(self) -> str:
        """The ordinary loss as sentences name it: learning rate and any threshold are tuned."""
        return f"tuned {label(self.ordinary)}"

    def to_json(self) -> dict[str, Any]:
        """The content of `result.json`."""
        return asdict(self)

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> Self:
        """A result that `to_json` wrote; ValueError where it is damaged."""
        with _damage_told():
            stated = stored["differences"].items()
            found = {name: checked(Difference(**each)) for name, each in stated}
            typed: dict[str, Any] = {"differences": found, **column_facts(stored)}
            return checked(cls(**stored | typed))


@contextmanager
def _damage_told() -> Iterator[None]:
    """Names of fields that are missing, unknown or of another type, in a sentence."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"result.json is damaged ({error}); delete it to run again") from None
