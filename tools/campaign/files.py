"""Flipped and truncated bytes in every file that is read: a sentence each, never a traceback.

A file of tensors (model, checkpoint, loss) carries a digest, so damage to it is either refused or
harmless: the result is the undamaged one's. JSON and tables carry none, as people may edit them; a
flipped digit there is another number, and only the manner of the end is checked.
"""

import shutil
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import metricgrad as mg
from tests.commands import table
from tools.campaign.case import Case, Ended, Outcome, child, command, sentence
from tools.campaign.faults import uninterrupted
from tools.campaign.work import QUICK, Work, workshop

FLIPS = 14
CUTS = 8
Read = Callable[[Path], Callable[[], Any]]
Make = Callable[[str], Work]


def cases(size: int, seed: int) -> list[Case]:
    """One case for every file and every command that reads it."""
    found = {
        "the model of predict": partial(check_run, "model.safetensors", predict, True),
        "result.json in report": partial(check_run, "result.json", report, False),
        "config.json in report": partial(check_run, "config.json", report, False),
        "evidence.npz in report": partial(check_run, "evidence.npz", report, False),
        "result.json of a finished run": partial(check_run, "result.json", again, False),
        "config.json of a finished run": partial(check_run, "config.json", again, False),
        "checkpoints of train": partial(check_resumed, "train", "safetensors"),
        "checkpoints of fit": partial(check_resumed, "fit", "safetensors"),
        "values.json of compare": partial(check_resumed, "compare", "values.json"),
        "epochs.json of a budget": check_epochs,
        "a loss": check_loss,
        "scores of learn": check_scores,
    }
    for ending in ("csv", "csv.gz", "parquet", "svm"):
        found[f"a table, .{ending}"] = partial(check_table, ending)
    return [Case(name, partial(check, seed=seed)) for name, check in found.items()]


def damages(content: bytes, seed: int) -> list[tuple[str, bytes]]:
    """Damaged versions of a file's content, each with what was done to it."""
    rng = np.random.default_rng([seed, len(content)])
    found = [("empty", b""), ("zeros", bytes(len(content))), ("text", b"\xff\xfe no such file\n")]
    for place in rng.integers(0, len(content), FLIPS).tolist():
        bit = int(rng.integers(8))
        flipped = bytes([content[place] ^ 1 << bit])
        changed = content[:place] + flipped + content[place + 1 :]
        found.append((f"bit {bit} of byte {place} flipped", changed))
    for place in rng.integers(1, len(content), CUTS).tolist():
        found.append((f"cut after {place} bytes", content[:place]))
    return found


def tried(
    path: Path, seed: int, run: Callable[[], Ended], wrong: Callable[[Ended], str | None]
) -> Outcome:
    """Damages a file in every way, runs something, and asks what is wrong with how it ended."""
    content = path.read_bytes()
    failures: list[str] = []
    ways = damages(content, seed)
    for what, damaged in ways:
        path.write_bytes(damaged)
        complaint = wrong(run())
        failures += [f"{what}: {complaint}"] if complaint else []
    path.write_bytes(content)
    return Outcome(f"{len(ways)} damages", failures)


def predict(folder: Path) -> Callable[[], Any]:
    """Predictions by the model in a folder."""
    return command("predict", folder, folder.parent.parent / "data.csv")


def report(folder: Path) -> Callable[[], Any]:
    """The page of a run."""
    return command("report", folder)


def again(folder: Path) -> Callable[[], Any]:
    """The command that made the run."""
    return Work("train", folder.parent).task()


def check_run(name: str, read: Read, same: bool, seed: int) -> Outcome:
    """A damaged file of a finished run; `same` asks for the undamaged output, or a refusal."""
    with workshop() as make:
        work = make("train")
        uninterrupted(work)
        expected = child(read(work.out)).text

        def wrong(ended: Ended) -> str | None:
            other = same and not ended.code and ended.text != expected
            return ended.complaint() or ("another output, in silence" if other else None)

        return tried(work.out / name, seed, lambda: child(read(work.out)), wrong)


def check_resumed(name: str, ending: str, seed: int) -> Outcome:
    """A damaged file of an unfinished run, which is then continued."""
    with workshop() as make:
        expected, seconds = uninterrupted(make(name))
        work = unfinished(make, name, ending, seconds)
        path = sorted(work.place.rglob(f"*{ending}"))[-1]
        kept = work.place.parent / "kept"
        shutil.copytree(work.place, kept)

        def run() -> Ended:
            ended = child(sentence(work.task()))
            found = work.found()
            shutil.rmtree(work.place)
            shutil.copytree(kept, work.place)
            other = ending == "safetensors" and not ended.code and found != expected
            text = "another result, in silence" if other else ended.text
            return Ended(3 if other else ended.code, text, ended.seconds)

        return tried(path, seed, run, Ended.complaint)


def unfinished(make: Make, name: str, ending: str, seconds: float) -> Work:
    """A run that was killed when the file in question was there, but not the result."""
    for part in np.linspace(0.5, 0.95, 20).tolist():
        work = make(name)
        child(work.task(), kill_after=part * seconds)
        if work.found() is None and list(work.place.rglob(f"*{ending}")):
            return work
    raise RuntimeError(f"{name} was never caught with {ending} and without a result")


def check_epochs(seed: int) -> Outcome:
    """The number of epochs that a budget allows, which a continued run reads."""
    with workshop() as make:
        work = make("train")
        path = work.out / "epochs.json"

        def task() -> None:
            torch.manual_seed(0)
            x = torch.randn(80, 3, generator=torch.Generator().manual_seed(seed))
            model = torch.nn.Linear(3, 1)
            options: dict[str, Any] = {"rate": 0.1, "epochs": 1, "budget": 60.0, "progress": False}
            target = (x[:, 0] > 0).long()
            mg.fit(model, (x, target), metric="f1", method="focal", folder=work.out, **options)

        def run() -> Ended:
            for each in work.out.glob("*.safetensors"):
                each.unlink()
            return child(sentence(task))

        child(task)
        return tried(path, seed, run, Ended.complaint)


def check_loss(seed: int) -> Outcome:
    """A loss that `loss.save` wrote."""
    warnings.simplefilter("ignore")
    with workshop() as make:
        path = make("loss").place / "loss.safetensors"
        loss = mg.BilevelLoss("f1", generator=torch.Generator().manual_seed(seed))
        loss.save(path)
        weights = loss.state_dict()

        def task() -> None:
            found = mg.load_surrogate(path).state_dict()
            same = all(torch.equal(found[key], weights[key]) for key in weights)
            raise SystemExit(0 if same else 3)

        return tried(path, seed, lambda: child(sentence(task)), Ended.complaint)


def check_scores(seed: int) -> Outcome:
    """Score sets that `metricgrad learn` is given."""
    with workshop() as make:
        work = make("learn")

        def run() -> Ended:
            for each in work.place.iterdir():
                each.unlink()
            return child(work.task())

        return tried(work.place.parent / "scores.npz", seed, run, Ended.complaint)


def check_table(ending: str, seed: int) -> Outcome:
    """A table that a model predicts."""
    with workshop() as make:
        work = make("train")
        data = table(60)
        data = data if ending != "svm" else data.drop(columns=["kind"])
        path = work.place / f"table.{ending}"
        match ending:
            case "parquet":
                data.to_parquet(path)
            case "svm":
                numbers = data[["one", "two", "three"]].to_numpy()
                rows = [
                    " ".join(f"{at + 1}:{x:.4f}" for at, x in enumerate(row)) for row in numbers
                ]
                signs = ["1" if each == "yes" else "0" for each in data["label"]]
                lines = [f"{y} {row}" for y, row in zip(signs, rows, strict=True)]
                path.write_text("\n".join(lines))
            case _:
                data.to_csv(path, index=False)
        target = () if ending == "svm" else QUICK[:4]
        options = (*target, "--hidden", "none", "--epochs", 1, "--method", "focal")
        made = child(command("train", path, *options, "--out", work.out))
        if made.complaint(codes=(0,)):
            raise RuntimeError(made.text)
        return tried(path, seed, lambda: child(command("predict", work.out, path)), Ended.complaint)
