"""How losses rank sets of answers, words and translations (ReLoss, Table 1).

A run takes the settings of a task's own table, learns the losses that this table trains on, and
measures their rank correlations on test data with the network of another seed.
"""

import importlib
from pathlib import Path
from typing import Any

import metricgrad as mg
from benchmarks.classification import Settings
from benchmarks.relations import coefficients
from benchmarks.starts import correlations
from benchmarks.table import table
from benchmarks.token_losses import sequence_relation


def run(
    settings: Settings, seed: int, folder: Path | None, known: list[dict[str, Any]]
) -> dict[str, Any]:
    """Correlations of the ordinary loss and of what was learned."""
    name = settings["of"]
    runs = table(name).runs(settings["size"], 1, ["cross_entropy"])
    own = next(run.configuration for run in runs if run.column == settings.get("column", "all"))
    own = {**own, **settings.get("changed", {})}
    module = importlib.import_module(f"benchmarks.{name}")
    task = module.untrained(own, seed, folder)
    if name == "answers":
        learned = module.relation(task, own, seed, settings["sees"])
    else:
        learned = sequence_relation(task, own, seed)
    if name == "translation":
        task = module.of_known_lengths(task)
    ordinary = mg.with_ordinary(learned).ordinary
    found = correlations(task, own, seed, {"ordinary": ordinary, "reloss": learned})
    return {"values": coefficients(found)}
