"""What a step on the loss takes as the set grows: seconds and memory, each loss in a fresh process.

A step computes the loss of random scores, of which a tenth are positive, and its gradient; the
shortest of up to five counts. Memory is what the steps add to the process at their peak. A loss
whose step takes longer than a minute, or more memory than there is, is not measured on larger sets.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.classification import Settings

_LONGEST = 60.0  # seconds of a step, after which no larger set is tried
_GIB = 12  # of address space beyond what the libraries take

_SCRIPT = """
import json, re, resource, sys, time
import torch
from types import SimpleNamespace
settings = json.loads(sys.argv[1])
size = settings["size"]
torch.set_num_threads(1)
generator = torch.Generator().manual_seed(0)
target = (torch.rand(size, generator=generator) < 0.1).long()
scores = torch.randn(size, generator=generator)
if settings["method"].startswith("libauc"):
    from benchmarks.peers import libauc
    model = torch.nn.Linear(1, 1)
    made = libauc.peer(model, SimpleNamespace(y=target), {**settings, "learning_rate": 0.1})
    loss = lambda s: made.loss(s, target, torch.arange(size))
else:
    from benchmarks.losses import loss as made
    function = made(settings, seed=0)
    loss = lambda s: function(s, target)
small = slice(0, 100)
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
def now():
    return int(re.search(r"VmRSS:\\s+(\\d+)", open("/proc/self/status").read())[1])
used = int(re.search(r"VmSize:\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024
limit = used + settings["gib"] * 2**30
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
open("/proc/self/clear_refs", "w").write("5")  # the peak so far is that of the imports
before = now()
best = float("inf")
for _ in range(5):
    leaf = scores.clone().requires_grad_()
    begin = time.perf_counter()
    loss(leaf).backward()
    best = min(best, time.perf_counter() - begin)
    if best > 2:
        break
print(json.dumps([best, (peak() - before) / 1024]))
"""


def run(
    settings: Settings, seed: int, folder: Path | None, known: list[dict[str, Any]]
) -> dict[str, Any]:
    """Milliseconds and MiB of one loss for every size of the settings, as far as it gets."""
    values: dict[str, float] = {}
    for power in settings["powers"]:
        found = measured({**settings, "size": 10**power, "gib": settings.get("gib", _GIB)})
        if found is None:
            break
        values[f"time_{power}"] = found[0] * 1000
        values[f"memory_{power}"] = found[1]
        if found[0] > _LONGEST / 10:  # a set ten times as large takes ten times as long, or more
            break
    return {"values": values}


def measured(settings: dict[str, Any]) -> tuple[float, float] | None:
    """Seconds and MiB of a step; None if it takes too long or too much memory."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _SCRIPT, json.dumps(settings)],
            capture_output=True,
            text=True,
            timeout=3 * _LONGEST,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None
    if done.returncode:
        if "memory" in done.stderr.lower() or done.returncode < 0:
            return None
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    seconds, memory = json.loads(done.stdout.splitlines()[-1])
    return (seconds, memory) if seconds < _LONGEST else None
