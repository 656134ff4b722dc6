"""Data sets by name, split into training, validation and test parts.

Validation data is taken from the training part, by seed. A test part that comes with the data stays
as it is. Columns that do not consist of 0 and 1 are standardised with the training part's mean and
standard deviation.
"""

import hashlib
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor

from benchmarks import hundred, rtables


class Part(NamedTuple):
    """Features `[N, ...]` and target `[N]` of one part."""

    x: Tensor
    y: Tensor


class Data(NamedTuple):
    """The training, validation and test part."""

    train: Part
    valid: Part
    test: Part


TABULAR = {
    "a9a": "a9a/a9a.npz",
    "cc_fraud": "cc_fraud/cc_fraud_subset.npz",
    "cod_rna": "cod_rna/cod_rna.npz",
    "covtype": "covtype/covtype.npz",
    "ijcnn1": "ijcnn1/ijcnn1.npz",
    "porto_seguro": "porto_seguro/porto_seguro_subset.npz",
    "santander": "santander/santander_7k.npz",
    "skin": "skin/skin.npz",
    "susy": "susy/susy_10k.npz",
}
BUNDLED = ("digits", *rtables.TABLES)  # data sets that come with a package
VALIDATION = 0.2


def data_folder(given: Path | None) -> Path:
    """The folder of the data sets: `--data`, or the environment variable METRICGRAD_DATA."""
    folder = given or os.environ.get("METRICGRAD_DATA")
    if folder is None:
        raise ValueError(
            "this benchmark needs the folder of the data sets: pass --data DIR or set "
            "METRICGRAD_DATA"
        )
    if not Path(folder).is_dir():
        raise ValueError(
            f"there is no folder {folder}; pass --data DIR, a folder with one folder per data set"
        )
    return Path(folder)


def checked(path: Path, digest: str) -> Path:
    """The path of a file whose SHA-256 sum is as expected."""
    if not path.is_file():
        raise ValueError(f"there is no file {path}; benchmarks/README.md says what --data holds")
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != digest:
        raise ValueError(
            f"{path} is another file than the one that was measured: its SHA-256 sum is {found}, "
            f"not {digest}"
        )
    return path


def load(name: str, folder: Path | None, seed: int) -> Data:
    """A data set by name.

    "mnist_zero" is zero against the rest, "cifar10" has 20,000 of its 50,000 training images, and
    "digits" are the eights among the digits that come with scikit-learn. Tables of R packages are
    described in `rtables`, "mnist_pairs" and "cifar100" in `hundred`.
    """
    if name in rtables.TABLES:
        return _rtable(name, seed)
    if name == "digits":
        x, digit = (np.asarray(part) for part in load_digits(return_X_y=True))
        x, x_test, y, y_test = _split(x, digit == 8, seed)
    else:
        folder = data_folder(folder)
        if name == "cifar10":
            return _cifar10(folder, seed)
        if name in hundred.READERS:
            return _images(*hundred.READERS[name](folder), seed)
        if name.startswith("mnist"):
            return _mnist(folder, zero_against_rest=name == "mnist_zero")
        if name not in TABULAR:
            raise ValueError(
                f"there is no data set {name!r}; the data sets are mnist, mnist_zero, "
                f"cifar10, {', '.join(hundred.READERS)}, "
                f"{', '.join((*BUNDLED, *TABULAR))}"
            )
        with np.load(folder / TABULAR[name]) as file:
            if "X_test" in file:
                x = file["X_train"]
                y = file["y_train"]
                x_test = file["X_test"]
                y_test = file["y_test"]
            else:
                x, x_test, y, y_test = _split(file["X"], file["y"], seed)
    x, x_valid, y, y_valid = _split(x, y, seed)
    return _standardised((x, y), (x_valid, y_valid), (x_test, y_test))


def whole_table(name: str, folder: Path | None) -> tuple[np.ndarray, np.ndarray]:
    """All features `[rows, columns]` as in the file and target `[rows]`, test part included."""
    with np.load(data_folder(folder) / TABULAR[name]) as file:
        if "X_test" in file:
            x = np.concatenate([file["X_train"], file["X_test"]])
            y = np.concatenate([file["y_train"], file["y_test"]])
        else:
            x = file["X"]
            y = file["y"]
    return x, y.astype(np.int64)


def _split(x: Any, y: np.ndarray, seed: int, share: float = VALIDATION) -> list[Any]:
    return train_test_split(x, y, test_size=share, stratify=y, random_state=seed)


def _standardised(*parts: tuple[np.ndarray, np.ndarray]) -> Data:
    """The three parts, with the mean and standard deviation of the first."""
    x = parts[0][0]
    mean = x.mean(0)
    spread = x.std(0)
    indicators = ((x == 0) | (x == 1)).all(0)
    mean[indicators] = 0
    spread[indicators] = 1
    return Data(
        *(_part((items - mean) / np.maximum(spread, 1e-8), target) for items, target in parts)
    )


def _rtable(name: str, seed: int) -> Data:
    """A table of an R package, cut by the seed into 60 % training, 20 % validation, 20 % test."""
    x, y = rtables.read(name)
    x, x_test, y, y_test = _split(x, y, seed, 0.2)
    x, x_valid, y, y_valid = _split(x, y, seed, 0.25)
    x, x_valid, x_test = rtables.encoded(x, x_valid, x_test)
    return _standardised((x, y), (x_valid, y_valid), (x_test, y_test))


def _mnist(folder: Path, zero_against_rest: bool) -> Data:
    """As in the paper's code: its normalisation, and the first tenth of the images validates."""
    with np.load(folder / "mnist" / "mnist.npz") as file:
        images = [(file[f"x_{part}"] / 255 - 0.1307) / 0.3081 for part in ("train", "test")]
        digits = [file[f"y_{part}"].astype(np.int64) for part in ("train", "test")]
    if zero_against_rest:
        digits = [(digit == 0).astype(np.int64) for digit in digits]
    train, test = (_part(x.reshape(len(x), -1), y) for x, y in zip(images, digits, strict=True))
    tenth = len(train.y) // 10
    return Data(
        Part(train.x[tenth:], train.y[tenth:]), Part(train.x[:tenth], train.y[:tenth]), test
    )


def _cifar10(folder: Path, seed: int) -> Data:
    """20,000 training images and 10,000 test images of ten classes."""
    with np.load(folder / "cifar10" / "labels.npz") as file:
        labels = [file[f"y_{part}"].astype(np.int64) for part in ("train", "test")]
    images = [
        _sheets(folder / "cifar10", part, len(y) // 1000)
        for part, y in zip(("train", "test"), labels, strict=True)
    ]
    return _images((images[0], labels[0]), (images[1], labels[1]), seed)


def _images(
    train: tuple[np.ndarray, np.ndarray], test: tuple[np.ndarray, np.ndarray], seed: int
) -> Data:
    """Images `[N, C, H, W]`, standardised by channel; a tenth of the training part validates."""
    x, x_valid, y, y_valid = _split(*train, seed, 0.1)
    mean = x.mean((0, 2, 3), keepdims=True)
    spread = x.std((0, 2, 3), keepdims=True)
    parts = ((x, y), (x_valid, y_valid), test)
    return Data(*(_part((items - mean) / spread, target) for items, target in parts))


def _sheets(folder: Path, part: str, number: int) -> np.ndarray:
    """Images `[N, 3, 32, 32]` with values from 0 to 1, cut from sheets of 25 x 40 images."""
    found = []
    for index in range(number):
        picture = Image.open(folder / f"{part}_{index:02d}.webp").convert("RGB")
        sheet = np.asarray(picture, dtype=np.float32) / 255
        rows = sheet.reshape(-1, 32, 40, 32, 3)
        found.append(rows.transpose(0, 2, 4, 1, 3).reshape(-1, 3, 32, 32))
    return np.concatenate(found)


def _part(x: np.ndarray, y: np.ndarray) -> Part:
    return Part(torch.from_numpy(x.astype(np.float32)), torch.from_numpy(y.astype(np.int64)))
