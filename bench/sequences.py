"""Are random models under random valid sequences exact, and does memory hold what the referee said, to the byte?

    python bench/sequences.py FIRST LAST >> bench/results/sequences.jsonl

The cases of tests/test_emission.py, for seeds FIRST to LAST - 1. One line for each that fails, and one at the end.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from lowtide.capture import joint
from test_emission import check


def main() -> None:
    """Print the lines."""
    first, last = map(int, sys.argv[1:])
    torch.set_num_threads(1)
    joint.PIECES = 10**9
    start, steps, failed = time.monotonic(), 0, 0
    command = f"python bench/sequences.py {first} {last}"
    for seed in range(first, last):
        joint.LEAST_HANDED_OVER = (1, 300, 10**9)[seed % 3]
        try:
            steps += check(seed)
        except AssertionError as error:
            failed += 1
            print(json.dumps({"bench": "sequences", "seed": seed, "failed": str(error)[:2000]}), flush=True)
    line = {
        "bench": "sequences",
        "command": command,
        "torch": torch.__version__,
        "models": last - first,
        "steps": steps,
        "failed": failed,
        "seconds": round(time.monotonic() - start),
    }
    print(json.dumps(line))


if __name__ == "__main__":
    main()
