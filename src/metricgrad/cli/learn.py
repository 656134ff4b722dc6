"""`metricgrad learn`: a loss that is learned by rank correlation with a metric."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from metricgrad.cli.app import app, examples, plain_errors

if TYPE_CHECKING:
    from metricgrad.training.recipes import Card


@app.command(
    epilog=examples(
        "metricgrad learn f1 --out f1.safetensors",
        "metricgrad learn auc --scores mine.npz --steps 2000 --out auc.safetensors",
    )
)
def learn(
    name: Annotated[
        str,
        typer.Argument(
            help="Metric to learn: accuracy, span_f1, bleu, edit_distance, pck, or any metric of "
            "binary scores."
        ),
    ],
    out: Annotated[
        Path, typer.Option(help="File for the loss; a card in JSON is written beside it.")
    ],
    scores: Annotated[
        list[Path] | None,
        typer.Option(
            help="Scores of your own models to learn from: .npz files with `scores` [S, N, ...] "
            "and `target` [S, N]."
        ),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            help="Learning steps. Default: 300 for accuracy, 2,000 for metrics of binary scores, "
            "150 for the others.",
            min=1,
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(help="Seed for initial weights and the sets that are drawn.")
    ] = 0,
    penalty: Annotated[
        float | None,
        typer.Option(
            help="Weight of the gradient penalty. Default: 10 for accuracy, 0 for other metrics.",
            min=0.0,
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite the loss and its card if they exist.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the card as JSON, without a table or progress.")
    ] = False,
) -> None:
    """Learn a loss by rank correlation with a metric (ReLoss).

    `mg.load_surrogate` reads the file.
    """
    from metricgrad.storage import complete_file
    from metricgrad.training.recipes import as_shipped, read_scores, teach

    with plain_errors():
        path = _card_path(out, force)
        own = [read_scores(each) for each in scores] if scores else None
        options = as_shipped(name, seed, penalty)
        taught = teach(name, steps=steps, seed=seed, scores=own, progress=not as_json, **options)
        typed = [f"--scores {each}" for each in scores or []]
        typed += [] if penalty is None else [f"--penalty {penalty:g}"]
        card = replace(taught.card, command=" ".join([taught.card.command, *typed]))
        with complete_file(path) as partial:  # both or neither: one alone would block a new start
            partial.write_text(json.dumps(asdict(card), indent=2) + "\n", encoding="utf-8")
            taught.loss.save(out)
    if as_json:
        typer.echo(json.dumps(asdict(card), indent=2))
    else:
        _show(name, card, out)


def _card_path(out: Path, force: bool) -> Path:
    """Where the loss's card goes; ValueError where a file is in the way."""
    if not out.parent.is_dir():
        raise ValueError(f"there is no folder {out.parent}; create it, or choose another --out")
    card = out.with_suffix(".json")
    if card == out:
        named = out.with_suffix(".safetensors")
        raise ValueError(f"--out {out} is where the loss's card goes; name the loss {named}")
    taken = [str(path) for path in (out, card) if path.exists()]
    if taken and not force:
        raise ValueError(
            f"{' and '.join(taken)} would be overwritten; choose another --out, or add --force"
        )
    return card


def _show(name: str, card: "Card", out: Path) -> None:
    """Prints how well the loss ranks held-out sets, beside the ordinary one."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column(f"rank correlation with {name}")
    table.add_column("Spearman", justify="right")
    table.add_column("Kendall", justify="right")
    found = card.held_out
    table.add_row("this loss", f"{found.spearman:.4f}", f"{found.kendall:.4f}")
    usual = (found.ordinary_spearman, found.ordinary_kendall)
    table.add_row("the ordinary loss", *(f"{value:.4f}" for value in usual))
    console = Console(highlight=False)
    console.print(table)
    console.print(f"Measured on held-out sets, after {card.seconds} s.")
    console.print(f"mg.load_surrogate({str(out)!r})", style="cyan", markup=False, soft_wrap=True)
