"""`torch.compile(model, backend="lowtide", options={"memory_budget": "16GiB"})`: budgets where the caller compiles.

torch.compile hands over one graph after another, of the whole model or of each block, and nobody says which belong to
one training step. So the graphs that run until a backward pass begins are taken for one: the first time each runs on
the least memory that it can, and when backward begins one budget is planned over all of them, for the steps to come.
Graphs that were compiled with the same options share their budget.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import fx, nn

from lowtide import _compat
from lowtide.api import DEFAULT_PLANNER, settings_of
from lowtide.capture.outside import Outside
from lowtide.compiled_fit import CompiledFitted, CompiledSlot
from lowtide.errors import LowtideError, UnsupportedModel
from lowtide.fitted import Call, Settings
from lowtide.measure.allocated import allocated
from lowtide.measure.held import Held
from lowtide.measure.live import storage_bytes, tensors_of

log = logging.getLogger("lowtide")

_OWN = ("memory_budget", "planner", "optimizer", "loss_inside")
_steps: dict[object, CompiledSteps] = {}


def backend(
    graph: fx.GraphModule, inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None, mode: str | None = None
) -> CompiledSlot:
    """The backend "lowtide" of torch.compile.

    Options: `memory_budget` as `lowtide.fit` takes it, which must be given, `planner`, `optimizer` and `loss_inside`;
    whatever else there is goes to Inductor.

    >>> layer = torch.compile(nn.Linear(4, 1), backend=backend, options={"memory_budget": "1MiB"}, dynamic=False)
    >>> layer(torch.ones(2, 4)).sum().backward()
    """
    _refuse_unknown_sizes(graph)
    given = dict(options or {})
    if "memory_budget" not in given:
        raise LowtideError(
            'the backend "lowtide" needs a budget: torch.compile(model, backend="lowtide", '
            'options={"memory_budget": "16GiB"})'
        )
    parameters = [x for x in inputs if isinstance(x, torch.Tensor)]
    device = max((x.device for x in parameters), key=lambda device: device.type != "cpu", default=torch.device("cpu"))
    inductor = {**(_compat.mode_options(mode) if mode else {}), **{k: v for k, v in given.items() if k not in _OWN}}
    key = (device, *(repr(given.get(name)) for name in _OWN), repr(sorted(inductor.items())))
    if key not in _steps:
        settings = settings_of(
            device,
            given["memory_budget"],
            optimizer=given.get("optimizer"),
            backend="inductor",
            planner=given.get("planner", DEFAULT_PLANNER),
            loss_inside=given.get("loss_inside"),
        )
        _steps[key] = CompiledSteps(settings, inductor, device)
    return _steps[key].slot(graph)


def _refuse_unknown_sizes(graph: fx.GraphModule) -> None:
    for node in graph.graph.find_nodes(op="placeholder"):
        found = node.meta.get("example_value")
        sizes = found.shape if isinstance(found, torch.Tensor) else [found]
        if any(isinstance(size, torch.SymInt) for size in sizes):
            raise UnsupportedModel(
                f"the input {node.name} has a size that is not known before the step runs. Every shape is planned and "
                "compiled by itself: call torch.compile with dynamic=False."
            )


class CompiledSteps(CompiledFitted):
    """The training steps of all that was compiled with the same options.

    device   whose memory is budgeted
    """

    def __init__(self, settings: Settings, options: Mapping[str, Any], device: torch.device) -> None:
        super().__init__(_Seen(), settings, options)
        self.device = device
        self._under_way: StepCall | None = None

    def slot(self, graph: fx.GraphModule) -> StepSlot:
        """Where a graph runs."""
        slot = StepSlot(self, graph)
        slot.whole = False  # It may be the whole model or one block of it.
        self._slots.add(slot)
        return slot

    @property
    def call(self) -> Call:
        """The step under way, or the call that records nothing."""
        call: Call = self._local.call
        return call

    def begin(self, inputs: Sequence[Any]) -> None:
        """A graph is reached: of the step under way, or the first of a new one."""
        tensors = [x for x in inputs if isinstance(x, torch.Tensor)]
        assert isinstance(self.model, _Seen)
        self.model.note(tensors)
        if not (torch.is_grad_enabled() and any(x.requires_grad for x in tensors)):
            self._local.call = StepCall(self, tensors)
            return
        if self._under_way is None:
            self._under_way = StepCall(self, [x for x in tensors if x.is_leaf])
        self._local.call = self._under_way

    def _backward_begins(self, call: Call, node: weakref.ref[Any], inputs: Any) -> None:
        super()._backward_begins(call, node, inputs)
        if call is self._under_way:
            self._under_way = None
            self._plan_together(call, Outside({}, ()))


class StepCall(Call):
    """One step under way, whose parameters are found graph by graph."""

    def __init__(self, owner: CompiledSteps, batch: Any) -> None:
        super().__init__(owner, batch)
        self._before = allocated(owner.device)

    @property
    def held(self) -> Held:
        """What the step holds besides its timeline, as far as its graphs are known."""
        with _compat.plain_tensors():
            optimizer = self._owner.settings.optimizer
            held = Held.now(self._owner.model, self.inputs, optimizer)
            there = [] if optimizer is None else list(tensors_of(list(optimizer.state.values())))
            state = storage_bytes(there, held.device, kind=held.kind)
        return replace(held, others=max(0, self._before - held.model - held.gradients - state))


class StepSlot(CompiledSlot):
    """One graph of a step that the caller compiled."""

    owner: CompiledSteps

    def __call__(self, *inputs: Any) -> Any:
        self.owner.begin(inputs)
        return super().__call__(*inputs)


class _Seen(nn.Module):
    """Stands in for the model: the parameters that graphs were called with."""

    def __init__(self) -> None:
        super().__init__()
        self._found: dict[int, weakref.ref[nn.Parameter]] = {}

    def note(self, tensors: Sequence[torch.Tensor]) -> None:
        """Add the parameters among these."""
        for tensor in tensors:
            if isinstance(tensor, nn.Parameter):
                self._found[id(tensor)] = weakref.ref(tensor, partial(self._forget, id(tensor)))

    def _forget(self, identity: int, _: object) -> None:
        self._found.pop(identity, None)

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        """Those that are still there."""
        there = [found() for found in self._found.values()]
        return (parameter for parameter in there if parameter is not None)
