"""Readers of people in pictures, on small files of the formats that the tests write themselves."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
import torch
from PIL import Image

import metricgrad as mg
from benchmarks import poses
from benchmarks.pose_data import SHRUNK, SIDE, Poses, coco, mpii, poses_of
from benchmarks.task import Examples

PEOPLE = 12


def picture(path: Path, spots: list[tuple[int, int]]) -> None:
    """A dark picture of 160 x 120 pixels with a bright spot of 3 x 3 pixels at some places."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.zeros((120, 160, 3), dtype=np.uint8)
    for x, y in spots:
        pixels[y - 1 : y + 2, x - 1 : x + 2] = 255
    Image.fromarray(pixels).save(path, quality=100, subsampling=0)


def coco_folder(root: Path) -> None:
    """Pictures with two people each, a bright spot at the first joint of each person."""
    rng = np.random.default_rng(0)
    for part in ("train2017", "val2017"):
        images: list[dict[str, Any]] = []
        annotations: list[dict[str, Any]] = []
        for number in range(PEOPLE // 2):
            identity = 100 + number
            images.append({"id": identity, "file_name": f"{number:012d}.jpg"})
            spots = [(int(rng.integers(30, 60)), 50), (int(rng.integers(95, 130)), 70)]
            for x, y in spots:
                marks = [x, y, 2, x + 6, y + 6, 1, *[0] * 45]
                annotations.append(
                    {
                        "image_id": identity,
                        "bbox": [x - 20.0, y - 25.0, 40.0, 50.0],
                        "area": 900.0,
                        "iscrowd": 0,
                        "num_keypoints": 2,
                        "keypoints": marks,
                    }
                )
            picture(root / "coco" / part / f"{number:012d}.jpg", spots)
        crowd = {**annotations[0], "iscrowd": 1}
        unmarked = {**annotations[0], "num_keypoints": 0, "keypoints": [0] * 51}
        content = {"images": images, "annotations": [*annotations, crowd, unmarked]}
        place = root / "coco" / "annotations" / f"person_keypoints_{part}.json"
        place.parent.mkdir(exist_ok=True, parents=True)
        place.write_text(json.dumps(content))


def mpii_folder(root: Path) -> None:
    """One person a picture, and what the published file has besides: tests, people unmarked."""
    rng = np.random.default_rng(1)
    annotations = []
    for number in range(PEOPLE + 1):
        x = int(rng.integers(40, 120))
        y = int(rng.integers(40, 80))
        marks = [{"id": 9, "x": x + 1, "y": y + 1, "is_visible": np.array([])}]
        marks.append({"id": 0, "x": x + 11.0, "y": y + 21.0, "is_visible": 1})
        person = {
            **{"x1": x - 5.0, "y1": y - 10.0, "x2": x + 7.0, "y2": y + 6.0},
            **{"scale": 0.4, "objpos": {"x": x + 4.0, "y": y + 3.0}},
            "annopoints": {"point": marks},
        }
        bare = {**person, "annopoints": np.array([]), "scale": np.array([])}
        both = np.array([person, bare], dtype=object)
        annotations.append({"image": {"name": f"{number:09d}.jpg"}, "annorect": both})
        picture(root / "mpii" / "images" / f"{number:09d}.jpg", [(x, y)])
    release = {
        "annolist": np.array(annotations, dtype=object),
        "img_train": np.array([1] * PEOPLE + [0]),
    }
    scipy.io.savemat(root / "mpii" / "mpii_human_pose_v1_u12_1.mat", {"RELEASE": release})


def highest(part: Examples) -> torch.Tensor:
    """Where the brightest pixel of each image is, averaged to the size of a map: `[N, 2]`."""
    maps = torch.nn.functional.avg_pool2d(part.x.mean(1, keepdim=True), SHRUNK).flatten(1)
    index = maps.argmax(-1)
    side = SIDE // SHRUNK
    return torch.stack([index % side, index // side], -1).float()


def everyone(data: Poses) -> Examples:
    """All parts together."""
    parts = [data.train, data.valid, data.test]
    target = torch.cat([part.target[..., :2] for part in parts])
    flags = [part.where for part in parts if part.where is not None]
    return Examples(torch.cat([part.x for part in parts]), target, torch.cat(flags))


def test_people_of_coco_are_cut_out_with_their_joints(tmp_path: Path) -> None:
    coco_folder(tmp_path)
    data = coco(tmp_path, 0)
    assert [len(part) for part in (data.train, data.valid, data.test)] == [10, 2, PEOPLE]
    people = everyone(data)
    assert people.where is not None
    assert people.where.sum(-1).tolist() == [2] * 2 * PEOPLE
    away = (highest(people) - people.target[:, 0]).norm(dim=-1)
    assert away.max() < 1.5
    assert sorted(data.mirrored) == list(range(17))
    # A square of 62 pixels became a map of 64: an area of 900 pixels has grown.
    assert data.test.target[0, 0, 2].item() == pytest.approx(900 * (64 / 62) ** 2, rel=1e-5)


def test_perfect_poses_of_coco_have_an_average_precision_of_one(tmp_path: Path) -> None:
    """Places in the pictures are those of the file, so the people of a picture stay apart."""
    coco_folder(tmp_path)
    data = coco(tmp_path, 0)
    target = data.test.target
    maps = mg.baselines.HeatmapMSE.target_maps(target[..., :2], (64, 64), sigma=1.0)
    assert mg.metric("oks_ap")(maps, target) == 1
    assert mg.metric("oks_ap")(maps.roll(20, -1), target) == 0
    corner, scale = target[:, 0, 5:7], target[:, 0, 7:]
    places = corner + scale * target[:, 0, :2]
    content = json.loads((tmp_path / "coco/annotations/person_keypoints_val2017.json").read_text())
    marks = torch.tensor([each["keypoints"][:2] for each in content["annotations"][:PEOPLE]])
    torch.testing.assert_close(places, marks.float(), atol=1e-3, rtol=0)


def test_people_of_mpii_are_cut_out_with_the_size_of_their_heads(tmp_path: Path) -> None:
    mpii_folder(tmp_path)
    data = mpii(tmp_path, 0)
    assert [len(part) for part in (data.train, data.valid, data.test)] == [8, 2, 2]
    people = everyone(data)
    assert data.head == 9
    assert people.where is not None
    assert people.where.nonzero()[:, 1].tolist() == [0, 9] * PEOPLE
    away = (highest(people) - people.target[:, data.head]).norm(dim=-1)
    assert away.max() < 1.5
    # Heads are 12 x 16 pixels, 20 across; a person of scale 0.4 is cut out by 100 pixels.
    size = data.test.target[..., 2]
    torch.testing.assert_close(size, torch.full_like(size, 0.6 * 20 * 64 / 100))
    assert sorted(data.mirrored) == list(range(16))


@pytest.mark.parametrize(
    ("name", "write", "joints", "values"),
    [
        ("coco", coco_folder, "all", {"pck", "pck_dark", "oks_ap"}),
        ("mpii", mpii_folder, "head", {"pck"}),
    ],
)
def test_the_tables_run_on_the_papers_data(
    tmp_path: Path, name: str, write: Any, joints: str, values: set[str]
) -> None:
    write(tmp_path)
    settings = {
        **{"dataset": name, "joints": joints, "fraction": 0.05, "network": "simple", "width": 2},
        **{"method": "metric_loss", "batch": 4, "epochs": 1, "rates": [0.001], "half": False},
    }
    found = poses.run(settings, 0, tmp_path, [], lambda trials: None)
    assert set(found["values"]) == values
    assert all(0 <= value <= 1 for value in found["values"].values())


def test_unknown_people_and_heads_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no data set 'lsp' of poses; they are lsp_extended, coco"):
        poses_of("lsp", tmp_path, 0)
    coco_folder(tmp_path)
    settings = {"dataset": "coco", "joints": "head", "network": "simple", "width": 2}
    with pytest.raises(ValueError, match="coco does not mark heads; take lsp_extended or mpii"):
        poses.task(settings, 0, tmp_path)


def test_joints_that_are_not_marked_do_not_move_a_network(tmp_path: Path) -> None:
    coco_folder(tmp_path)
    settings = {
        **{"dataset": "coco", "joints": "all", "fraction": 0.05, "network": "simple", "width": 2},
        "method": "mse",
    }
    task = poses.task(settings, 0, tmp_path)
    scores = torch.zeros(2, 17, 64, 64, requires_grad=True)
    task.loss(1)(scores, task.train.at(torch.arange(2))).backward()
    assert scores.grad is not None
    assert scores.grad[:, :2].any()
    assert not scores.grad[:, 2:].any()
    turned = task.augment(task.train.at(torch.arange(8)), torch.Generator().manual_seed(0))
    assert turned.where is not None
    # Of mirrored people the left eye is the right one; the nose is the first joint of all.
    assert {tuple(row.nonzero().flatten().tolist()) for row in turned.where} == {(0, 1), (0, 2)}
