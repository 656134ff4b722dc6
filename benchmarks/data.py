"""Data sets by name, cut into training, validation and test parts.

Validation data is cut from the training part, by seed; a test part that comes with the data stays
as it is. Numbers that are not already 0 and 1 are standardised with the training part's mean and
spread.
"""

import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor


class Part(NamedTuple):
    """Items of one part: features `[N, ...]` and target `[N]`."""

    x: Tensor
    y: Tensor


class Data(NamedTuple):
    """The three parts."""

    train: Part
    valid: Part
    test: Part


TABULAR = {
    "a9a": "a9a/a9a.npz",
    "cc_fraud": "cc_fraud/cc_fraud_subset.npz",
    "cod_rna": "cod_rna/cod_rna.npz",
    "covtype": "covtype/covtype.npz",
    "ijcnn1": "ijcnn1/ijcnn1.npz",
    "skin": "skin/skin.npz",
    "susy": "susy/susy_10k.npz",
}
BUNDLED = ("digits",)
VALIDATION = 0.2


def data_folder(given: Path | None) -> Path:
    """The folder of the data sets: `--data`, or the environment variable METRICGRAD_DATA."""
    folder = given or os.environ.get("METRICGRAD_DATA")
    if folder is None:
        raise ValueError(
            "benchmarks on real data need their folder: pass --data DIR or set METRICGRAD_DATA"
        )
    if not Path(folder).is_dir():
        raise ValueError(
            f"there is no folder {folder}; pass --data DIR with one folder for each data set in it"
        )
    return Path(folder)


def load(name: str, folder: Path | None, seed: int) -> Data:
    """A data set by name.

    Args:
        name: of a table of numbers, "mnist", "mnist_zero" for zero against the rest, "cifar10"
            (20,000 of its 50,000 training images), or "digits", the eights among the digits that
            come with scikit-learn.
        folder: where the data sets are.
        seed: of the cut into training and validation (and test, where there is no official one).

    Returns:
        The parts.
    """
    if name in BUNDLED:
        x, digit = (np.asarray(part) for part in load_digits(return_X_y=True))
        x, x_test, y, y_test = _cut(x, digit == 8, seed)
    else:
        folder = data_folder(folder)
        if name == "cifar10":
            return _cifar10(folder, seed)
        if name.startswith("mnist"):
            return _mnist(folder, zero_against_rest=name == "mnist_zero")
        if name not in TABULAR:
            raise ValueError(
                f"there is no data set {name!r}; there are digits, mnist, mnist_zero, cifar10, {', '.join(TABULAR)}"
            )
        with np.load(folder / TABULAR[name]) as file:
            if "X_test" in file:
                x, y, x_test, y_test = (
                    file["X_train"],
                    file["y_train"],
                    file["X_test"],
                    file["y_test"],
                )
            else:
                x, x_test, y, y_test = _cut(file["X"], file["y"], seed)
    x, x_valid, y, y_valid = _cut(x, y, seed)
    mean, spread = x.mean(0), x.std(0)
    plain = ((x == 0) | (x == 1)).all(0)
    mean[plain], spread[plain] = 0, 1
    parts = [Part(*_tensors((part - mean) / np.maximum(spread, 1e-8), target)) for part, target in
             ((x, y), (x_valid, y_valid), (x_test, y_test))]  # fmt: skip
    return Data(*parts)


def whole_table(name: str, folder: Path | None) -> tuple[np.ndarray, np.ndarray]:
    """All rows of a table, official test part and all: features as they are in the file, and target.

    Args:
        name: of a table.
        folder: where the data sets are.

    Returns:
        `[rows, columns]` and `[rows]`.
    """
    with np.load(data_folder(folder) / TABULAR[name]) as file:
        if "X_test" in file:
            x, y = (
                np.concatenate([file[f"{each}_{part}"] for part in ("train", "test")])
                for each in ("X", "y")
            )
        else:
            x, y = file["X"], file["y"]
    return x, y.astype(np.int64)


def _cut(x: np.ndarray, y: np.ndarray, seed: int) -> list[Any]:
    return train_test_split(x, y, test_size=VALIDATION, stratify=y, random_state=seed)


def _mnist(folder: Path, zero_against_rest: bool) -> Data:
    """Normalised as in the paper's code; validation is the first tenth of the training images, as there."""
    with np.load(folder / "mnist" / "mnist.npz") as file:
        images = [(file[f"x_{part}"] / 255 - 0.1307) / 0.3081 for part in ("train", "test")]
        digits = [file[f"y_{part}"].astype(np.int64) for part in ("train", "test")]
    if zero_against_rest:
        digits = [(digit == 0).astype(np.int64) for digit in digits]
    train, test = (
        Part(*_tensors(x.reshape(len(x), -1), y)) for x, y in zip(images, digits, strict=True)
    )
    tenth = len(train.y) // 10
    return Data(
        Part(train.x[tenth:], train.y[tenth:]), Part(train.x[:tenth], train.y[:tenth]), test
    )


def _cifar10(folder: Path, seed: int) -> Data:
    """Images `[N, 3, 32, 32]`, standardised by channel; a tenth of the training images is for validation."""
    with np.load(folder / "cifar10" / "labels.npz") as file:
        labels = [file[f"y_{part}"].astype(np.int64) for part in ("train", "test")]
    images = [
        _sheets(folder / "cifar10", part, len(y) // 1000)
        for part, y in zip(("train", "test"), labels, strict=True)
    ]
    parts: Any = train_test_split(
        images[0], labels[0], test_size=0.1, stratify=labels[0], random_state=seed
    )
    x, x_valid, y, y_valid = parts
    mean, spread = x.mean((0, 2, 3), keepdims=True), x.std((0, 2, 3), keepdims=True)
    parts = [Part(*_tensors((part - mean) / spread, target)) for part, target in
             ((x, y), (x_valid, y_valid), (images[1], labels[1]))]  # fmt: skip
    return Data(*parts)


def _sheets(folder: Path, part: str, number: int) -> np.ndarray:
    """Images from sheets of 25 rows and 40 columns, `[N, 3, 32, 32]` in 0 to 1."""
    found = []
    for index in range(number):
        sheet = (
            np.asarray(
                Image.open(folder / f"{part}_{index:02d}.webp").convert("RGB"), dtype=np.float32
            )
            / 255
        )
        found.append(
            sheet.reshape(-1, 32, 40, 32, 3).transpose(0, 2, 4, 1, 3).reshape(-1, 3, 32, 32)
        )
    return np.concatenate(found)


def _tensors(x: np.ndarray, y: np.ndarray) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(x.astype(np.float32)), torch.from_numpy(y.astype(np.int64))
