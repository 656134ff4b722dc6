"""Poses: joints of people in pictures, as heatmaps (UniLoss, Sec. 4.3; ReLoss, Table 3).

    one joint     the top of the head, by an hourglass of one stack, judged by PCKh: the highest
                  pixel has to lie within half a head's length of the joint (UniLoss, Table 1)
    all joints    14 of them, by a small SimpleBaseline, judged by PCK at 0.05 of the person's size
                  (ReLoss, Table 3)

The people are athletes in LSP Extended, or those of the papers' own data (`pose_data.py`). On COCO,
average precision by object keypoint similarity is tested, too, and of all joints also PCK between
the pixels (`dark.py`). A set is a batch of images. Maps are
half as large as the images, 64 x 64 pixels.
"""

import math
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import metricgrad as mg
from benchmarks.classification import Settings
from benchmarks.dark import refined, share_within
from benchmarks.maps import channels_last
from benchmarks.pose_data import SHRUNK, Poses, poses_of
from benchmarks.pose_nets import Hourglass, SimpleBaseline
from benchmarks.relations import learned_relation
from benchmarks.shown import joints as shown_joints
from benchmarks.task import Examples, Keep, Loss, ScoreSets, Task, Value, run_task, value_of

_SET = 8
_SIZED = 3  # columns of joints with a size; more of them tell which people share an image


def run(
    settings: Settings, seed: int, folder: Path | None, known: list[dict[str, Any]], keep: Keep
) -> dict[str, Any]:
    """Trains a network on the loss of the row, and tests the share of correct joints."""
    return run_task(task(settings, seed, folder), settings, seed, known, keep)


def task(settings: Settings, seed: int, folder: Path | None) -> Task:
    """People with one joint or all of them, and the loss that the settings name."""
    data = poses_of(settings["dataset"], folder, seed)
    joints = _chosen_joints(settings, data)
    metric = _metric(settings, data)

    def network() -> torch.nn.Module:
        kind = Hourglass if settings["network"] == "hourglass" else SimpleBaseline
        return channels_last(kind(len(joints), settings["width"]))

    def chosen(part: Examples) -> Examples:
        columns = 2 if settings["joints"] == "all" else 3  # PCKh takes the length of the head
        where = None if part.where is None else part.where[:, joints]
        return Examples(part.x, part.target[..., joints, :columns], where)

    def of_chosen(loss: Loss) -> Loss:
        return lambda scores, batch: loss(scores, chosen(batch))

    def sets(scores: Tensor, part: Examples, generator: torch.Generator) -> ScoreSets:
        return pose_sets(scores, chosen(part), generator)

    pck = value_of(metric)
    values: dict[str, Value] = {"pck": lambda scores, part: pck(scores, chosen(part))}
    if settings["joints"] == "all":
        values["pck_dark"] = lambda scores, part: share_within(
            refined(scores), part.target[..., :2], _radius(settings, data), part.where
        )
    if data.test.target.shape[-1] > _SIZED:
        # The target says which joints are marked; how sure a pose is depends on all of its maps.
        oks_ap = mg.metric("oks_ap")
        values["oks_ap"] = lambda scores, part: float(oks_ap(scores, part.target))

    return Task(
        metric=metric,
        values=values,
        train=data.train,
        valid=data.valid,
        test=data.test,
        network=network,
        ordinary=of_chosen(_loss_of(mg.baselines.HeatmapMSE(sigma=1.0))),
        loss=lambda steps: of_chosen(heatmap_loss(settings, seed, folder, metric, steps)),
        augment=partial(turned, mirrored_joints=data.mirrored),
        sets=sets,
        shown=shown_joints(settings, chosen),
    )


def _chosen_joints(settings: Settings, data: Poses) -> list[int]:
    if settings["joints"] == "all":
        return list(range(len(data.mirrored)))
    if data.head is None:
        raise ValueError(f"{settings['dataset']} does not mark heads; take lsp_extended or mpii")
    return [data.head]


def _metric(settings: Settings, data: Poses) -> mg.Metric:
    if settings["joints"] == "head":
        return mg.metric("pck", fraction=0.5)
    return mg.metric("pck", radius=_radius(settings, data))


def _radius(settings: Settings, data: Poses) -> float:
    """A share of the person, in map pixels."""
    maps = data.train.x.shape[-1] // SHRUNK
    return settings["fraction"] * maps / data.room


def turned(batch: Examples, generator: torch.Generator, *, mirrored_joints: list[int]) -> Examples:
    """Images turned by up to 30 degrees, scaled by up to a quarter, and half of them mirrored.

    Joints move along, and so do their names: a left hand becomes a right one. Those that leave the
    image are moved to its edge.
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
    side = batch.x.shape[-1] // SHRUNK
    places = (batch.target[..., :2] + 0.5) * 2 / side - 1
    places = torch.linalg.solve(matrix, places.transpose(-1, -2)).transpose(-1, -2)
    places = ((places + 1) * side / 2 - 0.5).clamp(0, side - 1)
    places = torch.where(mirrored[:, None, None], places[:, mirrored_joints], places)
    length = batch.target[..., 2:] * scale[:, None, None]
    where = batch.where
    if where is not None:
        where = torch.where(mirrored[:, None], where[:, mirrored_joints], where)
    return Examples(images, torch.cat([places, length], -1), where)


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
    return lambda scores, batch: surrogate(scores, batch.target, batch.where)


def _learned(settings: Settings, seed: int, folder: Path | None, metric: mg.Metric) -> Loss:
    """ReLoss of PCK, learned from a network that squared error trained, and squared error."""
    plain = task({**settings, "method": "mse"}, seed, folder)
    side = plain.valid.x.shape[-1] // SHRUNK
    generator = torch.Generator().manual_seed(seed)
    net = mg.nets.Heatmaps((side, side), generator=generator)
    relation = learned_relation(plain, settings, seed, mg.ReLoss(metric, net=net))
    weight = settings.get("ordinary", 0.0)
    learned = _loss_of(relation)
    ordinary = _loss_of(mg.baselines.HeatmapMSE(sigma=1.0))
    return lambda scores, batch: learned(scores, batch) + weight * ordinary(scores, batch)


def pose_sets(scores: Tensor, part: Examples, generator: torch.Generator) -> ScoreSets:
    """Sets of a few images: maps `[S, 8, K, H, W]`, joints `[S, 8, K, 2 or 3]`, flags if any."""
    number = len(scores) // _SET * _SET
    order = torch.randperm(len(scores), generator=generator)[:number].reshape(-1, _SET)
    flags = () if part.where is None else (part.where[order],)
    return [(scores[order], part.target[order], *flags)]
