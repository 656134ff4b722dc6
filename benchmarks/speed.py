"""Speed as ratios: `python -m benchmarks.speed` (or `make speed`) fails if a claim does not hold.

Machines differ and may be busy, so seconds prove little. Every row times our code and a yardstick
in turn, takes the best of several rounds of each, and compares the two, on one thread. Memory is
the peak of a fresh process.

    python -m benchmarks.speed                     # measure all rows
    python -m benchmarks.speed --out speed.json    # and write the numbers, versions and settings
"""

import argparse
import json
import platform
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

import sklearn
import sklearn.metrics
import torch
import torch.nn.functional as F
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn.utils import convert_conv2d_weight_memory_format

import metricgrad as mg
from benchmarks.alternation import PlainAlternation, paper_network
from benchmarks.resnet import ResNet
from benchmarks.speed_boosting import boosting
from benchmarks.speed_chunks import chunks
from benchmarks.speed_doors import classifying, fitting, fitting_large_models, reading
from benchmarks.speed_imports import imports
from benchmarks.speed_maps import steps_on_images
from benchmarks.speed_order import (
    BATCH,
    losses_of_large_sets,
    losses_of_order,
    one_large_set,
    small_batch,
)
from benchmarks.speed_streams import streaming
from benchmarks.speed_text import reading as reading_text
from benchmarks.timing import Row, best_of, best_steps, faster, within

SETS = 1024
ITEMS = 128
STEPS = 30
SEED = 0
THREADS = 1
FIVE_MINUTES = 300.0


def many_sets() -> Iterator[Row]:
    """Metrics of 1,024 sets of 128 items in one call."""
    generator = torch.Generator().manual_seed(SEED)
    scores = torch.randn(SETS, ITEMS, generator=generator)
    target = (torch.rand(SETS, ITEMS, generator=generator) < 0.3).long()
    arrays = scores.numpy(), target.numpy()
    for name, function in (
        ("f1", sklearn.metrics.f1_score),
        ("mcc", sklearn.metrics.matthews_corrcoef),
    ):

        def loop(function: Callable[..., float] = function) -> list[float]:
            return [function(y, s > 0) for s, y in zip(*arrays, strict=True)]

        metric = mg.metric(name)
        yield faster(
            f"{name}, {SETS} x {ITEMS}, against scikit-learn",
            lambda m=metric: m(scores, target),
            loop,
            300,
        )
    tied = (scores * 4).round() / 4
    grades = target * torch.randint(1, 5, target.shape, generator=generator)
    for label, values in (("", scores), (", ties", tied)):
        for name in ("auc", "average_precision", "eer", "ndcg"):
            metric = mg.metric(name)
            truth = grades if name == "ndcg" else target
            yield within(
                f"{name}, {SETS} x {ITEMS}{label}, against torch.sort",
                lambda m=metric, v=values, y=truth: m(v, y),
                lambda v=values: v.sort(-1),
                4,
                rounds=20,
            )


def own_functions() -> Iterator[Row]:
    """A step with UniLoss of an F1 written in plain torch, against UniLoss of the library's F1."""
    scores, target = small_batch()

    def f1(values: Tensor, truth: Tensor) -> Tensor:
        predicted = values > 0
        positive = truth == 1
        return 2 * (predicted & positive).sum() / (predicted.sum() + positive.sum()).clamp(min=1)

    metric = mg.reexpress(f1, best=1.0)
    watched = mg.UniLoss(metric)
    own = mg.UniLoss("f1")
    watched(scores, target)
    before = metric.runs
    watched(scores, target)
    claim = (
        f"UniLoss(reexpress(f1)), 1 x {BATCH}, {metric.runs - before} runs of the function, "
        "against UniLoss('f1')"
    )
    yield within(
        claim,
        lambda: watched(scores, target).backward(),
        lambda: own(scores, target).backward(),
        10,
        300,
    )


def alternations() -> Iterator[Row]:
    """Algorithm 1 of Learning Surrogate Losses: iterations of 3 + 10 steps on batches of 100."""
    generator = torch.Generator().manual_seed(SEED)
    x = torch.randn(30_000, 22, generator=generator)
    y = (x[:, 0] + torch.randn(30_000, generator=generator) > 1.8).long()
    metrics = ("auc", "eer", "average_precision", "error_rate", "f1", "mcc", "jaccard") * 3
    plain = PlainAlternation(paper_network(22), sklearn.metrics.roc_auc_score, x, y)
    one = mg.JointTraining(paper_network(22), mg.BilevelLoss("auc"), x, y, start="scratch")
    models = [paper_network(22) for _ in metrics]
    losses = [mg.BilevelLoss(name) for name in metrics]
    stacked = mg.StackedTraining(models, losses, x, y, start="scratch")
    one.advance(10)
    stacked.advance(2)
    slow, three, many = best_of(
        20, plain.iterate, lambda: one.advance(3), lambda: stacked.advance(1)
    )
    for claim, spent, factor in (
        ("one run", three / 3, 3),
        (f"{len(metrics)} runs stacked, for each", many / len(metrics), 6),
    ):
        hours = f"300,000 iterations in {spent * 300_000 / 3600:.1f} hours; the paper's 28 on a GPU"
        claim = f"Algorithm 1, an iteration against the plain loop, {claim} ({hours})"
        yield Row(
            claim, spent, slow, "ms", slow / spent, f"at least {factor}", slow / spent >= factor
        )


def training_steps() -> Iterator[Row]:
    """A step of ResNet-20 on 128 images with our losses, against one with cross-entropy.

    The loss takes a thousandth of a step, but on a busy machine steps differ by some hundredths. So
    loss and network are timed apart.
    """
    torch.manual_seed(SEED)
    model = convert_conv2d_weight_memory_format(ResNet(classes=10), torch.channels_last)
    images = torch.randn(128, 3, 32, 32).to(memory_format=torch.channels_last)
    target = torch.randint(0, 10, (128,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    losses: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "cross-entropy": F.cross_entropy,
        "UniLoss('multilinear')": mg.UniLoss("accuracy"),
        "UniLoss('idw')": mg.UniLoss("accuracy", interpolation="idw"),
        "ReLoss": mg.ReLoss.pretrained("accuracy"),
        "MetricLoss": mg.MetricLoss("accuracy"),
    }
    own, network = best_steps(model, optimizer, (images, target), losses.values(), STEPS)
    base = network + own[0]
    for name, time_of_loss in zip([*losses][1:], own[1:], strict=True):
        spent = network + time_of_loss
        claim = f"ResNet-20 step with {name} of accuracy, against cross-entropy"
        limit = 1.03 if name == "MetricLoss" else 1.02
        yield Row(claim, spent, base, "ms", spent / base, f"at most {limit}", spent / base <= limit)


def learning() -> Iterator[Row]:
    """Learning the loss for accuracy that ships, from scratch."""
    start = time.perf_counter()
    with TemporaryDirectory() as folder:
        out = Path(folder) / "accuracy.safetensors"
        command = [sys.executable, "-m", "metricgrad", "learn", "accuracy", "--out", str(out)]
        subprocess.run(command, check=True, capture_output=True)
    spent = time.perf_counter() - start
    claim = (
        "ReLoss of accuracy, learned as it ships, against five minutes (the paper: half a GPU hour)"
    )
    yield Row(
        claim, spent, FIVE_MINUTES, "s", spent / FIVE_MINUTES, "at most 1", spent <= FIVE_MINUTES
    )


GROUPS = (
    *(many_sets, reading_text, one_large_set, losses_of_order, losses_of_large_sets, own_functions),
    *(alternations, training_steps, steps_on_images, chunks, boosting, learning),
    *(fitting, fitting_large_models, classifying, reading, streaming, imports),
)


def show(rows: list[Row]) -> Table:
    """The rows as a table for the terminal."""
    table = Table(
        box=box.SIMPLE_HEAD,
        title=f"Speed, {THREADS} thread, torch {torch.__version__}",
        title_justify="left",
    )
    for column in ("claim", "ours", "yardstick", "ratio", "must be", ""):
        table.add_column(column, justify="left" if column in ("claim", "") else "right")
    for row in rows:
        scale = 1000 if row.unit == "ms" else 1
        values = [f"{value * scale:.1f} {row.unit}" for value in (row.ours, row.yardstick)]
        table.add_row(
            row.claim,
            *values,
            f"{row.ratio:.2f}",
            row.limit,
            "ok" if row.holds else "[red]NO[/red]",
        )
    return table


def main() -> None:
    """Measures all rows, prints them, and exits with 1 if a claim does not hold."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="JSON file for the numbers")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(THREADS)
    console = Console()
    with console.status("measuring") as status:
        rows = []
        for row in (row for group in GROUPS for row in group()):
            rows.append(row)
            status.update(f"measured: {row.claim}")
    console.print(show(rows))
    if arguments.out:
        settings = {"command": "python -m benchmarks.speed", "seed": SEED, "threads": THREADS}
        versions = {
            "torch": torch.__version__,
            "scikit-learn": sklearn.__version__,
            "python": platform.python_version(),
        }
        report = {
            **settings,
            "versions": versions,
            "machine": platform.machine(),
            "rows": [asdict(row) for row in rows],
        }
        arguments.out.write_text(json.dumps(report, indent=2) + "\n")
    sys.exit(not all(row.holds for row in rows))


if __name__ == "__main__":
    main()
