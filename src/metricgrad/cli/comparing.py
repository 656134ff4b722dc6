r"""`metricgrad compare`: all methods on one table and metric, over repeated splits, against tuned cross-entropy.

Splits of one table share rows, so their values are not independent, and the usual t test finds
differences that are not there. The variance of the mean difference over n splits is taken as (1/n +
test/train) s^2 instead (Nadeau and Bengio, 2003), and the p-values of several methods are corrected
by Holm's rule.
"""

import json
import math
import shlex
import statistics
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from scipy.stats import t as student

from metricgrad.cli import options
from metricgrad.cli.app import app, examples, refuse
from metricgrad.cli.folder import RunFolder, digests
from metricgrad.cli.parts import cut, loaded
from metricgrad.cli.reading import TARGET
from metricgrad.cli.training import classifier
from metricgrad.estimators.target import Target, plain
from metricgrad.metrics import Metric
from metricgrad.progress import progress as to_progress
from metricgrad.report import write_comparison
from metricgrad.training.candidates import ORDINARY, method_names, takes, usual_methods

_APART = 1000  # seeds of splits, so that the next --seed shares none of them


@app.command(
    epilog=examples(
        "metricgrad compare --metric mcc",
        "metricgrad compare fraud.csv --target is_fraud --methods auto,focal --splits 10",
    )
)
def compare(
    data: options.DataArgument = None,
    target: options.TargetOption = TARGET,
    metric: options.MetricOption = "f1",
    methods: Annotated[
        str | None,
        typer.Option(help="Names, such as auto,uniloss,focal, or all; none takes the usual."),
    ] = None,
    splits: Annotated[int, typer.Option(help="Of the data into training and test.", min=2)] = 5,
    hidden: options.HiddenOption = "100,30,10",
    test_share: options.TestShareOption = 0.25,
    positive: options.PositiveOption = None,
    drop: options.DropOption = None,
    epochs: options.EpochsOption = 20,
    budget: options.BudgetOption = None,
    seed: options.SeedOption = 0,
    out: Annotated[Path | None, typer.Option(help="Folder of the comparison.")] = None,
    as_json: options.JsonOption = False,
) -> None:
    """Compare losses on a table: repeated splits, and what is significant against tuned cross-entropy."""
    try:
        chosen = options.named_metric(metric)
        table = loaded(data, target, drop)
        names = method_list(methods, chosen, table[1], options.chosen_class(positive, table[1]))
        asked = {
            "command": "compare", "data": None if data is None else str(data), "target": target, "metric": metric,
            "methods": names, "splits": splits, "hidden": options.widths(hidden), "test_share": test_share,
            "positive": positive, "epochs": epochs, "budget": options.seconds(budget), "seed": seed,
            "sha256": digests(data), "drop": drop,
        }  # fmt: skip
        stem = "digits" if data is None else data.name.split(".")[0]
        folder = RunFolder(
            out or Path("runs") / f"{options.folder_name(stem, metric)}-compared", asked
        )
        values = measure(folder, asked, *table[:2], progress=not as_json)
    except (
        ValueError,
        OSError,
        RuntimeError,
    ) as error:  # of which the last is training that diverged
        refuse(str(error))
    except KeyboardInterrupt:
        refuse("stopped; the same command goes on from here")
    result = {
        "command": shlex.join(["metricgrad", *sys.argv[1:]]),
        "metric": metric,
        "higher_is_better": chosen.higher_is_better,
        "splits": splits,
        "values": values,
        "differences": differences(values, chosen.higher_is_better, test_share),
    }
    folder.finish(result)
    write_comparison(folder.path)
    if as_json:
        typer.echo(json.dumps(result, indent=2))
    else:
        show_comparison(result, folder.path)


def method_list(text: str | None, metric: Metric, y: Any, positive: Any) -> list[str]:
    """Names of the methods, cross-entropy always first.

    Args:
        text: what was asked for: names, `all`, or None for the usual ones.
        metric: what is trained for.
        y: the target; of `all` and the usual ones, those are left out that have no loss of such
            targets.
        positive: which of two classes is positive.

    Returns:
        The names.
    """
    known = ["auto", *method_names()]
    if text is not None and text.strip() != "all":
        names = [each.strip() for each in text.split(",")]
        unknown = [name for name in names if name not in known]
        if unknown:
            raise ValueError(
                f"there is no method {', '.join(map(repr, unknown))}; there are all, {', '.join(known)}"
            )
        return list(dict.fromkeys([ORDINARY, *names]))
    kind = Target.of(plain(y), metric, positive)
    candidates = usual_methods(metric) if text is None else [ORDINARY, *method_names()]
    fitting = [name for name in candidates if takes(name, kind.meant(metric), kind.kind)]
    return list(dict.fromkeys([ORDINARY, *fitting, "auto"]))


def measure(
    folder: RunFolder, asked: dict[str, Any], x: Any, y: Any, *, progress: bool
) -> dict[str, list[float]]:
    """Test values of every method on every split; those that are in the folder already are not made again.

    Args:
        folder: where they are kept.
        asked: for what.
        x: features, of pandas.
        y: the target, of pandas.
        progress: shows a bar.

    Returns:
        By method, a value for each split.
    """
    stored = folder.path / "values.json"
    values: dict[str, list[float]] = json.loads(stored.read_text()) if stored.exists() else {}
    names, splits = asked["methods"], asked["splits"]
    with to_progress("comparing", len(names) * splits, progress) as tell:
        for split in range(splits):
            seed = asked["seed"] + _APART * split
            trained, tested = cut(x, y, asked["test_share"], seed)
            for name in names:
                known = values.setdefault(name, [])
                if len(known) <= split:
                    model = classifier(asked | {"seed": seed}, trained.y, name, progress=False)
                    model.fit(trained.x, trained.y, rows=trained.rows)
                    if model.fit_.stopped:
                        raise KeyboardInterrupt  # half a training is no value
                    seen = model.prepared(tested.x, tested.rows), model.encoded(tested.target)
                    known.append(model.trained_.measure(*seen))
                    folder.write("values.json", values)
                tell(1, f"{name}: {known[split]:.4f}")
    return values


def differences(
    values: dict[str, list[float]], higher_is_better: bool, test_share: float
) -> dict[str, dict[str, Any]]:
    """Every method against cross-entropy: mean difference, its error, and the p-value after Holm's correction.

    Args:
        values: of every method, on the same splits.
        higher_is_better: whether a higher value is better; a positive difference then is one.
        test_share: of the rows.

    Returns:
        By method: `mean`, `error`, the 95 % `interval` and `p`.
    """
    found: dict[str, dict[str, Any]] = {}
    for name, theirs in values.items():
        if name == ORDINARY:
            continue
        each = [one - other for one, other in zip(theirs, values[ORDINARY], strict=True)]
        each = each if higher_is_better else [-value for value in each]
        mean, number = statistics.fmean(each), len(each)
        error = statistics.stdev(each) * math.sqrt(1 / number + test_share / (1 - test_share))
        p = 2 * float(student.sf(abs(mean) / error, number - 1)) if error else float(mean == 0)
        reach = error * float(student.ppf(0.975, number - 1))
        found[name] = {
            "mean": mean,
            "error": error,
            "interval": [mean - reach, mean + reach],
            "p": p,
        }
    return _corrected(found)


def _corrected(found: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Holm's correction: the smallest p-value counts for all tests, the next for all but one, ..."""
    highest = 0.0
    for place, name in enumerate(sorted(found, key=lambda name: found[name]["p"])):
        highest = max(highest, min(1.0, (len(found) - place) * found[name]["p"]))
        found[name]["p"] = highest
    return found


def show_comparison(result: dict[str, Any], folder: Path) -> None:
    """Prints a comparison."""
    console, arrow = Console(), "higher" if result["higher_is_better"] else "lower"
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in ("trained on", result["metric"], "spread", "gain", "±", "p", ""):
        table.add_column(
            column,
            justify="right" if column in (result["metric"], "spread", "gain", "±", "p") else "left",
        )
    for name, values in result["values"].items():
        cells = [name, f"{statistics.fmean(values):.4f}", f"{statistics.stdev(values):.4f}"]
        difference = result["differences"].get(name)
        if difference is not None:
            mean, error, p = difference["mean"], difference["error"], difference["p"]
            verdict = ("better" if mean > 0 else "worse") if p < 0.05 else "no difference shown"
            cells += [f"{mean:+.4f}", f"{error:.4f}", f"{p:.3f}", verdict]
        table.add_row(*cells)
    console.print(table)
    console.print(
        f"{result['splits']} splits, {arrow} is better; gain over cross-entropy with its threshold tuned, on test data",
        highlight=False,
    )
    console.print(str(folder / "report.html"), style="dim", highlight=False)
