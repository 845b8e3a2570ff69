"""What users call. Only this module and `fitted` know the order of the rooms."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import torch
from torch import nn

from lowtide import budget as budgets
from lowtide.compiled_fit import CompiledCapturing, CompiledFitted, plan_compiled
from lowtide.compiled_plan import Planning
from lowtide.errors import LowtideError
from lowtide.fitted import Fitted, Settings, capture_call
from lowtide.frontier import Frontier
from lowtide.plan import Plan
from lowtide.planners import greedy
from lowtide.planners.registry import PLANNERS
from lowtide.planning import checked, plan_curve, plan_step

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

    >>> model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    >>> model = fit(model, memory_budget="1MiB")
    >>> model(torch.randn(8, 64)).sum().backward()
    """
    settings = _settings(model, memory_budget, optimizer, backend, planner, loss_inside, max_shapes)
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
) -> Plan:
    """The plan of a training step on `batch` within `memory_budget`, without running it or touching the model.

    A model that torch.compile takes whole is only traced, so it may be on the meta device, or need more memory than
    there is; with backend="inductor" it is compiled too. Raises BudgetTooSmall where nothing fits.

    >>> model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    >>> found = plan(model, torch.randn(8, 64), memory_budget="1MiB")
    >>> found.total <= 2**20
    True
    """
    settings = _settings(model, memory_budget, optimizer, backend, planner, loss_inside, 1)
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
) -> Frontier:
    """What a training step on `batch` takes at every budget, without running it or touching the model.

    From the least budget that works to the one at which nothing is run again, at most `points` plans, each with a
    bound; any of them can be given to `apply`. It takes about as long as a few calls of `plan`, and `plan` at one of
    these budgets may look closer and find a somewhat faster plan.

    >>> model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    >>> curve = frontier(model, torch.randn(256, 64))
    >>> curve.least < curve.plain
    True
    >>> curve.fastest(curve.plain).reruns
    0
    """
    if type(points) is not int or points < 2:
        raise LowtideError(f"points={points!r}: a frontier has at least 2")
    settings = _settings(model, 0, optimizer, "eager", DEFAULT_PLANNER, loss_inside, 1)
    args, kwargs = _arguments(batch)
    return plan_curve(capture_call(model, args, kwargs, settings), points)


def apply(model: Model, plan: Plan, *, optimizer: torch.optim.Optimizer | None = None) -> Model:
    """Carry out `plan` in every training step of `model`; the same object comes back.

    A training call whose step is not the one that was planned raises PlanMismatch.

    >>> model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    >>> model = apply(model, globals()["plan"](model, torch.randn(8, 64), memory_budget="1MiB"))
    >>> model(torch.randn(8, 64)).sum().backward()
    """
    unfit(model)
    _refuse_fitted_parts(model)
    settings = Settings(
        plan=partial(checked, plan),
        planner=greedy.solve,
        optimizer=optimizer,
        loss_inside=None,
        max_shapes=16,
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
) -> Settings:
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    return settings_of(device, memory_budget, optimizer, backend, planner, loss_inside, max_shapes)


def settings_of(
    device: torch.device,
    memory_budget: int | str,
    optimizer: torch.optim.Optimizer | None = None,
    backend: str = "eager",
    planner: str = DEFAULT_PLANNER,
    loss_inside: bool | None = None,
    max_shapes: int = 16,
) -> Settings:
    """How a model on `device` is fitted, from what users give.

    >>> settings_of(torch.device("cpu"), "1MiB").max_shapes
    16
    """
    if backend not in ("eager", "inductor"):
        raise LowtideError(f"backend={backend!r} is not there; the backends are: 'eager', 'inductor'")
    if planner not in PLANNERS:
        raise LowtideError(f"planner={planner!r} is not there; the planners are: {', '.join(map(repr, PLANNERS))}")
    allowed = budgets.parse(memory_budget, capacity=_capacity(device))
    compiled = Planning(allowed, PLANNERS[planner])
    return Settings(
        plan=compiled if backend == "inductor" else partial(plan_step, budget=allowed, planner=PLANNERS[planner]),
        planner=PLANNERS[planner],
        optimizer=optimizer,
        loss_inside=loss_inside,
        max_shapes=max_shapes,
    )


def _capacity(device: torch.device) -> Callable[[], int]:
    """What the device can lend to this process."""

    def capacity() -> int:
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
