"""People in pictures: LSP Extended, COCO and MPII as images with the joints of one person each.

Each reader gives training, validation and test images `[N, 3, side, side]`, standardised by
channel, and joints in pixels of maps that are half as wide. COCO and MPII are read in the form in
which they are published; each person is cut out by a square around the middle of the person:

    coco   annotations/person_keypoints_{train2017,val2017}.json, {train2017,val2017}/*.jpg; the
           second part is tested. Target: joints for training, else the eight columns of `oks_ap`.
    mpii   mpii_human_pose_v1_u12_1.mat, images/*.jpg; its own test part has no joints, so every
           eighth picture is tested. Target: joints and the size of the head, 0.6 times the diagonal
           of its box, as in PCKh's own evaluation.

An eighth of the training images validates. Joints that are not marked do not count.
"""

import io
import json
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.io
import torch
from PIL import Image
from sklearn.model_selection import train_test_split
from torch import Tensor

from benchmarks.data import checked, data_folder
from benchmarks.task import Examples

SHRUNK = 2  # pixels of an image beside one of its maps
SIDE = 128
_VALID = 0.125
_IMAGES = "images_128.zip"
_JOINTS = "joints.npz"
_SUMS = {
    _IMAGES: "a8f987c6905673a3171fcbe812303b2ca56846ea9633e5940707fb8eb79572e7",
    _JOINTS: "ed95532d1f0f2d7e2a3b8aac1de64955f0d1fd97bad0a6debb2245ddd420ec4c",
}
_NECK = 12
_HEAD = 13
_COCO_ROOM = 1.25
_MPII_SIDE = 250  # pixels of a person of scale 1, room included
_MPII_LOWER = 15  # pixels by which the middle is moved down, as feet are further away than the head
_HEAD_SHARE = 0.6
_TESTED = 8


class Poses(NamedTuple):
    """Training, validation and test people, and what is known of their joints."""

    train: Examples
    valid: Examples
    test: Examples
    mirrored: list[int]  # left for right
    head: int | None = None  # the joint at the top of the head
    room: float = 1.0  # an image is this many times as wide as the person


class Person(NamedTuple):
    """One person in a picture; places are in its pixels, the middle of the first being (0, 0)."""

    picture: str
    image: int
    middle: tuple[float, float]
    side: float
    joints: np.ndarray  # [K, 2]
    visible: np.ndarray  # [K], bool
    size: float  # COCO: the area; MPII: the size of the head


def poses_of(name: str, folder: Path | None, seed: int) -> Poses:
    """A data set by name."""
    readers = {"lsp_extended": lsp_extended, "coco": coco, "mpii": mpii}
    if name not in readers:
        raise ValueError(f"there is no data set {name!r} of poses; they are {', '.join(readers)}")
    return readers[name](folder, seed)


def lsp_extended(folder: Path | None, seed: int) -> Poses:
    """Athletes with 14 joints `[N, 14, 3]`: x, y and the length of the head."""
    place = data_folder(folder) / "lsp_extended"
    with np.load(checked(place / _JOINTS, _SUMS[_JOINTS])) as file:
        joints = torch.from_numpy(file["joints"]) / SHRUNK
        names = [f"im{number:05d}.jpg" for number in file["image_id"]]
        tests = file["split"] == 1
    with zipfile.ZipFile(checked(place / _IMAGES, _SUMS[_IMAGES])) as file:
        pictures = [np.asarray(Image.open(io.BytesIO(file.read(name)))) for name in names]
    head = (joints[:, _HEAD] - joints[:, _NECK]).norm(dim=-1)
    target = torch.cat([joints, head[:, None, None].expand(-1, joints.shape[1], 1)], -1)
    everything = Examples(_as_images(pictures), target)
    train, valid, test = _parts(everything, tests, seed)
    mirrored = [5, 4, 3, 2, 1, 0, 11, 10, 9, 8, 7, 6, 12, 13]
    return Poses(train, valid, test, mirrored, head=_HEAD, room=1.3)


def coco(folder: Path | None, seed: int) -> Poses:
    """COCO's people with 17 joints, of whom at least one is marked."""
    place = data_folder(folder) / "coco"
    people: list[Person] = []
    pictures: list[np.ndarray] = []
    tests: list[bool] = []
    for part in ("train2017", "val2017"):
        found = coco_people(place / "annotations" / f"person_keypoints_{part}.json")
        people += found
        pictures += crops(found, place / part)
        tests += [part == "val2017"] * len(found)
    target, visible = _targets(people, power=2)
    everything = Examples(_as_images(pictures), target, visible)
    train, valid, test = _parts(everything, np.array(tests), seed)
    # Images are turned and scaled in training, and only joints move along.
    train = Examples(train.x, train.target[..., :2], train.where)
    mirrored = [0, 2, 1, 4, 3, 6, 5, 8, 7, 10, 9, 12, 11, 14, 13, 16, 15]
    return Poses(train, valid, test, mirrored, room=_COCO_ROOM)


def coco_people(path: Path) -> list[Person]:
    """The people of a file of COCO keypoints, without crowds and people without any joint."""
    content = json.loads(path.read_text())
    names = {image["id"]: image["file_name"] for image in content["images"]}
    people = []
    for each in content["annotations"]:
        if each["iscrowd"] or not each["num_keypoints"]:
            continue
        marks = np.array(each["keypoints"], dtype=np.float64).reshape(-1, 3)
        left, top, width, height = each["bbox"]
        people.append(
            Person(
                picture=names[each["image_id"]],
                image=each["image_id"],
                middle=(left + width / 2, top + height / 2),
                side=_COCO_ROOM * max(width, height),
                joints=marks[:, :2],
                visible=marks[:, 2] > 0,
                size=each["area"],
            )
        )
    return people


def mpii(folder: Path | None, seed: int) -> Poses:
    """MPII's people with 16 joints `[N, 16, 3]`: x, y and the size of the head."""
    place = data_folder(folder) / "mpii"
    people = mpii_people(place / "mpii_human_pose_v1_u12_1.mat")
    pictures = crops(people, place / "images")
    names = sorted({person.picture for person in people})
    tested = set(names[::_TESTED])
    tests = np.array([person.picture in tested for person in people])
    target, visible = _targets(people, power=1)
    everything = Examples(_as_images(pictures), target[..., :3], visible)
    train, valid, test = _parts(everything, tests, seed)
    mirrored = [5, 4, 3, 2, 1, 0, 6, 7, 8, 9, 15, 14, 13, 12, 11, 10]
    return Poses(train, valid, test, mirrored, head=9)


def mpii_people(path: Path) -> list[Person]:
    """The people of MPII's training pictures who have joints, a scale and a box of the head."""
    content = scipy.io.loadmat(str(path), squeeze_me=True, struct_as_record=False)
    release: Any = content["RELEASE"]
    training = np.atleast_1d(release.img_train)
    people = []
    for index, picture in enumerate(np.atleast_1d(release.annolist)):
        if not training[index]:
            continue
        for each in np.atleast_1d(picture.annorect):
            person = _mpii_person(each, picture.image.name, index)
            people += [] if person is None else [person]
    return people


def _mpii_person(each: Any, picture: str, image: int) -> Person | None:
    """One of the rectangles of a picture; None if something is missing. MATLAB counts from 1."""
    marks = getattr(getattr(each, "annopoints", None), "point", None)
    middle: Any = getattr(each, "objpos", None)
    box: list[Any] = [getattr(each, name, ()) for name in ("x1", "y1", "x2", "y2", "scale")]
    if marks is None or not hasattr(middle, "x") or any(np.size(part) != 1 for part in box):
        return None
    left, top, right, bottom, scale = (float(np.asarray(part)) for part in box)
    joints = np.zeros((16, 2))
    visible = np.zeros(16, dtype=bool)
    for mark in np.atleast_1d(marks):
        joints[int(mark.id)] = (mark.x - 1, mark.y - 1)
        visible[int(mark.id)] = True
    return Person(
        picture=picture,
        image=image,
        middle=(middle.x - 1, middle.y - 1 + _MPII_LOWER * scale),
        side=_MPII_SIDE * scale,
        joints=joints,
        visible=visible,
        size=_HEAD_SHARE * float(np.hypot(right - left, bottom - top)),
    )


def crops(people: Sequence[Person], folder: Path) -> list[np.ndarray]:
    """The square of each person, `[128, 128, 3]`; what lies outside the picture is black."""
    found = []
    for person in people:
        with Image.open(folder / person.picture) as picture:
            left, top, side = _square(person)
            square = picture.convert("RGB").crop((left, top, left + side, top + side))
        found.append(np.asarray(square.resize((SIDE, SIDE), Image.Resampling.BILINEAR)))
    return found


def _square(person: Person) -> tuple[int, int, int]:
    """Left, top and side of the square around a person, in whole pixels."""
    side = max(1, round(person.side))
    x, y = person.middle
    return round(x - side / 2), round(y - side / 2), side


def _targets(people: Sequence[Person], power: int) -> tuple[Tensor, Tensor]:
    """The eight columns of `oks_ap`, `[N, K, 8]`, and which joints are marked, `[N, K]`.

    The third column has sizes, which are lengths to the power of 1, or areas, to that of 2.
    """
    target = np.stack([_columns(person, power) for person in people])
    visible = np.stack([person.visible for person in people])
    return torch.from_numpy(target).float(), torch.from_numpy(visible)


def _columns(person: Person, power: int) -> np.ndarray:
    """One person's part of it, `[K, 8]`."""
    left, top, side = _square(person)
    scale = side / (SIDE // SHRUNK)
    # The middle of a map's first pixel lies half a map pixel from the square's corner.
    corner = np.array([left, top]) + scale / 2 - 0.5
    places = (person.joints - corner) / scale
    more = [person.size / scale**power, 0.0, person.image, *corner, scale]
    rest = np.tile(np.array(more), (len(places), 1))
    rest[:, 1] = person.visible
    return np.concatenate([places, rest], -1)


def _as_images(pictures: Sequence[np.ndarray]) -> Tensor:
    """Images `[N, 3, H, W]` with values from 0 to 1."""
    images = torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).float() / 255
    return images.contiguous()


def _parts(
    everything: Examples, tests: np.ndarray, seed: int
) -> tuple[Examples, Examples, Examples]:
    """Training, validation and test part, standardised by the first."""
    train, valid = train_test_split(
        np.flatnonzero(~tests), test_size=_VALID, random_state=seed, shuffle=True
    )
    x = everything.x
    mean = x[train].mean((0, 2, 3), keepdim=True)
    spread = x[train].std((0, 2, 3), keepdim=True)
    standard = Examples((x - mean) / spread, everything.target, everything.where)
    parts = (train, valid, np.flatnonzero(tests))
    first, second, third = (standard.at(torch.from_numpy(part)) for part in parts)
    return first, second, third
