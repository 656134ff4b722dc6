"""`metricgrad learn`: a loss by rank correlation with a metric."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from metricgrad.cli.app import app, examples, refuse
from metricgrad.training.recipes import as_shipped, read_scores, teach


@app.command(
    epilog=examples(
        "metricgrad learn f1 --out f1.safetensors",
        "metricgrad learn auc --scores mine.npz --steps 2000 --out auc.safetensors",
    )
)
def learn(
    name: Annotated[str, typer.Argument(help="The metric: accuracy, or one of binary scores.")],
    out: Annotated[
        Path, typer.Option(help="Where the loss goes; its card goes beside it, as JSON.")
    ],
    scores: Annotated[
        list[Path] | None,
        typer.Option(
            help="Scores of your own models: .npz files with `scores` [S, N, ...] and `target` [S, N]."
        ),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            help="Of learning; 300 for accuracy and 2,000 for others unless given.", min=1
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of everything random.")] = 0,
    penalty: Annotated[
        float | None,
        typer.Option(
            help="Weight of the gradient penalty; 10 for accuracy and 0 for others unless given.",
            min=0.0,
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the card, for machines.")] = False,
) -> None:
    """Learn a loss by rank correlation with a metric (ReLoss); `mg.load_surrogate` reads it."""
    if not out.parent.is_dir():
        refuse(f"there is no folder {out.parent}; make it, or choose another --out")
    card_path = out.with_suffix(".json")
    if card_path == out:
        refuse(
            f"--out {out} is where the loss's card would go; name the loss {out.with_suffix('.safetensors')}"
        )
    taken = [str(path) for path in (out, card_path) if path.exists()]
    if taken and not force:
        refuse(f"{' and '.join(taken)} would be overwritten; choose another --out, or add --force")
    try:
        own = [read_scores(path) for path in scores] if scores else None
        options = as_shipped(name, seed)
        if penalty is not None:
            options["penalty"] = penalty
        taught = teach(name, steps=steps, seed=seed, scores=own, progress=not as_json, **options)
        own_options = [f"--scores {path}" for path in scores or []]
        own_options += [] if penalty is None else [f"--penalty {penalty:g}"]
        taught.card["command"] = " ".join([taught.card["command"], *own_options])
        taught.loss.save(out)
        card_path.write_text(json.dumps(taught.card, indent=2) + "\n")
    except (
        ValueError,
        OSError,
        RuntimeError,
    ) as error:  # of which the last is learning that diverged
        refuse(str(error))
    if as_json:
        typer.echo(json.dumps(taught.card, indent=2))
        return
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in ("rank correlation with " + name, "Spearman", "Kendall"):
        table.add_column(column, justify="left" if column.startswith("rank") else "right")
    found = taught.card["held_out"]
    table.add_row("this loss", f"{found['spearman']:.4f}", f"{found['kendall']:.4f}")
    table.add_row(
        "cross-entropy", f"{found['ordinary_spearman']:.4f}", f"{found['ordinary_kendall']:.4f}"
    )
    console = Console()
    console.print(table)
    console.print(f"on held-out sets, after {taught.card['seconds']} s", highlight=False)
    console.print(f"mg.load_surrogate({str(out)!r})", style="cyan", markup=False, soft_wrap=True)
