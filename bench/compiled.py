"""Compiled steps inside budgets beside what PyTorch has for it: peaks and times of the same step, all compiled.

    python bench/compiled.py                 the next workload that has lines missing; only those are added
    python bench/compiled.py gpt2-12         this one
    python bench/compiled.py tiny-vit        one that a CPU can take; tiny-unet is another

Peers: plain `torch.compile`; its `activation_memory_budget` from 0.9 to 0.0; every block checkpointed, and every
second; PyTorch's selective checkpointing that keeps products and attention. Lowtide gets budgets from the least that it
names to plain's peak, and the peak of every peer. Each case runs in a process of its own and becomes a line of
`bench/results/compiled.jsonl`; a failure is a line too. The loss is worked out inside; there is no optimizer.
"""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

import lowtide
from models import MODELS, Workload
from models.unet import UNet
from models.vit import VisionTransformer

RESULTS = Path(__file__).parent / "results" / "compiled.jsonl"
WORKLOADS = ("gpt2-12", "vit-large", "resnet50", "unet", "llama-16")
TINY = ("tiny-vit", "tiny-unet")
SHARES = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0)
POINTS = 8  # budgets between the least and plain's peak; a tiny workload gets half of them, and a third of the shares
STEPS = 10
BLOCK = re.compile(r"Block|DecoderLayer|Bottleneck")
KEPT = ("mm", "addmm", "bmm", "baddbmm", "convolution", "_scaled_dot_product_flash_attention")
KEPT += ("_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention")
KEPT += ("_scaled_dot_product_flash_attention_for_cpu",)


class Step(nn.Module):
    """A model with its loss inside."""

    def __init__(self, workload: Workload) -> None:
        super().__init__()
        self.model = workload.model
        self.loss = workload.loss

    def forward(self, **batch: Tensor) -> Tensor:
        return self.loss(self.model(**batch))


def tiny(name: str) -> Workload:
    """Workloads that compile in seconds."""
    if name == "tiny-vit":
        model = VisionTransformer(64, 2, 4, side=32, patch=4, classes=10).train()
        return Workload(model, {"x": torch.randn(16, 3, 32, 32)}, lambda out: out.square().mean())
    return Workload(UNet(2, 8).train(), {"x": torch.randn(2, 3, 32, 32)}, lambda out: out.square().mean())


def blocks(model: nn.Module) -> list[nn.Module]:
    """What is checkpointed: layers of a transformer, bottlenecks of a ResNet, a U-Net's pairs of convolutions."""
    found = [module for module in model.modules() if BLOCK.search(type(module).__name__)]
    return found or [module for module in model.modules() if isinstance(module, nn.Sequential) and len(module) > 1]


def recompute(model: nn.Module, every: int, **how: Any) -> None:
    """Checkpoint every so-manyth block."""
    for block in blocks(model)[::every]:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False, **how)


def compiled(step: Step, case: str) -> Callable[..., Tensor]:
    """The step, compiled as the case says."""
    kind, _, number = case.partition(" ")
    if kind == "lowtide":
        return lowtide.fit(step, memory_budget=int(number), backend="inductor")
    if kind == "budget":
        import torch._functorch.config as functorch

        functorch.activation_memory_budget = float(number)
    if kind == "checkpoint":
        recompute(step.model, int(number))
    if kind == "selective":
        kept = [getattr(torch.ops.aten, name).default for name in KEPT if hasattr(torch.ops.aten, name)]
        recompute(step.model, 1, context_fn=partial(create_selective_checkpoint_contexts, kept))
    return torch.compile(step, dynamic=False)


def measure(name: str, case: str) -> dict[str, Any]:
    """One case: what it held, how long it took, what it promised, and its gradients in one number."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    with device:
        workload = tiny(name) if name.startswith("tiny") else MODELS[name]()
    step = Step(workload)
    call = compiled(step, case)

    def once() -> Tensor:
        step.zero_grad(set_to_none=True)
        loss = call(**workload.batch)
        loss.backward()
        return loss

    torch.manual_seed(1)
    begun = time.perf_counter()
    loss = once().item()
    first = time.perf_counter() - begun
    gradient = sum(p.grad.double().square().sum().item() for p in step.parameters() if p.grad is not None)
    found = {
        "loss": loss,
        "gradient": gradient,
        "first_seconds": round(first, 2),
        **memory(device, step, workload, once),
    }
    found["ms"] = round(statistics.median(timed(device, once) for _ in range(STEPS)), 3)
    fitted = step._compiled_call_impl
    if isinstance(getattr(fitted, "plan", None), lowtide.Plan):
        slots = list(fitted._slots)
        found |= {
            "promised": fitted.plan.total,
            "promised_ms": round(fitted.plan.time / 1e6, 3),
            "reruns": fitted.plan.reruns,
            "plan_seconds": round(sum(slot.planned for slot in slots), 2),
            "compile_seconds": round(sum(slot.compiled for slot in slots), 2),
        }
    return found


def memory(device: torch.device, step: Step, workload: Workload, once: Callable[[], Tensor]) -> dict[str, int]:
    """Bytes at the peak of a step, all of them: by CUDA's allocator, or by what the CPU's gives out."""
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        once()
        torch.cuda.synchronize()
        return {"peak": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved()}
    step.zero_grad(set_to_none=True)
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from allocated import most_allocated

    held = (*step.parameters(), *step.buffers(), *workload.batch.values())
    there = sum(tensor.numel() * tensor.element_size() for tensor in held)
    return {"peak": there + most_allocated(once)}


def timed(device: torch.device, once: Callable[[], Tensor]) -> float:
    """Milliseconds of a step."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    begun = time.perf_counter()
    once()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - begun) * 1e3


def lines() -> list[dict[str, Any]]:
    """What is there already."""
    return [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


def add(name: str, case: str) -> dict[str, Any]:
    """Run a case in a process of its own, and add its line."""
    call = [sys.executable, __file__, "--case", name, case]
    done = subprocess.run(call, capture_output=True, text=True, check=False)
    line: dict[str, Any] = {"workload": name, "case": case, "torch": torch.__version__, "device": device_name()}
    try:
        line |= json.loads(done.stdout.splitlines()[-1])
    except (IndexError, json.JSONDecodeError):
        line["error"] = "".join(done.stderr.strip().splitlines()[-1:])[:300] or f"exit {done.returncode}"
        needed = re.search(r"Raise memory_budget to (\d+)", done.stderr)
        if needed:
            line["needed"] = int(needed[1])
    with RESULTS.open("a") as file:
        file.write(json.dumps(line) + "\n")
    print(json.dumps(line), flush=True)
    return line


def device_name() -> str:
    """What this runs on."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"


def peers_of(name: str) -> list[str]:
    """The cases that Lowtide is compared with."""
    shares = SHARES[2::3] if name.startswith("tiny") else SHARES
    return ["plain", *(f"budget {share}" for share in shares), "checkpoint 1", "checkpoint 2", "selective"]


def missing(name: str, there: list[dict[str, Any]]) -> Iterator[str]:
    """The cases of a workload that have no line yet; those of Lowtide once its peers have theirs."""
    mine = {line["case"]: line for line in there if line["workload"] == name and line["device"] == device_name()}
    peers = peers_of(name)
    yield from (peer for peer in peers if peer not in mine)
    if any(peer not in mine for peer in peers):
        return
    if "lowtide 1000" not in mine:
        yield "lowtide 1000"  # Refused, with the least budget that works.
        return
    least, plain = mine["lowtide 1000"].get("needed", 0), mine["plain"].get("peak", 0)
    points = POINTS // 2 if name.startswith("tiny") else POINTS
    grid = [least + (plain - least) * point // points for point in range(points + 1)]
    peaks = [mine[peer]["peak"] for peer in peers if "peak" in mine[peer] and mine[peer]["peak"] >= least]
    yield from (case for case in (f"lowtide {bytes_}" for bytes_ in sorted({*grid, *peaks})) if case not in mine)


def run(name: str) -> bool:
    """Add the lines of a workload that are missing; whether there were any."""
    added = False
    while cases := list(missing(name, lines())):
        added = True
        for case in cases:
            add(name, case)
    return added


if __name__ == "__main__":
    if sys.argv[1:2] == ["--case"]:
        print(json.dumps(measure(*sys.argv[2:4])))
    elif sys.argv[1:]:
        if sys.argv[1] not in WORKLOADS + TINY:
            sys.exit(f"{sys.argv[1]!r} is no workload; they are: {', '.join(WORKLOADS + TINY)}")
        run(sys.argv[1])
    else:
        next(name for name in (*WORKLOADS, None) if name is None or run(name))
