"""Poses: joints of athletes in LSP Extended, as heatmaps (UniLoss, Sec. 4.3; ReLoss, Table 3).

    one joint     the top of the head, by an hourglass of one stack, judged by PCKh: the highest
                  pixel has to lie within half a head's length of the joint (UniLoss, Table 1)
    all joints    14 of them, by a small SimpleBaseline, judged by PCK at 0.05 of the person's size
                  (ReLoss, Table 3)

A set is a batch of images. Maps are half as large as the images, 64 x 64 pixels.
"""

import io
import math
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from sklearn.model_selection import train_test_split
from torch import Tensor

import metricgrad as mg
from benchmarks.classification import Settings
from benchmarks.data import checked, data_folder
from benchmarks.maps import channels_last
from benchmarks.pose_nets import Hourglass, SimpleBaseline
from benchmarks.relations import learned_relation
from benchmarks.task import Examples, Keep, Loss, ScoreSets, Task, run_task

_IMAGES = "images_128.zip"
_JOINTS = "joints.npz"
_SUMS = {
    _IMAGES: "a8f987c6905673a3171fcbe812303b2ca56846ea9633e5940707fb8eb79572e7",
    _JOINTS: "ed95532d1f0f2d7e2a3b8aac1de64955f0d1fd97bad0a6debb2245ddd420ec4c",
}
_SHRUNK = 2  # pixels of an image beside one of its maps
_NECK, _HEAD = 12, 13
_MIRRORED = [5, 4, 3, 2, 1, 0, 11, 10, 9, 8, 7, 6, 12, 13]  # left for right
_VALID = 0.125
_ROOM = 1.3  # an image is this many times as wide as the box around the joints
_SET = 8


def run(
    settings: Settings, seed: int, folder: Path | None, known: list[dict[str, Any]], keep: Keep
) -> dict[str, Any]:
    """Trains a network on the loss of the row, and tests the share of correct joints."""
    return run_task(task(settings, seed, folder), settings, seed, known, keep)


def task(settings: Settings, seed: int, folder: Path | None) -> Task:
    """LSP Extended with one joint or all of them, and the loss that the settings name."""
    train, valid, test = lsp_extended(folder, seed)
    joints = [_HEAD] if settings["joints"] == "head" else list(range(len(_MIRRORED)))
    maps = train.x.shape[-1] // _SHRUNK
    metric = _metric(settings, maps)

    def network() -> torch.nn.Module:
        kind = Hourglass if settings["network"] == "hourglass" else SimpleBaseline
        return channels_last(kind(len(joints), settings["width"]))

    def chosen(target: Tensor) -> Tensor:
        columns = 2 if settings["joints"] == "all" else 3  # PCKh takes the length of the head
        return target[..., joints, :columns]

    def of_chosen(loss: Loss) -> Loss:
        return lambda scores, batch: loss(scores, Examples(batch.x, chosen(batch.target)))

    def sets(scores: Tensor, part: Examples, generator: torch.Generator) -> ScoreSets:
        return pose_sets(scores, chosen(part.target), generator)

    return Task(
        metric=metric,
        values={"pck": lambda scores, part: float(metric(scores, chosen(part.target)))},
        train=train,
        valid=valid,
        test=test,
        network=network,
        ordinary=of_chosen(_loss_of(mg.baselines.HeatmapMSE(sigma=1.0))),
        loss=lambda steps: of_chosen(heatmap_loss(settings, seed, folder, metric, steps)),
        augment=turned,
        sets=sets,
    )


def _metric(settings: Settings, maps: int) -> mg.Metric:
    if settings["joints"] == "head":
        return mg.metric("pck", fraction=0.5)
    return mg.metric("pck", radius=settings["fraction"] * maps / _ROOM)


def lsp_extended(folder: Path | None, seed: int) -> tuple[Examples, Examples, Examples]:
    """Training, validation and test images `[N, 3, 128, 128]` with joints `[N, 14, 3]`.

    Joints are (x, y, length of the head) in pixels of the maps. An eighth of the training images
    validates.
    """
    place = data_folder(folder) / "lsp_extended"
    with np.load(checked(place / _JOINTS, _SUMS[_JOINTS])) as file:
        joints = torch.from_numpy(file["joints"]) / _SHRUNK
        names = [f"im{number:05d}.jpg" for number in file["image_id"]]
        tests = file["split"] == 1
    with zipfile.ZipFile(checked(place / _IMAGES, _SUMS[_IMAGES])) as file:
        pictures = [np.asarray(Image.open(io.BytesIO(file.read(name)))) for name in names]
    images = torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).float() / 255
    images = images.contiguous()
    head = (joints[:, _HEAD] - joints[:, _NECK]).norm(dim=-1)
    target = torch.cat([joints, head[:, None, None].expand(-1, len(_MIRRORED), 1)], -1)
    train, valid = train_test_split(
        np.flatnonzero(~tests), test_size=_VALID, random_state=seed, shuffle=True
    )
    mean = images[train].mean((0, 2, 3), keepdim=True)
    spread = images[train].std((0, 2, 3), keepdim=True)
    everything = Examples((images - mean) / spread, target)
    parts = (train, valid, np.flatnonzero(tests))
    first, second, third = (everything.at(torch.from_numpy(part)) for part in parts)
    return first, second, third


def turned(batch: Examples, generator: torch.Generator) -> Examples:
    """Images turned by up to 30 degrees, scaled by up to a quarter, and half of them mirrored.

    Joints move along. Those that leave the image are moved to its edge.
    """
    number = len(batch)
    angle = (2 * torch.rand(number, generator=generator) - 1) * math.pi / 6
    angle = torch.where(torch.rand(number, generator=generator) < 0.6, angle, 0.0)
    scale = 0.75 + 0.5 * torch.rand(number, generator=generator)
    mirrored = torch.rand(number, generator=generator) < 0.5
    sign = torch.where(mirrored, -1.0, 1.0)
    # An image's pixel (x, y), both from -1 to 1, is read from matrix @ (x, y).
    rows = (angle.cos() * sign, -angle.sin(), angle.sin() * sign, angle.cos())
    matrix = torch.stack(rows, -1).reshape(number, 2, 2) / scale[:, None, None]
    still = torch.zeros(number, 2, 1)
    grid = F.affine_grid(torch.cat([matrix, still], -1), list(batch.x.shape), align_corners=False)
    images = F.grid_sample(batch.x, grid, padding_mode="border", align_corners=False)
    side = batch.x.shape[-1] // _SHRUNK
    places = (batch.target[..., :2] + 0.5) * 2 / side - 1
    places = torch.linalg.solve(matrix, places.transpose(-1, -2)).transpose(-1, -2)
    places = ((places + 1) * side / 2 - 0.5).clamp(0, side - 1)
    places = torch.where(mirrored[:, None, None], places[:, _MIRRORED], places)
    length = batch.target[..., 2:] * scale[:, None, None]
    return Examples(images, torch.cat([places, length], -1))


def heatmap_loss(
    settings: Settings, seed: int, folder: Path | None, metric: mg.Metric, steps: int
) -> Loss:
    """The loss of a row; `ordinary` in the settings is the weight of squared error beside it."""
    options = settings.get("loss_options", {})
    generator = torch.Generator().manual_seed(seed)
    match settings["method"]:
        case "mse":
            return _loss_of(mg.baselines.HeatmapMSE(**options))
        case "uniloss":
            return _loss_of(mg.UniLoss(metric, generator=generator, **options))
        case "uniloss_published":
            return _loss_of(mg.UniLoss.as_published(metric, generator=generator, **options))
        case "metric_loss":
            return _loss_of(mg.MetricLoss(metric, steps=steps, generator=generator, **options))
        case "reloss":
            return _learned(settings, seed, folder, metric)
        case method:
            raise ValueError(f"there is no method {method!r} for poses")


def _loss_of(surrogate: mg.Surrogate) -> Loss:
    return lambda scores, batch: surrogate(scores, batch.target)


def _learned(settings: Settings, seed: int, folder: Path | None, metric: mg.Metric) -> Loss:
    """ReLoss of PCK, learned from a network that squared error trained, and squared error."""
    plain = task({**settings, "method": "mse"}, seed, folder)
    side = plain.valid.x.shape[-1] // _SHRUNK
    generator = torch.Generator().manual_seed(seed)
    net = mg.nets.Heatmaps((side, side), generator=generator)
    relation = learned_relation(plain, settings, seed, mg.ReLoss(metric, net=net))
    weight = settings.get("ordinary", 0.0)
    ordinary = mg.baselines.HeatmapMSE(sigma=1.0)
    return lambda scores, batch: (
        relation(scores, batch.target) + weight * ordinary(scores, batch.target)
    )


def pose_sets(scores: Tensor, joints: Tensor, generator: torch.Generator) -> ScoreSets:
    """Sets of a few images: maps `[S, 8, K, H, W]` and joints `[S, 8, K, 2 or 3]`."""
    number = len(scores) // _SET * _SET
    order = torch.randperm(len(scores), generator=generator)[:number].reshape(-1, _SET)
    return [(scores[order], joints[order])]
