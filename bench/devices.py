"""Lowtide and its eager peers on the GPU that is here: promised and measured memory and time.

    PYTHONPATH=src python bench/devices.py                                   the names of the workloads
    PYTHONPATH=src python bench/devices.py resnet50 --out FILE               every case of one workload
    PYTHONPATH=src python bench/devices.py resnet50 --out FILE --seconds 500 as many as begin within this time
    PYTHONPATH=src python bench/devices.py unet --tiny --out FILE            small, on the CPU too

Appends a JSON line for each case to FILE. Cases that have a line in FILE, or in a file given by --done, are not run
again, so that calls go on where others stopped. A case that fails is a line with `error`. Tables: `devices_table.py`.

A step is forward, loss, backward (the output held all through), AdamW, zero_grad. Bytes are those of the caching
allocator (on the CPU, of all tensors). Cases, in this order: the range of budgets; plain training; every distinct
operator measured; nothing rerun against plain in turns; peers; six budgets from the least to the plain step's; a budget
at each peer's peak; bit-equality; half of the memory that the plain step takes; plain once more, to see how the machine
has drifted.
"""

from __future__ import annotations

import argparse
import copy
import functools
import gc
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # What deterministic algorithms ask for.

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

import lowtide
from lowtide.measure.allocated import peak_of
from models import MODELS, Workload, googlenet, images, inception, text
from models.language import gpt2, llama
from models.resnet import ResNet
from models.unet import UNet
from models.vgg import VGG
from models.vit import Block, VisionTransformer

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda", 0) if CUDA else torch.device("cpu")
FAILURES = (
    *(lowtide.LowtideError, ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, RuntimeError),
    *(TypeError, ValueError),
)
SHARES = (0, 0.2, 0.4, 0.6, 0.8, 1)
# Modules that people checkpoint, by the names of their classes.
BLOCKS = {
    *("Bottleneck", "DenseLayer", "_DenseLayer", "_Transition", "Inception", "Branches", "Pyramid", "ASPP", "Pool"),
    *("InceptionA", "InceptionB", "InceptionC", "InceptionD", "InceptionE", "Segment", "Block", "GPT2Block"),
    *("LlamaDecoderLayer", "T5Block"),
}


class Segment(nn.Sequential):
    """Layers of a network that has no blocks, from one pooling to the next."""


class Blocks(nn.Module):
    """A GPT without embedding and head."""

    def __init__(self, layers: int, width: int, heads: int) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks(x)


@dataclass(frozen=True)
class Case:
    """One workload.

    make       the thing itself
    tiny       the same kind of thing, for a CPU and a test
    autocast   whether the call runs in bfloat16 by autocast
    recorded   peaks beyond static in MiB that other programs reached on this, to be beaten there: [name, MiB, extra]
    """

    make: Callable[[], Workload]
    tiny: Callable[[], Workload]
    autocast: bool = False
    recorded: tuple[tuple[str, int, float], ...] = ()


def segmented(model: nn.Module) -> nn.Module:
    """A VGG whose layers are cut into segments after each pooling."""
    parts: list[nn.Module] = []
    layers: list[nn.Module] = []
    for layer in model.features:
        layers.append(layer)
        if isinstance(layer, nn.MaxPool2d):
            parts.append(Segment(*layers))
            layers = []
    model.features = nn.Sequential(*parts, *layers)
    return model


def torchvision_or(name: str, own: Callable[[], nn.Module], **options: Any) -> Callable[[], nn.Module]:
    """torchvision's model where the package is there, else the one that is written out in `models`."""

    def make() -> nn.Module:
        try:
            import torchvision
        except ImportError:
            return own()
        found = torchvision.models
        for part in name.split("."):
            found = getattr(found, part)
        return found(weights=None, **options)

    return make


def timm_or(name: str, own: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """timm's model where the package is there."""

    def make() -> nn.Module:
        try:
            import timm
        except ImportError:
            return own()
        return timm.create_model(name)

    return make


def classifier(name: str, own: str, batch: int, side: int = 224, **options: Any) -> Callable[[], Workload]:
    """A classifier of torchvision's in single precision."""
    model = torchvision_or(name, lambda: MODELS_ALONE[own](), **options)
    loss = {"googlenet": googlenet.loss, "inception_v3": inception.loss}.get(name, cross_entropy)
    return images(lambda: segmented(model()) if "vgg" in name else model(), batch, side, loss=loss)


def _of(make: Callable[[], Workload]) -> Callable[[], nn.Module]:
    return lambda: make().model


# The models of `models` without a batch of their size.
MODELS_ALONE: dict[str, Callable[[], nn.Module]] = {name: _of(make) for name, make in MODELS.items()}


def deeplab() -> Workload:
    """Pixels of 16 images."""
    model = torchvision_or("segmentation.deeplabv3_resnet50", MODELS_ALONE["deeplab-v3"], weights_backbone=None)
    made = images(model, 16, 512, classes=21, dense=True)()
    labels = torch.randint(21, (16, 512, 512))
    return Workload(
        made.model, made.batch, lambda out: cross_entropy(out["out"] if isinstance(out, dict) else out, labels)
    )


def blocks(layers: int, width: int, heads: int, batch: int, length: int) -> Callable[[], Workload]:
    """Blocks of a GPT on what an embedding would have made."""

    def make() -> Workload:
        model = Blocks(layers, width, heads).to(torch.bfloat16).train()
        return Workload(
            model, {"x": torch.randn(batch, length, width).bfloat16()}, lambda out: out.float().square().mean()
        )

    return make


def vit(batch: int) -> Callable[[], Workload]:
    """ViT-L in bfloat16."""
    return images(timm_or("vit_large_patch16_224", MODELS_ALONE["vit-large"]), batch, dtype=torch.bfloat16)


def tiny_vgg() -> nn.Module:
    """Two segments and one layer on top."""
    model = VGG((8, 0, 16, 0), norm=True, classes=10)
    model.classifier = nn.Linear(16 * 7 * 7, 10)
    return segmented(model)


TINY_IMAGES = images(lambda: ResNet((1, 1, 1, 1), 10), 4, 64, classes=10)
TINY_VGG = images(tiny_vgg, 2, 32, classes=10)
TINY_UNET = images(lambda: UNet(2, 8), 4, 64, classes=2, dense=True)
TINY_VIT = images(lambda: VisionTransformer(64, 4, 4, 64, 16, 10), 8, 64, classes=10)
TINY_GPT = text(lambda: gpt2(3, 64, 4), 50257, 2, 32)
TINY_LLAMA = text(lambda: llama(3, 64, 128, 4, 2), 32000, 2, 32)
RESNET_RECORD = (("rotor", 4646, 4.5), ("rotor", 3545, 10.3), ("rotor", 2789, 16.8), ("rotor", 2349, 22.1))
GPT_RECORD = (
    *(("rotor", 5493, 6.4), ("rotor", 4434, 10.5), ("rotor", 3054, 19.3), ("rotor", 1643, 25.8), ("rotor", 1161, 28.4)),
)
CASES = {
    "resnet50": Case(classifier("resnet50", "resnet50", 128), TINY_IMAGES),
    "resnet50-amp": Case(classifier("resnet50", "resnet50", 128), TINY_IMAGES, autocast=True),
    "resnet50-64": Case(classifier("resnet50", "resnet50", 64), TINY_IMAGES, recorded=RESNET_RECORD),
    "resnet152": Case(classifier("resnet152", "resnet152", 128), TINY_IMAGES),
    "vgg19-bn": Case(classifier("vgg19_bn", "vgg19-bn", 128), TINY_VGG),
    "densenet161": Case(classifier("densenet161", "densenet161", 64), TINY_IMAGES),
    "googlenet": Case(classifier("googlenet", "googlenet", 256, init_weights=False), TINY_IMAGES),
    "inception-v3": Case(classifier("inception_v3", "inception-v3", 128, 299, init_weights=False), TINY_IMAGES),
    "deeplab-v3": Case(deeplab, TINY_UNET),
    "unet": Case(MODELS["unet"], TINY_UNET),
    "unet-amp": Case(MODELS["unet"], TINY_UNET, autocast=True),
    "vit-large": Case(vit(128), TINY_VIT),
    "gpt2-12": Case(MODELS["gpt2-12"], TINY_GPT),
    "llama-16": Case(MODELS["llama-16"], TINY_LLAMA),
    "t5-large": Case(MODELS["t5-large"], TINY_GPT),
    "gpt-blocks-12": Case(blocks(12, 1024, 16, 16, 1024), blocks(2, 32, 4, 2, 16), recorded=GPT_RECORD),
    "gpt-blocks-6": Case(
        blocks(6, 1024, 16, 16, 1024),
        blocks(2, 32, 4, 2, 16),
        recorded=(("Rockmate", 1520, 28.0), ("Rockmate", 1327, 65.0)),
    ),
}


@dataclass
class Trial:
    """A model with its optimizer, ready to train."""

    workload: Workload
    optimizer: torch.optim.Optimizer
    autocast: bool

    @property
    def model(self) -> nn.Module:
        return self.workload.model

    def precision(self) -> Any:
        return torch.autocast(DEVICE.type, torch.bfloat16) if self.autocast else nullcontext()

    def forward_backward(self) -> Tensor:
        """The loss, with gradients made; the model's output is held all through, as training loops do."""
        with self.precision():
            output = self.model(**self.workload.batch)
            loss = self.workload.loss(output)
        loss.backward()
        return loss.detach()

    def step(self) -> None:
        self.forward_backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def trial(case: Case, tiny: bool) -> Trial:
    """The workload from a fixed seed; nothing of the one before is left."""
    gc.collect()
    torch._dynamo.reset()
    if CUDA:
        torch.cuda.empty_cache()
    torch.manual_seed(0)
    with DEVICE:
        workload = (case.tiny if tiny else case.make)()
    workload.model.train()
    optimizer = torch.optim.AdamW(workload.model.parameters(), lr=1e-4, fused=CUDA)
    return Trial(workload, optimizer, case.autocast)


class Stopwatch:
    """Seconds between two places of a program: by events on the GPU, else by the clock."""

    def __init__(self) -> None:
        self.marks: list[Any] = []

    def mark(self) -> None:
        if CUDA:
            self.marks.append(torch.cuda.Event(enable_timing=True))
            self.marks[-1].record()
        else:
            self.marks.append(time.perf_counter())

    def milliseconds(self, first: int, last: int) -> float:
        if not CUDA:
            return 1e3 * (self.marks[last] - self.marks[first])
        self.marks[last].synchronize()
        return float(self.marks[first].elapsed_time(self.marks[last]))


def timed(trial: Trial, steps: int) -> tuple[list[float], list[float]]:
    """Milliseconds of so many whole steps one after another, and of their forward and backward."""
    watch = Stopwatch()
    for _ in range(steps):
        watch.mark()
        trial.forward_backward()
        watch.mark()
        trial.optimizer.step()
        trial.optimizer.zero_grad()
    watch.mark()
    begins = range(0, 2 * steps, 2)
    return [watch.milliseconds(i, i + 2) for i in begins], [watch.milliseconds(i, i + 1) for i in begins]


def measured(trial: Trial, *, warm: int = 4) -> dict[str, Any]:
    """Peak and time of a step, once everything has settled."""
    for _ in range(warm):
        trial.step()
    holding = [trial.model, trial.optimizer, trial.workload.batch]
    static = torch.cuda.memory_allocated() if CUDA else None
    peaks = [peak_of(DEVICE, trial.step, holding=holding) for _ in range(2 if CUDA else 1)]
    reserved = torch.cuda.max_memory_reserved() if CUDA else 0
    once = timed(trial, 1)[0][0]
    whole, passes = timed(trial, max(3, min(20, int(3000 / max(1.0, once)))))
    return {
        "static": static,
        "peak": max(peaks),
        "reserved": reserved,
        "ms": round(statistics.median(whole), 3),
        "ms_passes": round(statistics.median(passes), 3),
        "ms_passes_least": round(min(passes), 3),
        "steps": len(whole),
    }


def wrap_blocks(model: nn.Module, every: int) -> int:
    """Have each `every`-th block checkpointed; how many are."""
    found: list[nn.Module] = []

    def look(module: nn.Module) -> None:
        for child in module.children():
            if type(child).__name__ in BLOCKS:
                found.append(child)
            else:
                look(child)

    look(model)
    if isinstance(model, UNet):
        found = [model.first, *model.down, *model.across]
    chosen = found[::every]
    for block in chosen:
        block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)
    return len(chosen)


@contextmanager
def offloading() -> Iterator[None]:
    """All that autograd saves goes to the CPU and comes back."""
    with torch.autograd.graph.save_on_cpu(pin_memory=CUDA):
        yield


class Bench:
    """The cases of one workload."""

    def __init__(
        self, name: str, tiny: bool, known: dict[str, dict[str, Any]], write: Callable[[dict[str, Any]], None]
    ) -> None:
        self.name, self.tiny, self.known, self.write = name, tiny, known, write
        self.case = CASES[name]
        self.lost = False  # Whether the GPU takes no more calls from this process.

    def cases(self) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
        """Names and what to do, those that depend on lines of others once these are there."""
        yield "range", self.range
        yield "plain", lambda: measured(self.trial())
        yield "measuring", self.measuring
        yield "keep-all", self.keep_all
        for every, name in (
            (1, "every block"),
            (2, "every second block"),
            (3, "every third block"),
            (4, "every fourth block"),
        ):
            yield name, functools.partial(self.checkpointed, every)
        yield "save_on_cpu", self.offloaded
        bounds = self.known.get("range", {})
        if "least" in bounds:
            for share in SHARES:
                budget = int(bounds["least"] + share * (bounds["plain"] - bounds["least"]))
                yield f"budget {share}", functools.partial(self.fitted, budget)
        for name in ("every block", "every second block", "every third block", "every fourth block", "save_on_cpu"):
            if "peak" in self.known.get(name, {}):
                yield f"at {name}", functools.partial(self.fitted, self.known[name]["peak"])
        static = self.known.get("plain", {}).get("static")
        for program, mebibytes, extra in self.case.recorded if static is not None and not self.tiny else ():
            yield (
                f"at {program} {mebibytes}",
                functools.partial(self.fitted, static + mebibytes * 2**20, recorded=extra),
            )
        if "least" in bounds:
            yield "exact", functools.partial(self.exact, (bounds["least"] + bounds["plain"]) // 2)
            if CUDA:
                yield "half the memory", functools.partial(self.half, bounds["least"])
        yield "plain again", lambda: measured(self.trial())

    def run(self, until: float) -> list[str]:
        """Run what has no line yet; the names of what is left when time is up."""
        done: set[str] = set()
        while True:
            missing = [(name, do) for name, do in self.cases() if name not in self.known and name not in done]
            if not missing:
                return []
            if time.monotonic() > until or self.lost:
                return [name for name, _ in missing]
            name, do = missing[0]
            done.add(name)
            self.known[name] = self.line(name, do)
            self.write(self.known[name])

    def line(self, name: str, do: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        begun = time.monotonic()
        try:
            found = do()
        except FAILURES as error:
            where = [line.strip() for line in traceback.format_exc().splitlines()[-4:-1]]
            found = {"error": f"{type(error).__name__}: {error}"[:500], "at": where}
            self.lost = isinstance(error, torch.AcceleratorError) and not isinstance(error, torch.OutOfMemoryError)
        return {
            "bench": "devices",
            "workload": self.name,
            "case": name,
            "tiny": self.tiny,
            "command": f"PYTHONPATH=src python bench/devices.py {self.name}{' --tiny' if self.tiny else ''}",
            **SETTING,
            "precision": "bf16 autocast" if self.case.autocast else "the model's, TF32 allowed",
            "optimizer": f"AdamW, fused={CUDA}",
            **found,
            "seconds": round(time.monotonic() - begun, 1),
        }

    def trial(self) -> Trial:
        return trial(self.case, self.tiny)

    def plan(self, trial: Trial, **options: Any) -> lowtide.Plan:
        with trial.precision():
            return lowtide.plan(
                trial.model,
                lowtide.Batch(**trial.workload.batch),
                optimizer=trial.optimizer,
                costs="measured",
                **options,
            )

    def range(self) -> dict[str, Any]:
        """The least budget and the plain step's, as planned."""
        trial = self.trial()
        facts = {
            "source": type(trial.model).__module__,
            "batch": {key: [*value.shape, str(value.dtype)] for key, value in trial.workload.batch.items()},
            "parameters": sum(p.numel() for p in trial.model.parameters()),
        }
        plain = self.plan(trial, memory_budget="100TB", planner="keep_all")
        try:
            least = self.plan(trial, memory_budget=0).total
        except lowtide.BudgetTooSmall as error:
            least = error.needed
        return {**facts, "least": least, "plain": plain.total, "promised_ms": plain.time / 1e6, "costs": plain.costs}

    def measuring(self) -> dict[str, Any]:
        """How long it takes to measure every operator, from nothing and with the costs on disk."""
        trial = self.trial()
        lowtide.measure.clear()
        seconds = []
        for _ in range(2):
            torch._dynamo.reset()
            begun = time.monotonic()
            plan = self.plan(trial, memory_budget="100TB", planner="keep_all")
            seconds.append(time.monotonic() - begun)
        return {
            "ops": len(plan.runs),
            "seconds_measuring": round(seconds[0] - seconds[1], 2),
            "seconds_without": round(seconds[1], 2),
            "promised_ms": plan.time / 1e6,
            "costs": plan.costs,
        }

    def keep_all(self) -> dict[str, Any]:
        """The plain step and one that reruns nothing, by turns on one model."""
        trial = self.trial()
        with trial.precision():
            lowtide.fit(trial.model, memory_budget="100TB", planner="keep_all", optimizer=trial.optimizer)
        fitted = trial.model._compiled_call_impl
        for stand_in in (fitted, None):
            trial.model._compiled_call_impl = stand_in
            for _ in range(4):
                trial.step()
        times: dict[str, list[float]] = {"plain": [], "fitted": []}
        peaks: dict[str, int] = {}
        turns = 3 if self.tiny else 12
        for _ in range(turns):
            for name, stand_in in (("plain", None), ("fitted", fitted)):
                trial.model._compiled_call_impl = stand_in
                times[name] += timed(trial, 1)[0]
        holding = [trial.model, trial.optimizer, trial.workload.batch]
        for name, stand_in in (("plain", None), ("fitted", fitted)):
            trial.model._compiled_call_impl = stand_in
            peaks[name] = peak_of(DEVICE, trial.step, holding=holding)
        medians = {name: statistics.median(found) for name, found in times.items()}
        return {
            "peaks": peaks,
            "ms_by_name": medians,
            "overhead": round(medians["fitted"] / medians["plain"] - 1, 5),
            "peak_difference": peaks["fitted"] - peaks["plain"],
        }

    def checkpointed(self, every: int) -> dict[str, Any]:
        trial = self.trial()
        count = wrap_blocks(trial.model, every)
        if not count:
            raise LookupError("no module of this model is known as a block")
        return {"blocks": count, **measured(trial)}

    def offloaded(self) -> dict[str, Any]:
        trial = self.trial()
        plain = trial.forward_backward

        def forward_backward() -> Tensor:
            with offloading():
                return plain()

        trial.forward_backward = forward_backward  # type: ignore[method-assign]
        return measured(trial, warm=2)

    def fitted(self, budget: int, recorded: float | None = None) -> dict[str, Any]:
        """Trained within a budget, held against the promise."""
        trial = self.trial()
        begun = time.monotonic()
        with trial.precision():
            lowtide.fit(trial.model, memory_budget=budget, optimizer=trial.optimizer, costs="measured", check=True)
        trial.step()
        seconds = time.monotonic() - begun
        first = trial.model._compiled_call_impl.plan
        found = measured(trial, warm=3)
        plan, check = trial.model._compiled_call_impl.plan, lowtide.check(trial.model)
        return {
            "budget": budget,
            "recorded_extra_percent": recorded,
            "first_step_seconds": round(seconds, 2),
            "promised_peak": plan.total,
            "promised_ms": plan.time / 1e6,
            "bound_ms": plan.bound.time / 1e6,
            "promised_static": plan.static,
            "reruns": plan.reruns,
            "ops": len(set(plan.runs)),
            "narrowest": plan.narrowest,
            "planned_again": plan is not first,
            "first_promised_peak": first.total,
            "checked": [
                {"peak": step.peak, "total": step.total, "reserved": step.reserved, "ms": step.ns / 1e6}
                for step in check.steps
            ],
            "costs": plan.costs,
            **found,
            "kept": found["peak"] <= budget,
        }

    def exact(self, budget: int) -> dict[str, Any]:
        """Loss, gradients and buffers of one step: bit for bit where PyTorch repeats itself, else within its noise."""
        facts: dict[str, Any] = {"budget": budget}
        for word, deterministic in (("deterministic", True), ("free", False)):
            torch.use_deterministic_algorithms(deterministic, warn_only=True)
            try:
                trial = self.trial()
                before = {name: buffer.clone() for name, buffer in trial.model.named_buffers()}
                plain, again = self.once(trial, before), self.once(trial, before)
                with trial.precision():
                    lowtide.fit(trial.model, memory_budget=budget, optimizer=trial.optimizer, costs="measured")
                fitted = self.once(trial, before)
                facts[word] = {
                    "plain_repeats": differing(plain, again) == [],
                    "differing": differing(plain, fitted)[:10],
                    "tensors": len(plain),
                    "noise": distance(plain, again),
                    "distance": distance(plain, fitted),
                    "reruns": trial.model._compiled_call_impl.plan.reruns,
                }
            finally:
                torch.use_deterministic_algorithms(False)
        return facts

    def once(self, trial: Trial, buffers: dict[str, Tensor]) -> dict[str, Tensor]:
        """What one forward and backward pass leaves, from a fixed state."""
        with torch.no_grad():
            for name, buffer in trial.model.named_buffers():
                buffer.copy_(buffers[name])
        trial.optimizer.zero_grad()
        torch.manual_seed(1)
        found = {"loss": trial.forward_backward().cpu()}
        found |= {name: p.grad.cpu() for name, p in trial.model.named_parameters() if p.grad is not None}
        found |= {f"buffer {name}": buffer.cpu().clone() for name, buffer in trial.model.named_buffers()}
        trial.optimizer.zero_grad()
        return found

    def half(self, least: int) -> dict[str, Any]:
        """Half of what the plain step takes is all that there is: plain training fails there, and this trains."""
        whole = torch.cuda.get_device_properties(DEVICE).total_memory
        plain = self.known.get("plain", {}).get("peak") or self.known["range"]["plain"]
        limit = max(plain // 2, int(1.1 * least))
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction(limit / whole)
        try:
            try:
                trial = self.trial()
                trial.step()
                trial.step()
                plain_fits = True
            except torch.OutOfMemoryError:
                plain_fits = False
            trial = self.trial()
            budget = int(0.93 * limit)
            with trial.precision():
                lowtide.fit(trial.model, memory_budget=budget, optimizer=trial.optimizer, costs="measured")
            for _ in range(3):
                trial.step()
            return {"limit": limit, "plain_fits": plain_fits, "budget": budget, **measured(trial, warm=1)}
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)


def differing(one: dict[str, Tensor], other: dict[str, Tensor]) -> list[str]:
    """Names of tensors that are not the same to the last bit."""
    return [name for name in one if not torch.equal(one[name].nan_to_num(), other[name].nan_to_num())]


def distance(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """The largest difference between two tensors of a name, as a share of their size."""
    shares = [0.0]
    for name, tensor in one.items():
        if tensor.is_floating_point() and tensor.numel():
            a, b = tensor.double(), other[name].double()
            shares.append(float((a - b).norm() / max(float(a.norm()), 1e-30)))
    return max(shares)


def version_of(package: str) -> str | None:
    """The version of a package that may be there."""
    import importlib.metadata

    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def commit() -> str | None:
    """The commit that is checked out, where there is one."""
    found = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return found.stdout.strip() or None


SETTING = {
    "device": torch.cuda.get_device_name() if CUDA else "cpu",
    "cuda": torch.version.cuda,
    "python": platform.python_version(),
    "commit": commit(),
    **{package: version_of(package) for package in ("torch", "torchvision", "timm", "transformers", "numba")},
}


def lines_of(paths: list[Path], name: str, tiny: bool) -> dict[str, dict[str, Any]]:
    """The lines of this workload that are there, the last of a case counting."""
    rows = [json.loads(line) for path in paths if path.exists() for line in path.read_text().splitlines()]
    return {row["case"]: row for row in rows if row["workload"] == name and row["tiny"] == tiny}


def main() -> None:
    """Add the lines that are missing."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("workload", nargs="?", choices=CASES)
    parser.add_argument("--out", type=Path, help="where lines are added")
    parser.add_argument("--done", type=Path, action="append", default=[], help="more lines that need not be made")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no case after this time")
    parser.add_argument("--again", action="store_true", help="run cases again whose line is an error")
    parser.add_argument("--tiny", action="store_true", help="small models")
    asked = parser.parse_args()
    if asked.workload is None or asked.out is None:
        print("\n".join(CASES))
        return
    until = time.monotonic() + asked.seconds
    torch.set_float32_matmul_precision("high")
    known = lines_of([*asked.done, asked.out], asked.workload, asked.tiny)
    if asked.again:
        known = {name: row for name, row in known.items() if "error" not in row}

    def write(row: dict[str, Any]) -> None:
        with asked.out.open("a") as file:
            file.write(json.dumps(row) + "\n")
        shown = {key: row[key] for key in ("case", "peak", "ms", "promised_peak", "promised_ms", "error") if key in row}
        print(json.dumps(shown), flush=True)

    left = Bench(asked.workload, asked.tiny, copy.copy(known), write).run(until)
    print(f"left: {', '.join(left)}" if left else "nothing is left", file=sys.stderr)


if __name__ == "__main__":
    main()
