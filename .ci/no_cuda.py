"""Says whether pip brought CUDA packages along: an error under CI, advice elsewhere.

An open version range lets pip replace a CPU build of torch by the newest one with several GB of
CUDA packages. CI is strict about it. A machine with a GPU may want them, so there it is only said.
"""

import os
import sys
from importlib.metadata import distributions, version

cuda = sorted(
    {
        dist.name
        for dist in distributions()
        if dist.name.lower().startswith(("nvidia-", "cuda-", "triton"))
    }
)
if not cuda:
    print(f"no CUDA package installed (torch {version('torch')})")
    sys.exit(0)

print(f"CUDA packages came with torch {version('torch')}: {', '.join(cuda)}", file=sys.stderr)
print(
    "For a small CPU-only environment: make clean, put a CPU wheel of torch where pip finds it, "
    "make setup.",
    file=sys.stderr,
)
sys.exit("CI" in os.environ)
