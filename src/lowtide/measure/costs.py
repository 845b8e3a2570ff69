"""Two ways to know what a captured graph costs: estimated for a device by name, or measured on the one that is here."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import torch

from lowtide import _compat
from lowtide.allocator import charged
from lowtide.captured import Action, Captured, RecordedCall, Snapshot
from lowtide.device import Device, resembling
from lowtide.measure.arguments import Arguments
from lowtide.measure.cache import Cache, folder
from lowtide.measure.clock import Clock, Cost
from lowtide.measure.roofline import device_like, estimate
from lowtide.measure.signature import call_of, obstacle, signature, tensors_in
from lowtide.program import Op
from lowtide.progress import Progress

log = logging.getLogger("lowtide")
SECONDS = 5.0  # For all distinct calls of a graph together, where they are many.
MOST_SECONDS = 0.04  # For one.
_TOGETHER = 100  # Costs written to disk at once.


@dataclass(frozen=True)
class Estimated:
    """Costs by the arithmetic and the memory traffic of each call; `device` None is one like the tensors'."""

    device: Device | None = None

    def __call__(self, captured: Captured) -> Captured:
        """The same graph with costs, and in words where they come from."""
        device = self.device or device_like(captured.device.type)
        words = f"estimated for {device.name} (roofline{'; ' if device.seen else ''}{device.seen})"
        return replace(captured, program=estimate(captured, device), costs=words)


class Measured:
    """Costs measured call by call, each distinct one once on a machine; what cannot be measured is estimated, by name.

    One call's tensors are in memory at a time. One that would take more than `most` bytes together with everything
    else on the device is estimated.
    """

    def __init__(self, clock: Clock, *, most: int | None = None, cache: Cache | None = None) -> None:
        self._clock = clock
        self._most = most
        self._cache = cache or Cache(folder() / "costs.sqlite")
        self._known: dict[str, Cost] = {}

    def __call__(self, captured: Captured) -> Captured:
        """The same graph with costs, and in words where they come from."""
        calls = {signature(action): action for action in captured.actions}
        calls.pop("", None)
        machine = self._clock.machine()
        missing = [key for key in calls if key not in self._known]
        cached = self._cache.read(machine, missing)
        self._known.update({key: Cost(*cost) for key, cost in cached.items()})
        why = self._measure(machine, {key: calls[key] for key in missing if key not in cached})
        estimated = estimate(captured, resembling(self._clock.name, self._clock.device.type))
        ops = tuple(self._op(op, signature(action)) for op, action in zip(estimated.ops, captured.actions, strict=True))
        words = f"measured on {self._clock.name}" + _exceptions(captured, why)
        return replace(captured, program=replace(estimated, ops=ops), costs=words)

    def _op(self, op: Op, key: str) -> Op:
        cost = self._known.get(key)
        if cost is None:
            return op
        return replace(op, ns=cost.ns, scratch=op.scratch + charged(cost.workspace, self._clock.device.type))

    def _measure(self, machine: str, actions: dict[str, Action]) -> dict[str, str]:
        """Measure these; of those that cannot be, why."""
        if not actions:
            return {}
        begun = time.perf_counter()
        seconds = min(MOST_SECONDS, SECONDS / len(actions))
        progress = Progress(f"measuring operators on {self._clock.name}", len(actions))
        why: dict[str, str] = {}
        new: dict[str, tuple[int, int]] = {}
        with ExitStack() as stack:
            _calmly(stack, self._clock.device)
            arguments = Arguments(self._clock.device)
            stack.callback(self._clock.clean)
            for number, (key, action) in enumerate(actions.items()):
                progress.at(number)
                found = self._one(action, arguments, seconds)
                if isinstance(found, str):
                    why[key] = found
                    continue
                self._known[key] = found
                new[key] = found.ns, found.workspace
                if len(new) % _TOGETHER == 0:
                    self._cache.write(machine, new)
                    new.clear()
        self._cache.write(machine, new)
        seconds, count = time.perf_counter() - begun, len(actions) - len(why)
        log.info("lowtide: measured %d distinct operator calls on %s in %.1f s", count, self._clock.name, seconds)
        return why

    def _one(self, action: Action, arguments: Arguments, seconds: float) -> Cost | str:
        """The cost of an action, or why it has none."""
        found = obstacle(action)
        if found:
            return found
        lacking = _bytes(action) - self._room()
        if lacking > 0:
            return f"its tensors take {lacking} bytes more than there are"
        try:
            return self._clock.cost(_callable(action, arguments), seconds)
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            if not self._clock.alive():
                raise
            return f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"

    def _room(self) -> float:
        room = self._clock.room()
        found = float("inf") if room is None else room
        if self._most is not None and self._clock.device.type == "cuda":
            found = min(found, self._most - torch.cuda.memory_allocated(self._clock.device))
        return found


def _exceptions(captured: Captured, why: dict[str, str]) -> str:
    """In words, the operators that were not measured, and why."""
    if not why:
        return ""
    names: dict[str, str] = {}
    for op, action in zip(captured.program.ops, captured.actions, strict=True):
        reason = why.get(signature(action))
        if reason is not None:
            names.setdefault(op.name, reason)
    told = ", ".join(f"{name} ({reason})" for name, reason in names.items())
    log.info("lowtide: some operators could not be measured, and are estimated: %s", told)
    return f"; estimated: {told}"


def _calmly(stack: ExitStack, device: torch.device) -> None:
    """Until the stack ends, calls reach their kernels as in a planned step, and the generators are put back after."""
    stack.enter_context(_compat.plain_tensors())
    stack.enter_context(torch.random.fork_rng([device] if device.type == "cuda" else []))
    stack.enter_context(torch.no_grad())
    stack.enter_context(torch.autocast(device.type, enabled=False))


def _callable(action: Action, arguments: Arguments) -> Callable[[], Any]:
    """The action on random numbers."""
    if isinstance(action, Snapshot):
        source = arguments.like(action.source.meta["val"])
        return source.clone
    call = call_of(action)
    assert call is not None
    target: Any = call.node.target
    args, kwargs = arguments.of(call.node)
    if not isinstance(action, RecordedCall):
        return lambda: target(*args, **kwargs)

    def recorded() -> Any:
        with torch.enable_grad(), _compat.below_autograd():
            return target(*args, **kwargs)

    return recorded


def _bytes(action: Action) -> int:
    """What an action's arguments and results take."""
    call = call_of(action)
    if isinstance(action, Snapshot):
        nodes = [action.source, action.source]
    else:
        nodes = [call.node, *call.node.all_input_nodes] if call is not None else []
    return sum(t.numel() * t.element_size() for node in nodes for t in tensors_in(node.meta.get("val")))
