"""How far estimated and measured costs are from the steps that they are of, on the device that is here.

    PYTHONPATH=src python bench/estimates.py >> bench/results/estimates.jsonl       all models
    PYTHONPATH=src python bench/estimates.py vgg19 unet                             these

For each model a JSON line: forward and backward of plain PyTorch (median of several; on one thread, the time that the
thread ran), what the roofline and what measured costs promise for the same step, and how long measuring took.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lowtide.fitted import Settings, capture_call
from lowtide.measure.cache import Cache
from lowtide.measure.clock import clock_of
from lowtide.measure.costs import Estimated, Measured
from lowtide.measure.signature import signature
from lowtide.planners import keep_all
from lowtide.planning import plan_step
from models.densenet import densenet161
from models.language import gpt2, llama, tokens
from models.resnet import resnet50
from models.unet import UNet
from models.vgg import vgg19
from models.vit import vit_large

STEPS = 9


def images(model: Callable[[], nn.Module], batch: int, side: int) -> Callable[[], tuple[nn.Module, dict[str, Tensor]]]:
    """A model of images."""
    return lambda: (model(), {"x": torch.randn(batch, 3, side, side)})


def text(model: Callable[[], nn.Module], words: int, batch: int, length: int) -> Callable[[], tuple[nn.Module, Any]]:
    """A language model, which works out its loss itself."""
    return lambda: (model(), tokens(words, batch, length))


CUDA = torch.cuda.is_available()
BATCH = 32 if CUDA else 2
MODELS = {
    "resnet50": images(resnet50, BATCH, 224),
    "vgg19": images(vgg19, BATCH, 224),
    "densenet161": images(densenet161, BATCH, 128),
    "unet": images(UNet, max(1, BATCH // 2), 256),
    "vit-large": images(vit_large, BATCH, 224),
    "gpt2-4": text(lambda: gpt2(4, 512, 8), 50257, BATCH, 256),
    "llama-4": text(lambda: llama(4, 512, 1408, 8, 4), 32000, BATCH, 512),
}


def clocked(model: nn.Module, batch: dict[str, Any]) -> float:
    """Milliseconds of forward and backward, the loss left out where it is not the model's own."""
    timer = time.perf_counter if CUDA or torch.get_num_threads() > 1 else time.thread_time
    times = []
    for _ in range(STEPS):
        model.zero_grad()
        begun = timer()
        output = model(**batch)
        loss = output.loss if hasattr(output, "loss") else output
        loss.backward(None if loss.numel() == 1 else torch.ones_like(loss))
        if CUDA:
            torch.cuda.synchronize()
        times.append(1e3 * (timer() - begun))
    return statistics.median(times[2:])


def line(name: str) -> dict[str, Any]:
    """One model's line."""
    device = torch.device("cuda" if CUDA else "cpu")
    with device:
        model, batch = MODELS[name]()
    model.train()
    clock = clock_of(device)
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        measured = Measured(clock, cache=Cache(Path(folder) / "costs.sqlite"))
        seconds = []

        def price(captured: Any) -> Any:
            begun = time.perf_counter()
            try:
                return measured(captured)
            finally:
                seconds.append(time.perf_counter() - begun)

        for word, pricing in (("estimated", Estimated()), ("measured", price)):
            torch._dynamo.reset()
            settings = Settings(
                plan=partial(plan_step, budget=1 << 60, planner=keep_all.solve),
                planner=keep_all.solve,
                optimizer=None,
                loss_inside=None,
                max_shapes=1,
                price=pricing,
            )
            reached = capture_call(model, (), batch, settings)
            found[f"{word}_ms"] = round(sum(op.ns for op in reached.joined.ops) / 1e6, 3)
            found["costs"] = reached.costs
    calls = [signature(action) for graph in reached.graphs for action in graph.actions if signature(action)]
    plain = clocked(model, batch)
    return {
        "bench": "estimates",
        "command": f"PYTHONPATH=src python bench/estimates.py {name}",
        "torch": torch.__version__,
        "device": clock.name,
        "threads": torch.get_num_threads(),
        "model": name,
        "shapes": {key: list(tensor.shape) for key, tensor in batch.items()},
        "calls": len(calls),
        "distinct": len(set(calls)),
        "measuring_seconds": round(sum(seconds), 2),
        "plain_ms": round(plain, 3),
        **found,
        "estimated_of_plain": round(found["estimated_ms"] / plain, 3),
        "measured_of_plain": round(found["measured_ms"] / plain, 3),
    }


if __name__ == "__main__":
    for name in sys.argv[1:] or MODELS:
        print(json.dumps(line(name)), flush=True)
