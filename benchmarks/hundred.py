"""Images of 100 classes: CIFAR-100, and pairs of MNIST's digits in its place.

CIFAR-100 is read in its binary version, the two files `train.bin` and `test.bin` of
`cifar-100-binary.tar.gz`, in the folder `cifar100`. An image takes 3,074 bytes: the number of its
coarse class, that of its fine class, and 32 x 32 pixels of red, of green and of blue.

A pair is two digits side by side, 28 x 56 pixels, and its class is their number from 00 to 99.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np

Images = tuple[np.ndarray, np.ndarray]  # images [N, C, H, W] from 0 to 1, and classes [N]

_SIDE = 32
_RECORD = 2 + 3 * _SIDE**2
_TRAIN, _TEST = 50_000, 10_000
_PAIRS, _TEST_PAIRS = 20_000, 5_000


def cifar100(folder: Path) -> tuple[Images, Images]:
    """All training and test images of CIFAR-100 with their fine classes."""
    place = folder / "cifar100"
    return binary_part(place / "train.bin", _TRAIN), binary_part(place / "test.bin", _TEST)


def binary_part(path: Path, number: int) -> Images:
    """The images of one file, which has to have this number of them."""
    if not path.is_file():
        raise ValueError(
            f"there is no file {path}; put train.bin and test.bin of cifar-100-binary.tar.gz there"
        )
    size = path.stat().st_size
    if size != number * _RECORD:
        raise ValueError(
            f"{path} has {size} bytes; {number} images of CIFAR-100 in the binary version have "
            f"{number * _RECORD}"
        )
    records = np.fromfile(path, np.uint8).reshape(number, _RECORD)
    if records[:, 1].max() > 99:
        raise ValueError(
            f"{path} has a fine class {records[:, 1].max()}; those of CIFAR-100 are 0 to 99"
        )
    images = records[:, 2:].reshape(number, 3, _SIDE, _SIDE)
    return images.astype(np.float32) / 255, records[:, 1].astype(np.int64)


def mnist_pairs(folder: Path) -> tuple[Images, Images]:
    """20,000 pairs of training digits and 5,000 pairs of test digits."""
    with np.load(folder / "mnist" / "mnist.npz") as file:
        train = pairs(file["x_train"], file["y_train"], _PAIRS)
        return train, pairs(file["x_test"], file["y_test"], _TEST_PAIRS)


def pairs(images: np.ndarray, digits: np.ndarray, number: int) -> Images:
    """Pairs of images, none of which is in two pairs.

    Example:
        >>> images, classes = pairs(np.zeros((20, 28, 28)), np.arange(20) % 10, 5)
        >>> images.shape, classes.max() < 100
        ((5, 1, 28, 56), np.True_)
    """
    order = np.random.default_rng(0).permutation(len(images))
    left = order[:number]
    right = order[number : 2 * number]
    side_by_side = np.concatenate([images[left], images[right]], -1)[:, None]
    classes = 10 * digits[left].astype(np.int64) + digits[right]
    return side_by_side.astype(np.float32) / 255, classes


READERS: dict[str, Callable[[Path], tuple[Images, Images]]] = {
    "cifar100": cifar100,
    "mnist_pairs": mnist_pairs,
}
