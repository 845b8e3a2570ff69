"""Capture the training steps of `models` on tensors without data, with the estimated costs of an H100.

    python bench/capture.py              every model
    python bench/capture.py vgg19 unet   these

Keeps each as `bench/programs/NAME.txt.gz` and prints a JSON line: how large it is, how long it took, what the plain
step's peak and time would be.
"""

from __future__ import annotations

import json
import sys
import time
from functools import partial

import torch

import programs
from lowtide import referee
from lowtide.fitted import Settings, capture_call
from lowtide.measure.roofline import H100
from lowtide.planners import keep_all
from lowtide.planning import plan_step
from models import MODELS

SETTINGS = Settings(
    plan=partial(plan_step, budget=1 << 60, planner=keep_all.solve),
    planner=keep_all.solve,
    optimizer=None,
    loss_inside=None,
    max_shapes=1,
    device=H100,
)


def capture(name: str) -> dict:
    """Capture one training step and keep it; what there is to say about it."""
    start = time.perf_counter()
    with torch.device("meta"):
        workload = MODELS[name]()
    reached = capture_call(workload.model, (), workload.batch, SETTINGS)
    program = reached.joined
    seconds = time.perf_counter() - start
    outcome = referee.run(program, range(len(program.ops)))
    return {
        "program": name,
        "torch": torch.__version__,
        "ops": len(program.ops),
        "values": len(program.values),
        "static_bytes": reached.held.static,
        "peak": outcome.peak,
        "narrowest": program.ops[outcome.at].name,
        "ms": round(outcome.time / 1e6, 3),
        "file_bytes": programs.save(name, program),
        "seconds": round(seconds, 1),
    }


if __name__ == "__main__":
    for name in sys.argv[1:] or MODELS:
        print(json.dumps(capture(name)), flush=True)
