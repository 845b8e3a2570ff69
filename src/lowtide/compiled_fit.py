"""What `fit(backend="inductor")` leaves on a model: as `Fitted`, with Inductor's code in place of eager kernels.

A graph is compiled for a plan, and the code that Inductor wrote for it says what the step really holds. Where that is
not what the plan promised, the step is planned and compiled again for as much less, a few times at most; so a budget is
kept before anything has run. What is compiled stays in Inductor's own cache on disk, by the modules that were compiled:
a second start plans again, and finds everything compiled.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from types import CodeType
from typing import Any

import torch
from torch import fx, nn

import lowtide
from lowtide import _compat, referee
from lowtide.budget import show
from lowtide.capture import step
from lowtide.capture.loss import assume_loss_inside
from lowtide.capture.outside import Outside
from lowtide.compiled.cost import estimate
from lowtide.compiled.emission import emit
from lowtide.compiled.partitioned import Partitioned, partitioned
from lowtide.compiled.peaks import Peaks, Written, peaks
from lowtide.compiled.written import protect
from lowtide.compiled_plan import Planning, Whole
from lowtide.errors import LowtideError, UnsupportedModel
from lowtide.fitted import Call, Captures, Fitted, Settings, Slot, Turn, undisturbed
from lowtide.measure.roofline import device_like
from lowtide.plan import Plan
from lowtide.planners import greedy
from lowtide.planning import Reached, Runs, least

log = logging.getLogger("lowtide")

ALIKE = 3  # graphs that a graph is taken to be the first of, until its step is known

# Options of Inductor under which its code does not say what is held.
_REFUSED = {
    "triton.cudagraphs": "CUDA graphs (mode='reduce-overhead' and 'max-autotune') keep all that a step needs from the "
    "first step on, in a pool of their own, so that no budget can be kept",
    "cpp_wrapper": "a wrapper in C++ cannot be read for what it holds",
    "memory_planning": "buffers are packed into pools, which are held longer than a plan can say",
}


@dataclass(frozen=True, slots=True)
class Made:
    """A sequence as Inductor has compiled it.

    function   what carries it out
    written    its code
    holds      what that holds
    """

    function: Callable[..., Any]
    written: Written
    holds: Peaks


class CompiledSlot(Slot):
    """One graph of a model, compiled by Inductor for the sequence that it is to carry out.

    made      what was compiled, by sequence
    planned   seconds spent on everything that plain torch.compile would not do
    compiled  seconds spent on compiling
    """

    owner: CompiledFitted
    captured: Partitioned | None  # type: ignore[assignment]

    def __init__(self, owner: CompiledFitted, graph: fx.GraphModule) -> None:
        super().__init__(owner, graph)
        self.made: dict[Runs, Made] = {}
        self.planned = self.compiled = 0.0
        self._inputs: Sequence[Any] = ()

    def __call__(self, *inputs: Any) -> Any:
        self._inputs = inputs
        try:
            return super().__call__(*inputs)
        finally:
            self._inputs = ()

    @cached_property
    def least(self) -> Runs:
        """The sequence for a first step whose other graphs are not known: as the first of several such graphs, of which
        least is kept while the others run.
        """
        assert self.captured is not None
        alike = [self.captured.program] * ALIKE
        plan = least(step.join(alike), greedy.solve)
        return tuple(step.split(alike, step.settle(alike, plan.runs))[0])

    def make(self, runs: Runs) -> Peaks:
        """Compile for a sequence, unless that was done; what its code holds."""
        if runs not in self.made:
            self._make(lambda: runs)
        return self.made[runs].holds

    def forget_others(self) -> None:
        """Let go of what was compiled for sequences that are not carried out."""
        self.made = {runs: made for runs, made in self.made.items() if runs in self.runs.values()}

    def _compile(self, inputs: Sequence[Any], turn: Turn, call: Call) -> Callable[..., Any]:
        if self.captured is None:
            plain = self._make(lambda: self.runs.setdefault(turn, self.owner.first_guess(self, call)))
            if plain is not None:
                return plain
            if self.whole:
                self.runs[turn] = self.owner.first_runs(self, call)
                self.forget_others()
        self.make(self.runs[turn])
        return self.made[self.runs[turn]].function

    def _make(self, choose: Callable[[], Runs]) -> Callable[..., Any] | None:
        """Compile for the sequence chosen once the graph is known; where nothing needs a gradient, give that back."""
        chosen: list[Runs] = []
        modules: list[tuple[fx.GraphModule, fx.GraphModule]] = []
        code: dict[str, str] = {}
        begun, planned = time.perf_counter(), self.planned

        def partition(joint: fx.GraphModule, outputs: int, plain: Callable[[], Any]) -> Any:
            protect(joint, outputs)
            first, second = plain()
            with self.planning():
                self.owner.share_constants(joint)
                parts = partitioned(first, second, outputs, handed_on)
                device = self.owner.settings.device or device_like(parts.device.type)
                self.captured = estimate(parts, device)
                chosen.append(choose())
                modules.append(emit(self.captured, chosen[0]))
            return modules[0]

        inputs = self._inputs
        handed_on = [i for i, x in enumerate(inputs) if isinstance(x, torch.Tensor) and not x.is_leaf]
        inside = self.owner.settings.loss_inside if self.whole else False
        graph, restore = assume_loss_inside(self.graph, inside)
        function = _compat.compile_inductor(
            _compat.copy_graph(graph), inputs, partition, code.__setitem__, self.owner.fingerprint, self.owner.options
        )
        if not chosen:
            return restore(function)
        assert self.captured is not None
        with self.planning():
            written = Written(self.captured, modules[0], code["forward"], code["backward"])
            holds = peaks([written])
        self.compiled += time.perf_counter() - begun - (self.planned - planned)
        log.info(
            "lowtide: compiled, %.1f s so far and %.2f s for planning; this code holds %s beyond what is static",
            self.compiled,
            self.planned,
            show(holds.peak),
        )
        self.made[chosen[0]] = Made(restore(function), written, holds)
        return None

    @contextmanager
    def planning(self) -> Iterator[None]:
        """Within it, time counts as spent on planning."""
        begun = time.perf_counter()
        try:
            yield
        finally:
            self.planned += time.perf_counter() - begun


class CompiledFitted(Fitted):
    """Stands in for a model's forward call: planned and compiled while it trains, plainly compiled otherwise.

    planning      how steps are planned
    options       Inductor's options for every graph
    fingerprint   what caches must know of the partitioner, besides what its modules show
    """

    def __init__(self, model: nn.Module, settings: Settings, options: Mapping[str, Any] | None = None) -> None:
        super().__init__(model, settings)
        assert isinstance(settings.plan, Planning)
        self.planning = settings.plan
        self.options = dict(options or {})
        self.fingerprint = fingerprint(self.planning)
        self._allowed: dict[tuple[tuple[Slot, Turn], ...], int] = {}
        self._correction = 0
        refuse_settings(self.options)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not (self.model.training and torch.is_grad_enabled()):
            return self._untrained(*args, **kwargs)
        return super().__call__(*args, **kwargs)

    @cached_property
    def _untrained(self) -> Callable[..., Any]:
        """The model as torch.compile compiles it."""
        compiled: Callable[..., Any] = torch.compile(self.model._call_impl, options=self.options or None)
        return compiled

    def _slot(self, graph: fx.GraphModule, _: Sequence[Any]) -> Slot:
        slot = CompiledSlot(self, graph)
        self._slots.add(slot)
        return slot

    @contextmanager
    def _tracing(self, code: CodeType) -> Iterator[None]:
        self._begin_tracing(code)
        with _compat.compiling_options():
            yield

    def first_guess(self, slot: CompiledSlot, call: Call) -> Runs:
        """The first sequence to be compiled of a graph just reached: by the model of what Inductor will hold."""
        assert slot.captured is not None
        if not slot.whole:
            call.planned = True
            return slot.least
        return self._whole(slot, call).guess().runs

    def first_runs(self, slot: Slot, call: Call) -> Runs:
        """The runs of a whole step, held to the budget by what their code holds; of a part, those of least memory."""
        assert isinstance(slot, CompiledSlot)
        if not slot.whole:
            return super().first_runs(slot, call)
        call.planned = True
        whole = self._whole(slot, call)
        begun, compiled, planned = time.perf_counter(), slot.compiled, slot.planned
        self.plan = whole.settle(lambda plan: slot.make(plan.runs))
        slot.planned = planned + time.perf_counter() - begun - (slot.compiled - compiled)
        return self.plan.runs

    def _whole(self, slot: CompiledSlot, call: Call) -> Whole:
        assert slot.captured is not None
        return Whole(slot.captured, self.with_constants(call.held), self.planning)

    def planned(self, reached: Reached) -> Plan:
        """The plan of several graphs, less what their code held above what was promised."""
        return self.planning(reached, self._correction)

    def _plan_together(self, call: Call, unplanned: Outside) -> None:
        """Plan one budget over all the graphs of the call, and again where their code holds more than was allowed."""
        turns = tuple(call.turns())
        slots = [(slot, turn) for slot, turn in turns if isinstance(slot, CompiledSlot)]
        if not slots:
            return
        reached = call.reached(unplanned)
        promised = referee.run(reached.joined, step.in_turn(reached.programs, reached.ran)).peak
        found = peaks([slot.made[slot.runs[turn]].written for slot, turn in slots]).peak - promised
        if turns in self._joined and found <= self._allowed[turns]:
            return
        self._joined.discard(turns)
        self._allowed[turns] = self._correction = max(found, self._allowed.get(turns, 0), 0)
        super()._plan_together(call, unplanned)
        for slot, _ in slots:
            slot.forget_others()


class CompiledCapturing(CompiledFitted):
    """A model called only to be planned: a call that is one graph is compiled, and ends before anything of it runs."""

    def first_runs(self, slot: Slot, call: Call) -> Runs:
        """Carry the graph and its plan out of the call, unless more graphs may follow."""
        runs = super().first_runs(slot, call)
        if slot.whole:
            raise Captures(Reached((), call.held))
        return runs

    def _plan_together(self, call: Call, unplanned: Outside) -> None:
        super()._plan_together(call, unplanned)
        raise Captures(call.reached(unplanned))


def fingerprint(planning: Planning) -> str:
    """What Inductor's cache must know of a partitioner, besides the two modules that it makes."""
    return f"lowtide {lowtide.__version__} {planning.budget} {planning.planner.__module__}"


def refuse_settings(options: Mapping[str, Any]) -> None:
    """Refuse what would hold memory that is not in the code: graphs that CUDA records, a wrapper in C++, pools."""
    for name, why in _REFUSED.items():
        if options.get(name, _compat.inductor_setting(name)):
            raise LowtideError(
                f"Inductor's option {name!r} is on: {why}. Leave it off: mode='max-autotune-no-cudagraphs' is "
                "'max-autotune' without CUDA graphs."
            )


def plan_compiled(capturing: CompiledCapturing, args: Any, kwargs: Any) -> Plan:
    """The plan of one training call, compiled but not run where the front end takes it whole."""
    with undisturbed(capturing.model):
        try:
            capturing(*args, **kwargs)
        except Captures:
            assert capturing.plan is not None
            return capturing.plan
    raise UnsupportedModel("nothing in this model needs a gradient, so there is nothing to plan")
