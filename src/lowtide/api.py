"""What users call. Only this module and `fitted` know the order of the rooms."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import nn

from lowtide import batches
from lowtide import budget as budgets
from lowtide.batches import Batches
from lowtide.captured import Captured
from lowtide.check import Check
from lowtide.compiled_fit import CompiledCapturing, CompiledFitted, plan_compiled
from lowtide.compiled_plan import Planning
from lowtide.device import Device, named, resembling
from lowtide.errors import LowtideError
from lowtide.fitted import Fitted, Settings, capture_call
from lowtide.frontier import Frontier
from lowtide.measure.clock import clock_of
from lowtide.measure.costs import Estimated, Measured
from lowtide.measure.gauge import gauge_of
from lowtide.plan import Plan
from lowtide.planners import greedy
from lowtide.planners.registry import PLANNERS
from lowtide.planning import Reached, checked, plan_curve, plan_step

Model = TypeVar("Model", bound=nn.Module)


class Batch:
    """What a model is called with, where that is arguments and keywords both.

    >>> Batch(torch.ones(2), labels=torch.zeros(2)).kwargs
    {'labels': tensor([0., 0.])}
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.args = args
        self.kwargs = kwargs


DEFAULT_PLANNER = "best"
DeviceLike = str | Device | Mapping[str, object]


def fit(
    model: Model,
    *,
    memory_budget: int | str,
    batch: Any = None,
    optimizer: torch.optim.Optimizer | None = None,
    backend: str = "eager",
    planner: str = DEFAULT_PLANNER,
    loss_inside: bool | None = None,
    max_shapes: int = 16,
    costs: str | None = None,
    check: bool | None = None,
) -> Model:
    """Train `model` inside `memory_budget` bytes from now on; the same object comes back.

    The budget is the peak of all tensor memory on the model's device during a training step: parameters, gradients,
    buffers, the batch, activations, and what `optimizer` holds from its first step on. Loss, gradients, buffers and
    random state stay what they would be, bit for bit. The step is planned at once when `batch` is given, and otherwise
    at the first training call; a budget that cannot be met raises BudgetTooSmall, which names the least that can. In
    eval mode and under `torch.no_grad` the model runs as it always did.

    memory_budget   bytes, "8GB", "8GiB", "80%" of the device, or "auto"
    batch           what the model is called with: a tuple of arguments, a dict of keywords, a Batch of both, or the
                    one argument
    optimizer       the optimizer that will step the model
    backend         "eager": the kernels of eager PyTorch; "inductor": the code that torch.compile makes, held to the
                    budget by what that code holds (in eval mode and without gradients, torch.compile as it is)
    planner         who plans: one of PLANNERS
    loss_inside     whether the model returns its loss; None: it does where an output is a single number
    max_shapes      how many shapes of input are kept planned
    costs           what the plan goes by: "measured", operator by operator on the model's device, or "estimated" from
                    arithmetic and memory traffic; None: measured on a GPU, estimated on the CPU
    check           whether the first steps of each plan are measured and held against its promise (`lowtide.check`
                    shows it), and planned again, tighter, where they exceed the budget; None: on a GPU, where it costs
                    nothing. It begins the allocator's peaks anew in those steps

    >>> model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    >>> model = fit(model, memory_budget="1MiB")
    >>> model(torch.randn(8, 64)).sum().backward()
    """
    settings = _settings(model, memory_budget, optimizer, backend, planner, loss_inside, max_shapes, costs, within=True)
    if backend == "eager":
        settings = replace(settings, gauge=partial(gauge_of, optimizer=optimizer, asked=check))
    elif check:
        raise LowtideError(
            'check=True measures the kernels of eager PyTorch; with backend="inductor" the code that Inductor wrote '
            "is read for what it holds before it runs"
        )
    unfit(model)
    _refuse_fitted_parts(model)
    fitted = CompiledFitted(model, settings) if backend == "inductor" else Fitted(model, settings)
    if batch is not None:
        fitted.plan = _planned(model, batch, settings)
    model._compiled_call_impl = fitted
    return model


def unfit(model: Model) -> Model:
    """Take Lowtide away again: the model runs as it did before `fit`, compiled if it was.

    >>> model = fit(nn.Linear(4, 1), memory_budget="1MiB")
    >>> unfit(model)._compiled_call_impl is None
    True
    """
    fitted = model._compiled_call_impl
    if isinstance(fitted, Fitted):
        del model._compiled_call_impl
        if fitted.replaced is not None:
            model._compiled_call_impl = fitted.replaced
    return model


def plan(
    model: nn.Module,
    batch: Any,
    *,
    memory_budget: int | str,
    optimizer: torch.optim.Optimizer | None = None,
    backend: str = "eager",
    planner: str = DEFAULT_PLANNER,
    loss_inside: bool | None = None,
    costs: str | None = None,
    device: DeviceLike | None = None,
) -> Plan:
    """The plan of a training step on `batch` within `memory_budget`, without running it or touching the model.

    A model that torch.compile takes whole is only traced, so it may be on the meta device, or need more memory than
    there is; with backend="inductor" it is compiled too. Raises BudgetTooSmall where nothing fits. `costs` is as in
    `fit`; where they are measured, every operator runs by itself on random numbers.

    `device` plans for another device than the model's: a GPU by name ("h100", "h200", "a100", "l40s", "4090"), "cpu",
    a `lowtide.Device` or a table of its fields, all estimated; or "cuda", the GPU that is here, measured. The plan
    says in `costs` which it was.

    >>> model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    >>> found = plan(model, torch.randn(8, 64), memory_budget="1MiB")
    >>> found.total <= 2**20
    True
    >>> plan(model, torch.randn(8, 64), memory_budget="1MiB", device="h100").costs
    'estimated for h100 (roofline)'
    """
    settings = _settings(model, memory_budget, optimizer, backend, planner, loss_inside, 1, costs, device)
    return _planned(model, batch, settings)


def _planned(model: nn.Module, batch: Any, settings: Settings) -> Plan:
    args, kwargs = _arguments(batch)
    if isinstance(settings.plan, Planning):
        return plan_compiled(CompiledCapturing(model, settings), args, kwargs)
    return settings.plan(capture_call(model, args, kwargs, settings))


def frontier(
    model: nn.Module,
    batch: Any,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    points: int = 30,
    loss_inside: bool | None = None,
    costs: str | None = None,
    device: DeviceLike | None = None,
) -> Frontier:
    """What a training step on `batch` takes at every budget, without running it or touching the model.

    From the least budget that works to the one at which nothing is run again, at most `points` plans, each with a
    bound; any of them can be given to `apply`. It takes about as long as a few calls of `plan`, and `plan` at one of
    these budgets may look closer and find a somewhat faster plan. `costs` and `device` are as in `plan`.

    >>> model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(4)))
    >>> curve = frontier(model, torch.randn(256, 64))
    >>> curve.least < curve.plain
    True
    >>> curve.fastest(curve.plain).reruns
    0
    """
    if type(points) is not int or points < 2:
        raise LowtideError(f"points={points!r}: a frontier has at least 2")
    settings = _settings(model, 0, optimizer, "eager", DEFAULT_PLANNER, loss_inside, 1, costs, device)
    args, kwargs = _arguments(batch)
    return plan_curve(capture_call(model, args, kwargs, settings), points)


def max_batch(
    make_batch: Callable[[int], Any],
    model: nn.Module,
    *,
    memory_budget: int | str,
    optimizer: torch.optim.Optimizer | None = None,
    planner: str = DEFAULT_PLANNER,
    loss_inside: bool | None = None,
    points: int = 12,
    most: int = 65_536,
    costs: str | None = None,
    device: DeviceLike | None = None,
) -> Batches:
    """The largest batch with which `model` trains within `memory_budget`, and the one with most samples a second.

    `make_batch(size)` makes a batch of so many samples, on the model's device unless it says otherwise; it is called
    for each size that is tried. Nothing is run: a size is traced and planned. The largest is exact: it fits, and one
    more does not; none above `most` is tried. The fastest is so among the sizes tried, about `points` of them and some
    more around it, by the plans' times of forward and backward. `costs` and `device` are as in `plan`.

    >>> model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 1))
    >>> found = max_batch(lambda size: torch.randn(size, 64), model, memory_budget="1MiB")
    >>> found.plan(found.largest).total <= 2**20 < found.needed
    True
    >>> found.best in range(1, found.largest + 1)
    True
    """
    for name, number in (("points", points), ("most", most)):
        if type(number) is not int or number < 2:
            raise LowtideError(f"{name}={number!r} is not a whole number of at least 2")
    settings = _settings(model, memory_budget, optimizer, "eager", planner, loss_inside, 1, costs, device)
    here = next((p.device for p in model.parameters()), torch.device("cpu"))
    allowed = budgets.parse(memory_budget, capacity=_capacity(here, settings.device))

    @functools.lru_cache(maxsize=2)
    def reached(size: int) -> Reached:
        with torch.random.fork_rng(), here:
            args, kwargs = _arguments(make_batch(size))
        return capture_call(model, args, kwargs, settings, run=False)

    def attempt(size: int, budget: int) -> batches.BatchSize:
        step = reached(size)
        found = plan_step(step, budget, PLANNERS[planner])
        return batches.BatchSize(size, found, sum(op.ns for op in step.joined.ops))

    return batches.search(attempt, allowed, points=points, most=most)


def check(model: nn.Module) -> Check:
    """What the latest plan of a fitted model promised, beside what its first steps took.

    On a GPU the first three steps of every plan are measured; elsewhere `fit` wants `check=True` for it.

    >>> model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    >>> model = fit(model, memory_budget="1MiB", check=True)
    >>> model(torch.randn(8, 64)).sum().backward()
    >>> check(model).kept
    True
    """
    fitted = model._compiled_call_impl
    if not isinstance(fitted, Fitted):
        raise LowtideError("this model is not fitted: there is nothing to check. Call lowtide.fit first.")
    fitted.compare()
    found = fitted.watch.check
    if found is None or not found.steps:
        raise LowtideError(
            "no step of this model's plan has been measured yet. On a GPU that takes a whole step, backward included; "
            "elsewhere the model must be fitted with check=True, which is slow."
        )
    return found


def apply(model: Model, plan: Plan, *, optimizer: torch.optim.Optimizer | None = None) -> Model:
    """Carry out `plan` in every training step of `model`; the same object comes back.

    A training call whose step is not the one that was planned raises PlanMismatch.

    >>> model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    >>> model = apply(model, globals()["plan"](model, torch.randn(8, 64), memory_budget="1MiB"))
    >>> model(torch.randn(8, 64)).sum().backward()
    """
    unfit(model)
    _refuse_fitted_parts(model)
    here = next((p.device for p in model.parameters()), torch.device("cpu"))
    settings = Settings(
        plan=partial(checked, plan),
        planner=greedy.solve,
        optimizer=optimizer,
        loss_inside=None,
        max_shapes=16,
        price=_price(here, None, None, None, None),
        gauge=partial(gauge_of, optimizer=optimizer, asked=None),
        given=True,
    )
    model._compiled_call_impl = Fitted(model, settings)
    return model


def _refuse_fitted_parts(model: nn.Module) -> None:
    """The front end looks through a part that is fitted itself, so that its budget would be lost."""
    for name, part in model.named_modules():
        if isinstance(part._compiled_call_impl, Fitted):
            raise LowtideError(
                f"the part {name!r} of the model is fitted by itself. A step has one budget: call "
                f"lowtide.unfit on that part first, or fit only parts that do not contain each other."
            )


def _settings(
    model: nn.Module,
    memory_budget: int | str,
    optimizer: torch.optim.Optimizer | None,
    backend: str,
    planner: str,
    loss_inside: bool | None,
    max_shapes: int,
    costs: str | None,
    device: DeviceLike | None = None,
    *,
    within: bool = False,
) -> Settings:
    here = next((p.device for p in model.parameters()), torch.device("cpu"))
    return settings_of(
        here, memory_budget, optimizer, backend, planner, loss_inside, max_shapes, costs, device, within=within
    )


def settings_of(
    here: torch.device,
    memory_budget: int | str,
    optimizer: torch.optim.Optimizer | None = None,
    backend: str = "eager",
    planner: str = DEFAULT_PLANNER,
    loss_inside: bool | None = None,
    max_shapes: int = 16,
    costs: str | None = None,
    device: DeviceLike | None = None,
    *,
    within: bool = False,
) -> Settings:
    """How a model on the device `here` is fitted, from what users give; `within` has measuring keep to the budget too.

    >>> settings_of(torch.device("cpu"), "1MiB").max_shapes
    16
    """
    if backend not in ("eager", "inductor"):
        raise LowtideError(f"backend={backend!r} is not there; the backends are: 'eager', 'inductor'")
    if planner not in PLANNERS:
        raise LowtideError(f"planner={planner!r} is not there; the planners are: {', '.join(map(repr, PLANNERS))}")
    if backend == "inductor" and (costs == "measured" or device is not None):
        raise LowtideError(
            'backend="inductor" compiles for the device that the model is on, with estimated costs: leave out device= '
            'and costs="measured"'
        )
    target = _target(here, device)
    allowed = budgets.parse(memory_budget, capacity=_capacity(here, target))
    compiled = Planning(allowed, PLANNERS[planner])
    return Settings(
        plan=compiled if backend == "inductor" else partial(plan_step, budget=allowed, planner=PLANNERS[planner]),
        planner=PLANNERS[planner],
        optimizer=optimizer,
        loss_inside=loss_inside,
        max_shapes=max_shapes,
        device=target,
        price=_price(here, costs, device, target, allowed if within else None),
    )


def _target(here: torch.device, device: DeviceLike | None) -> Device | None:
    """The device to plan for, where it is another than the model's."""
    if device is None:
        return None
    if device == "cuda":
        return resembling(clock_of(_gpu(here)).name, "cuda")
    target = named(device)
    if here.type == "cuda" and target.kind == "cpu":
        raise LowtideError(f"device={target.name!r}: a model on a GPU is planned for GPUs; move it to the meta device")
    return target


def _gpu(here: torch.device) -> torch.device:
    if here.type == "cuda":
        return here
    if not torch.cuda.is_available():
        raise LowtideError('device="cuda" is the GPU that is here, and there is none; name one, "h100" for instance')
    return torch.device("cuda", torch.cuda.current_device())


def _price(
    here: torch.device, costs: str | None, device: DeviceLike | None, target: Device | None, most: int | None
) -> Callable[[Captured], Captured]:
    """How a captured graph gets its costs; `most` is what measuring may take on the device."""
    if costs not in (None, "measured", "estimated"):
        raise LowtideError(f'costs={costs!r} is not there; costs are "measured" or "estimated"')
    there = _gpu(here) if device == "cuda" else here
    measurable = there.type in ("cpu", "cuda") and (device is None or device == "cuda")
    if costs == "measured" and not measurable:
        raise LowtideError(
            f'costs="measured" needs the device: the model is on {here.type}, and device is {device!r}. Estimate with '
            'costs="estimated", or move the model; device="cuda" measures on the GPU that is here.'
        )
    if costs == "measured" or (costs is None and measurable and there.type == "cuda"):
        return Measured(clock_of(there), most=most)
    return Estimated(target)


def _capacity(device: torch.device, target: Device | None) -> Callable[[], int]:
    """What the device can lend to this process, or one that is only named has."""

    def capacity() -> int:
        if target is not None:
            if not target.memory:
                raise LowtideError(
                    f"device {target.name!r} does not say how much memory it has: give a budget in bytes"
                )
            return target.memory
        if device.type == "cuda":
            free, _ = torch.cuda.mem_get_info(device)
            return int(free + torch.cuda.memory_reserved(device))
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    return capacity


def _arguments(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What the model is called with."""
    if isinstance(batch, Batch):
        return batch.args, batch.kwargs
    if isinstance(batch, Mapping):
        return (), dict(batch)
    if isinstance(batch, (tuple, list)):
        return tuple(batch), {}
    return (batch,), {}
