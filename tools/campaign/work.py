"""The work that faults interrupt: `mg.fit`, `train`, `compare` and `learn`, on a small table.

Each is a task for a forked child that leaves its result in a folder. `found` reads it, without the
parts that differ from one run to the next: seconds, and the command line, which names the folder.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import metricgrad as mg
from tests.commands import table
from tools.campaign.case import Ended, command

ROWS = 160
QUICK = ("--target", "label", "--positive", "yes", "--hidden", "none")


@dataclass(frozen=True)
class Work:
    """A task by name, in a folder of its own."""

    name: str
    place: Path

    @property
    def out(self) -> Path:
        """What the user names as `--out` or `folder=`."""
        return self.place / ("loss.safetensors" if self.name == "learn" else "run")

    def task(self) -> Callable[[], None]:
        """What a child does; the same task in the same folder continues."""
        data = self.place.parent / "data.csv"
        match self.name:
            case "fit":
                return self._fit
            case "train":
                options = ("--method", "soft_f_beta", "--epochs", 3)
                return command("train", data, *QUICK, *options, "--out", self.out)
            case "compare":
                options = ("--epochs", 1, "--splits", 2, "--methods", "soft_f_beta")
                return command("compare", data, *QUICK, *options, "--out", self.out)
            case _:
                scores = self.place.parent / "scores.npz"
                options = ("--scores", scores, "--steps", 12, "--out", self.out)
                return command("learn", "f1", *options)

    def _fit(self) -> None:
        """`mg.fit` with a search; its value and weights go to a file."""
        x, y = items()
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
        options: dict[str, Any] = {"epochs": 3, "folder": self.out, "progress": False}
        found = mg.fit(model, (x, y), metric="f1", method="soft_f_beta", **options)
        weights = [each.tolist() for each in model.parameters()]
        part = self.place / "fit.part"
        part.write_text(json.dumps({"value": found.value, "weights": weights}))
        part.rename(self.place / "fit.json")

    def found(self) -> Any:
        """The result that the task left; None if it left none."""
        names = {"fit": self.place / "fit.json", "learn": self.out.with_suffix(".json")}
        path = names.get(self.name, self.out / "result.json")
        if not path.exists():
            return None
        stored = json.loads(path.read_text())
        kept = {key: value for key, value in stored.items() if key not in ("seconds", "command")}
        if self.name == "learn":
            loss = mg.load_surrogate(self.out)
            kept["weights"] = {key: value.tolist() for key, value in loss.state_dict().items()}
        return kept


@contextmanager
def workshop() -> Iterator[Callable[[str], Work]]:
    """A temporary folder with the data, and a maker of works; everybody may read it."""
    folder = Path(tempfile.mkdtemp(prefix="campaign-"))
    os.chmod(folder, 0o755)
    table(ROWS).to_csv(folder / "data.csv", index=False)
    rng = np.random.default_rng(0)
    target = rng.integers(0, 2, (40, 32))
    np.savez(folder / "scores.npz", scores=target + rng.normal(size=target.shape), target=target)
    number = iter(range(10**6))

    def make(name: str) -> Work:
        place = folder / f"{name}-{next(number)}"
        place.mkdir()
        return Work(name, place)

    try:
        yield make
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def items() -> tuple[torch.Tensor, torch.Tensor]:
    """The numbers of the table, and its labels."""
    data = table(ROWS)
    x = torch.tensor(data[["one", "two", "three"]].to_numpy(), dtype=torch.float32)
    return x, torch.tensor((data["label"] == "yes").to_numpy()).long()


def differs(work: Work, ended: Ended, expected: Any) -> str | None:
    """What is wrong with work that should have ended well, with the expected result."""
    wrong = ended.complaint(codes=(0,))
    if wrong:
        return f"{work.name}: {wrong}"
    found = work.found()
    if found == expected:
        return None
    keys = [key for key in expected if found is None or found.get(key) != expected[key]]
    return f"{work.name}: {', '.join(keys)} differ from the uninterrupted run's"
