"""Memory of a set in chunks: 65,536 images in one step, with the activations of 256.

Both sides are the peak of a fresh process above what it had with the images in memory. The loss is
UniLoss of F1, which needs little itself, and the network has no batch normalisation. Large tensors
get pages of their own (`MALLOC_MMAP_THRESHOLD_`), so that the peak is what was asked for and not
what the allocator could not use again.
"""

from collections.abc import Iterator

from benchmarks.timing import Row, peak_of

IMAGES = 65_536
CHUNK = 256
LIMIT = 1.2
_BYTES_OF_A_SCORE = 4

_STEP = """
import resource, sys, torch
from torch import nn
import metricgrad as mg
images, chunk, whole = map(int, sys.argv[1:])
torch.set_num_threads(1)
torch.manual_seed(0)
def layer(inputs, outputs):
    return nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(4, outputs), nn.ReLU()
model = nn.Sequential(
    *layer(1, 16), *layer(16, 16), nn.MaxPool2d(2), *layer(16, 32),
    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 1), nn.Flatten(0),
)
loss = mg.UniLoss("f1")
step = mg.in_chunks(model, loss, chunk)
def call(x, y):
    value = loss(model(x), y) if whole else step(x, y)
    value.backward()
call(torch.randn(8, 1, 16, 16), torch.arange(8) % 2)
x = torch.randn(images, 1, 16, 16)
y = (torch.rand(images) < 0.1).long()
before = int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize() // 1024
call(x, y)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def chunks() -> Iterator[Row]:
    """A step on all images in chunks, against a plain step on one chunk and the scores of all."""
    pages = {"MALLOC_MMAP_THRESHOLD_": str(1 << 18)}
    ours = peak_of(_STEP, IMAGES, CHUNK, 0, **pages)
    plain = peak_of(_STEP, CHUNK, CHUNK, 1, **pages) + IMAGES * _BYTES_OF_A_SCORE / 2**20
    ratio = ours / plain
    claim = (
        f"in_chunks, memory, a set of {IMAGES:,} images in chunks of {CHUNK}, against a batch of "
        f"{CHUNK} plus the scores"
    )
    yield Row(claim, ours, plain, "MiB", ratio, f"at most {LIMIT}", ratio <= LIMIT)
