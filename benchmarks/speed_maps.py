"""Steps on images: poses by PCK and label maps by mean IoU, against the networks of their tables.

Loss and network are timed apart. The networks are those that the tables train at their small scale,
which are cheap beside a loss. MetricLoss contains the ordinary loss, so its yardstick is a step on
that.
"""

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import metricgrad as mg
from benchmarks.maps import CLASSES, UNet, channels_last
from benchmarks.pose_nets import SimpleBaseline
from benchmarks.timing import Row, best_steps, peak_of

Loss = Callable[[Tensor, Tensor], Tensor]
SEED = 0
BATCH = 8
JOINTS = 14
MAPS = 64
RADIUS = 2.5  # pixels: 0.05 times a person
ROUNDS = 12
GIBIBYTES = 2.0
_HEIGHT = 180
_WIDTH = 240
_MARGIN = 4  # rows more that the U-Net needs, which halves three times

_STEP = """
import resource, sys, torch
import metricgrad as mg
from benchmarks.speed_maps import people
torch.set_num_threads(1)
loss = mg.MetricLoss(mg.metric("pck", radius=float(sys.argv[1])))
scores, joints = people()
before = int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize() // 1024
loss(scores, joints).backward()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def people() -> tuple[Tensor, Tensor]:
    """Maps `[8, 14, 64, 64]` and the joints of the people, `[8, 14, 2]`."""
    generator = torch.Generator().manual_seed(SEED)
    scores = torch.randn(BATCH, JOINTS, MAPS, MAPS, generator=generator).requires_grad_()
    return scores, MAPS * torch.rand(BATCH, JOINTS, 2, generator=generator)


def steps_on_images() -> Iterator[Row]:
    """Time of a step with UniLoss and MetricLoss, and memory of MetricLoss for poses."""
    torch.manual_seed(SEED)
    poses = channels_last(SimpleBaseline(JOINTS, width=16))
    images = torch.randn(BATCH, 3, 2 * MAPS, 2 * MAPS)
    pck = mg.metric("pck", radius=RADIUS)
    losses: dict[str, Loss] = {
        "squared error": mg.baselines.HeatmapMSE(),
        "UniLoss": mg.UniLoss(pck, soft_rivals=True),
        "MetricLoss": mg.MetricLoss(pck),
    }
    size = f"{BATCH} x {JOINTS} x {MAPS} x {MAPS}"
    yield from _steps(f"PCK, {size}", poses, images, people()[1], losses, 2.0)
    spent = peak_of(_STEP, RADIUS)
    most = GIBIBYTES * 1024
    claim = f"MetricLoss of PCK, memory, {size}, against {GIBIBYTES:g} GiB"
    yield Row(claim, spent, most, "MiB", spent / most, "at most 1", spent <= most)
    maps = nn.Sequential(channels_last(UNet(width=12)), _Cut())
    images = torch.randn(BATCH, 3, _HEIGHT + _MARGIN, _WIDTH)
    target = torch.randint(CLASSES, (BATCH, _HEIGHT, _WIDTH))
    losses = {
        "cross-entropy": F.cross_entropy,
        "UniLoss": mg.UniLoss("mean_iou"),
        "MetricLoss": mg.MetricLoss("mean_iou"),
    }
    size = f"{BATCH} x {CLASSES} x {_HEIGHT} x {_WIDTH}"
    yield from _steps(f"mean IoU, {size}", maps, images, target, losses, 1.3)


class _Cut(nn.Module):
    """The scores without the rows that only the network needs."""

    def forward(self, scores: Tensor) -> Tensor:
        """Scores `[N, C, 180, 240]`."""
        return scores[..., :_HEIGHT, :]


def _steps(
    task: str,
    model: nn.Module,
    images: Tensor,
    target: Tensor,
    losses: dict[str, Loss],
    factor: float,
) -> Iterator[Row]:
    """A step with UniLoss against one whose gradient is given, and with MetricLoss.

    The first of the losses is the ordinary one.
    """
    optimizer = torch.optim.Adam(model.parameters(), 1e-3, fused=True)
    own, network = best_steps(model, optimizer, (images, target), losses.values(), ROUNDS)
    ordinary, by_metric, both = own
    first = next(iter(losses))
    for name, spent, beside, told in (
        ("UniLoss", by_metric, 0.0, "the network's own"),
        ("MetricLoss", both, ordinary, f"one with {first}"),
    ):
        base = network + beside
        ratio = (network + spent) / base
        claim = f"step with {name} of {task}, against {told}"
        limit = f"at most {factor:g}"
        yield Row(claim, network + spent, base, "ms", ratio, limit, ratio <= factor)
