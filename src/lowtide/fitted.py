"""What `fit` leaves on a model: every training call goes through it, planned once for each shape of input.

torch.compile's front end cuts the call into graphs, usually one. Each becomes a `Slot`, which is captured when it is
first reached, planned, and carried out. A call that is one graph is planned before anything of it runs; where the
front end breaks the model into several, the first call runs every graph on the plan that needs least memory, and the
budget is planned over all of them as soon as the last one is known.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import torch
from torch import fx, nn

from lowtide import _compat
from lowtide.apply.emit import emit
from lowtide.apply.pieces import in_pieces, link, starting, with_link
from lowtide.apply.undefined import backward_function, watch
from lowtide.budget import show
from lowtide.capture import kernels, step
from lowtide.capture.alias import keep_apart, shares_inputs
from lowtide.capture.asked import Answers
from lowtide.capture.branches import decided
from lowtide.capture.joint import capture
from lowtide.capture.loss import assume_loss_inside, refuse_double_backward
from lowtide.capture.outside import Outside, outside
from lowtide.captured import Captured
from lowtide.device import Device
from lowtide.errors import UnsupportedModel
from lowtide.measure.costs import Estimated
from lowtide.measure.gauge import GaugeOf
from lowtide.measure.held import Held, attribute_bytes
from lowtide.measure.watch import Watch
from lowtide.plan import Plan
from lowtide.planners.registry import Planner
from lowtide.planning import Reached, Runs, least

log = logging.getLogger("lowtide")
_calls = threading.RLock()


class Captures(Exception):
    """Ends a call that was made only to be captured."""

    def __init__(self, reached: Reached) -> None:
        super().__init__()
        self.reached = reached


@dataclass(frozen=True)
class Settings:
    """How a model is fitted.

    plan         from what a training call came to, to the plan of its step
    planner      from a Program and a budget for its timeline to a Plan: for graphs that run before all are known
    optimizer    whose state and step count, if given
    loss_inside  whether the model works out its loss itself; None: it does where an output is a single number
    max_shapes   how many shapes of input are kept planned
    device       the device planned for, where it is another than the model's
    price        gives a captured graph its costs; None: estimated for the device
    gauge        what measures a model's steps, to hold them against the plan; None: nothing does
    given        whether the plan is given, so that none is made in its place
    """

    plan: Callable[[Reached], Plan]
    planner: Planner
    optimizer: torch.optim.Optimizer | None
    loss_inside: bool | None
    max_shapes: int
    device: Device | None = None
    price: Callable[[Captured], Captured] | None = None
    gauge: GaugeOf | None = None
    given: bool = False


class Call:
    """One training call under way.

    slots         the slots it has reached, in order
    traced        whether the front end has traced something of it anew
    accumulating  whether gradients are there already
    added         whether all are, in a call that is one graph: new ones are added to them as they are made
    planned       whether something of it was planned
    returning     whether its backward pass has begun
    """

    def __init__(self, owner: Fitted, batch: Any) -> None:
        self.slots: list[Slot] = []
        self.traced = False
        self.planned = False
        self.returning = False
        self.added = False
        leaves = (leaf for leaf in _compat.tree_leaves(batch) if isinstance(leaf, torch.Tensor) and leaf.is_leaf)
        self.accumulating = any(leaf.grad is not None for leaf in chain(owner.model.parameters(), leaves))
        self.inputs: list[Any] = [batch]
        self._owner = owner
        self._uses: dict[int, tuple[weakref.ref[Any], list[int]]] = {}

    def used(self, inputs: Sequence[Any], uses: Sequence[int]) -> None:
        """Note how often a graph uses each of its inputs."""
        for x, count in zip(inputs, uses, strict=True):
            if isinstance(x, torch.Tensor) and x.requires_grad:
                known, counts = self._uses.get(id(x), (None, []))
                self._uses[id(x)] = weakref.ref(x), [*(counts if known is not None and known() is x else ()), count]

    @property
    def adds_otherwise(self) -> bool:
        """Whether a gradient has three parts or more, of several graphs: each graph adds up its own first."""
        return any(len(counts) > 1 and sum(counts) > 2 for _, counts in self._uses.values())

    @property
    def first(self) -> tuple[Slot, Turn]:
        """The first slot reached, with its turn."""
        return self.slots[0], Turn(self.accumulating, 0, self.added)

    def turns(self) -> Iterator[tuple[Slot, Turn]]:
        """The slots reached in which something needs a gradient, each with the turn it was."""
        before: Counter[Slot] = Counter()
        for slot in self.slots:
            if slot.captured is not None:
                yield slot, Turn(self.accumulating, before[slot], self.added)
            before[slot] += 1

    def reached(self, unplanned: Outside) -> Reached:
        """What the call came to, once it has run, with what ran outside its graphs."""
        turns = list(self.turns())
        return Reached(
            graphs=tuple(slot.captured for slot, _ in turns if slot.captured is not None),
            held=self._owner.with_constants(self.held).with_saved(unplanned.tensors, unplanned.leaves),
            ran=tuple(slot.runs[turn] for slot, turn in turns),
        )

    @cached_property
    def held(self) -> Held:
        """What the step holds besides its timeline; looked up only where something is planned.

        What others hold can be told apart only before the call has tensors of its own.
        """
        with _compat.plain_tensors():
            self._owner.in_attributes = attribute_bytes(self._owner.model)
            settings = self._owner.settings
            kind = settings.device.kind if settings.device else None
            held = Held.now(self._owner.model, self.inputs, settings.optimizer, kind)
        if len(self.slots) > 1:
            return replace(held, others=self._owner.others)
        self._owner.others = held.others
        return held


class Turn(NamedTuple):
    """One time that a training call reaches a graph: layers that are alike share theirs.

    accumulating   as in Call
    before         how many times the call has reached it before
    added          as in Call
    """

    accumulating: bool
    before: int
    added: bool = False


class Slot:
    """One graph of a model: captured when it is first reached, planned and carried out.

    whole     whether it is all of a training call
    uses      how often it uses each of its inputs
    captured  the graph, once it has been reached; None where nothing in it needs a gradient
    runs      the sequence to carry out, by turn
    ready     what carries a sequence out
    """

    def __init__(self, owner: Fitted, graph: fx.GraphModule) -> None:
        self.owner = owner
        self.graph = graph
        self.whole = _is_whole(graph)
        self.uses = [len(node.users) for node in graph.graph.find_nodes(op="placeholder")]
        self.captured: Captured | None = None
        self.runs: dict[Turn, Runs] = {}
        self.ready: dict[Runs, Callable[..., Any]] = {}

    def __call__(self, *inputs: Any) -> Any:
        call = self.owner.call
        if call.accumulating and self.whole:
            wanted = (x for x in inputs if isinstance(x, torch.Tensor) and x.requires_grad and x.is_leaf)
            call.added = all(x.grad is not None for x in wanted)
        turn = Turn(call.accumulating, call.slots.count(self), call.added)
        call.slots.append(self)
        # What the front end found in the arguments, however deep: a batch may come in any object.
        call.inputs += [x for x in inputs if isinstance(x, torch.Tensor) and x.is_leaf]
        if not self.whole:
            call.used(inputs, self.uses)
        if turn not in self.runs and len(call.slots) == 1:
            _ = call.held  # Looked up now, before the call has tensors of its own.
        if turn not in self.runs and self.captured is not None:
            self.runs[turn] = self.owner.first_runs(self, call)
        if self.runs.get(turn) not in self.ready:
            function = self._compile(inputs, turn, call)
            self.ready[self.runs.setdefault(turn, ())] = function
        if len(call.slots) == 1:
            self.owner.watch.begin((self, turn))
        with self.owner.watch.forward(inputs):
            outputs = self.ready[self.runs[turn]](*inputs)
        if self.captured is not None:
            self.owner.forward_done(call, outputs)
        _compat.refuse_double_backward(outputs, refuse_double_backward)
        return outputs

    def replan(self, turn: Turn, runs: Sequence[int]) -> None:
        """Carry out another sequence in this turn from the next call on."""
        self.runs[turn] = tuple(runs)
        self.ready = {runs: function for runs, function in self.ready.items() if runs in self.runs.values()}

    @cached_property
    def least(self) -> Runs:
        """The sequence that needs the least memory, once the graph is captured."""
        assert self.captured is not None
        return least(self.captured.program, self.owner.settings.planner).runs

    def _compile(self, inputs: Sequence[Any], turn: Turn, call: Call) -> Callable[..., Any]:
        schedule: tuple[tuple[int, ...], ...] = ()

        def partition(joint: fx.GraphModule, outputs: int) -> tuple[fx.GraphModule, fx.GraphModule]:
            self.owner.share_constants(joint)
            captured = capture(joint, outputs, handed_on, device.kind if device else None, early=early)
            self.captured = (self.owner.settings.price or Estimated(device))(captured)
            if turn not in self.runs:
                self.runs[turn] = self.owner.first_runs(self, call)
            nonlocal schedule
            forward, back, schedule = emit(self.captured, self.runs[turn])
            return forward, back

        def inference(_: fx.GraphModule) -> None:
            self.captured = None

        device = self.owner.settings.device
        no_link = link(inputs).detach()
        handed_on = [i for i, x in enumerate(inputs) if isinstance(x, torch.Tensor) and not x.is_leaf]

        def backward(module: fx.GraphModule) -> Callable[..., Any]:
            assert self.captured is not None
            tangents = _compat.tangent_outputs(self.captured.joint.graph)
            if len(schedule) > 1:
                return backward_function(module, tangents, starting(schedule, self.owner.watch.backward))
            return self.owner.watched(backward_function(module, tangents))

        # A number that passes from one graph to the next is no loss; only the outputs of a whole call can be told.
        inside = self.owner.settings.loss_inside if self.whole else False
        graph, restore = assume_loss_inside(keep_apart(self.graph), inside)
        early = not shares_inputs(graph)
        chosen = kernels.for_tensors(inputs, device.kind if device else "cpu")
        linked = with_link(graph)
        compiled = _compat.compile_joint(linked, [*inputs, link(inputs)], partition, inference, backward, chosen)
        if self.captured is None:
            return restore(lambda *inputs: compiled(*inputs, no_link))
        tangents = _compat.tangent_outputs(self.captured.joint.graph)

        def watched(*inputs: Any) -> Any:
            if len(schedule) > 1:
                outputs = in_pieces(compiled, schedule, inputs, refuse_double_backward)
            else:
                outputs = compiled(*inputs, no_link)
            watch(outputs, tangents)
            return outputs

        return restore(watched)


class Fitted:
    """Stands in for a model's forward call while it trains; in eval mode and without gradients it steps aside.

    plan      the plan of the latest call that was planned; None before the first
    replaced  what stood in for the call before: what `model.compile` put there, or None
    others    what was allocated for anything else when a call was last planned
    constants tensors that are part of the graphs, each kept once
    in_attributes   bytes of tensors that modules held in plain attributes when a call was last planned
    watch     holds the first steps of every plan against its promise
    """

    def __init__(self, model: nn.Module, settings: Settings) -> None:
        self.model = model
        self.settings = settings
        self.plan: Plan | None = None
        self.replaced = model._compiled_call_impl
        self.others = 0
        self.constants: dict[object, torch.Tensor] = {}
        self.in_attributes = 0
        self.watch = Watch(settings.gauge(model) if settings.gauge else None, settings.optimizer)
        self._slots: weakref.WeakSet[Slot] = weakref.WeakSet()
        self._open: weakref.WeakSet[Any] = weakref.WeakSet()
        self._said: set[str] = set()
        self._local = threading.local()
        self._traces = 0
        self._reasons: dict[str, int] = {}
        self._codes: set[CodeType] = set()
        self._joined: set[tuple[tuple[Slot, Turn], ...]] = set()
        # A code object of its own, so that the front end counts and forgets this model's shapes apart from others'.
        self._root = FunctionType(_lowtide_call.__code__.replace(), globals(), _lowtide_call.__name__)
        self._answers = Answers()
        self._compiled = _compat.compile_frames(self._root, self._slot, self._tracing, self._answers.changed_by)

    @property
    def call(self) -> Call:
        """The training call under way in this thread."""
        call: Call = self._local.call
        return call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        model = self.model
        if not (model.training and torch.is_grad_enabled()):
            return model._call_impl(*args, **kwargs)
        with self._calling(args, kwargs) as call:
            self.compare()
            output = self._compiled(model._call_impl, args, kwargs)
            if not call.slots:
                raise _nothing_captured(self._reasons)
            if not call.slots[0].whole:
                self._plan_together(call, outside(output))
        if call.planned:
            self._count_attributes()
        return output

    def compare(self) -> None:
        """Hold the step before against its plan; where its budget was missed, plan again with less."""
        missed = self.watch.settle()
        if not missed or self.watch.check is None:
            return
        check = self.watch.check
        log.warning(
            "lowtide: the step took %s where %s were promised and %s allowed%s",
            show(check.steps[-1].total),
            show(check.plan.total),
            show(check.allowed),
            "" if self.settings.given else f"; planning again with {show(self.watch.margin)} left free",
        )
        if not self.settings.given:
            self._plan_anew()

    def watched(self, function: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
        """A boxed backward function that is measured where its step is."""

        def run(args: list[Any]) -> Any:
            with self.watch.backward(args):
                return function(args)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    def _plan_anew(self) -> None:
        self._joined.clear()
        for slot in self._slots:
            slot.runs.clear()

    def _count_attributes(self) -> None:
        """Plan again where the call has left tensors in attributes of modules, which are there in the next one too."""
        found = attribute_bytes(self.model)
        if found > self.in_attributes and "attributes" not in self._said:
            self._said.add("attributes")
            log.info("lowtide: the model keeps %s in attributes from one step to the next; planning again", show(found))
            self._plan_anew()

    @contextmanager
    def _calling(self, args: Any, kwargs: Any) -> Iterator[Call]:
        # One call at a time: whether it traces shows only on the way, and the front end is not safe for others then.
        with _calls:
            outer = getattr(self._local, "call", None)
            call = self._local.call = Call(self, (args, kwargs))
            try:
                yield call
            finally:
                self._local.call = outer
                if self._traces > self.settings.max_shapes:
                    self._drop()

    def _drop(self) -> None:
        """Forget every shape, so that what is kept stays bounded."""
        log.warning(
            "lowtide: more than %d shapes of input; the plans so far are dropped, and made again as shapes come. "
            "Pad to fewer shapes, or raise max_shapes. (A number that the model reads with .item() and reckons with "
            "counts like a shape: keep it a tensor.)",
            self.settings.max_shapes,
        )
        _compat.forget(self._codes)
        self._traces = 0
        self.constants.clear()
        self._codes.clear()
        self._joined.clear()

    @contextmanager
    def _tracing(self, code: CodeType) -> Iterator[None]:
        """The front end traces some code: with eager PyTorch's kernels, and no silence where tracing ends."""
        self._begin_tracing(code)
        chosen = kernels.for_tensors(self.model.parameters())
        told = len(self._answers.told)
        with (
            _compat.eager_kernels(chosen),
            _compat.tracing_options(),
            _compat.logging_afterwards(),
            _compat.answering(self._answers.answer),
            _compat.deciding_branches(decided),
        ):
            yield
        if len(self._answers.told) > told:
            log.info(
                "lowtide: where the front end cannot take the path of plain PyTorch, code that asks is told that it is "
                "being compiled: %s. If it then works out something else, the step is that path's, to the last bit.",
                "; ".join(self._answers.askers),
            )

    def _begin_tracing(self, code: CodeType) -> None:
        """Note that the front end traces some code of the call under way."""
        if not self.call.traced:
            self.call.traced = True
            if self._traces:
                log.info("lowtide: a new shape of input, number %d: planning for it", self._traces + 1)
            self._traces += 1
            self._reasons = _compat.graph_breaks()
        self._codes.add(code)

    def share_constants(self, joint: fx.GraphModule) -> None:
        """Have a graph use the constants of the graphs before it, where they are the same."""
        for node in joint.graph.find_nodes(op="get_attr"):
            tensor = getattr(joint, node.target, None)
            if isinstance(tensor, torch.Tensor) and type(tensor) is torch.Tensor and tensor.device.type == "cpu":
                with _compat.plain_tensors():
                    bits = tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
                key = (tensor.dtype, tensor.shape, tensor.stride(), bits)
                setattr(joint, node.target, self.constants.setdefault(key, tensor))

    def with_constants(self, held: Held) -> Held:
        """What a step holds, the constants of the graphs known so far among it."""
        return replace(held.with_constants(self.constants.values()), margin=self.watch.margin)

    def _slot(self, graph: fx.GraphModule, _: Sequence[Any]) -> Slot:
        slot = Slot(self, graph)
        self._slots.add(slot)
        return slot

    def forward_done(self, call: Call, outputs: Any) -> None:
        """Look out for ways of training that hold more than was planned, and say so, once each."""
        if len(call.slots) == 1 and self._open:
            self._say(
                "a training call began while another's backward pass had yet to come. Each is planned by itself, and "
                "what both keep is held at once"
            )
        node = _compat.backward_node(outputs)
        if node is not None:
            self._open.add(node)
            node.register_prehook(partial(self._backward_begins, call, weakref.ref(node)))

    def _backward_begins(self, call: Call, node: weakref.ref[Any], _: Any) -> None:
        self._open.discard(node())
        # Of a model of several graphs, backward makes gradients before it comes to the next graph.
        first, call.returning = not call.returning and call.slots[0].whole, True
        if _compat.keeps_graph():
            self._say("backward ran with retain_graph=True, so that what is saved stays to its end")
        elif first and not call.accumulating and any(p.grad is not None for p in self.model.parameters()):
            self._say(
                "gradients were there when backward began that were not when the model was called, and the new ones "
                "are held beside them"
            )

    def _say(self, what: str) -> None:
        if what not in self._said:
            self._said.add(what)
            log.warning("lowtide: %s. This step may take more memory than was planned.", what)

    def first_runs(self, slot: Slot, call: Call) -> Runs:
        """The runs a slot starts with: those of the plan, or the least memory where more slots may follow."""
        assert slot.captured is not None
        call.planned = True
        if slot.whole:
            reached = Reached((slot.captured,), self.with_constants(call.held), added=call.added)
            self.plan = self.planned(reached)
            self.watch.expect(self.plan, reached.held, call.first)
            return self.plan.runs
        return slot.least

    def planned(self, reached: Reached) -> Plan:
        """The plan of a step."""
        return self.settings.plan(reached)

    def _plan_together(self, call: Call, unplanned: Outside) -> None:
        """Plan one budget over all the graphs of the call; those whose plan changes are written anew next time."""
        turns = tuple(call.turns())
        if turns in self._joined:
            return
        reached = call.reached(unplanned)
        if unplanned.counts:
            log.warning(
                "lowtide: torch.compile's front end left operators of this model outside its graphs, so they are not "
                "planned: %s. The %s they saved in this call are counted, but another batch may save more. Its "
                "reasons: %s",
                unplanned,
                show(reached.held.unplanned),
                "; ".join(_compat.graph_break_reasons(self._reasons)),
            )
        if call.adds_otherwise and "adds" not in self._said:
            self._said.add("adds")
            log.warning(
                "lowtide: this model is several graphs that use the same tensor, some of them more than once. Its "
                "gradient is added up graph by graph, where plain PyTorch adds use by use: the last bit may differ."
            )
        self.plan = self.planned(reached)
        self.watch.expect(self.plan, reached.held, call.first)
        log.info(
            "lowtide: the model is %d graphs, and one budget is planned over all of them. Reasons: %s",
            len(turns),
            "; ".join(_compat.graph_break_reasons(self._reasons)),
        )
        for (slot, turn), runs in zip(turns, step.split(reached.programs, self.plan.runs), strict=True):
            slot.replan(turn, runs)
        self._joined.add(turns)


class Capturing(Fitted):
    """A model called only to be captured: a call that is one graph ends before anything of it runs.

    run   whether a call of several graphs may run, which takes the memory of its forward pass
    """

    def __init__(self, model: nn.Module, settings: Settings, *, run: bool) -> None:
        super().__init__(model, settings)
        self.run = run

    def first_runs(self, slot: Slot, call: Call) -> Runs:
        """Carry the graph out of the call, unless more graphs may follow."""
        assert slot.captured is not None
        if slot.whole:
            raise Captures(Reached((slot.captured,), self.with_constants(call.held), added=call.added))
        if not self.run:
            raise UnsupportedModel(
                "the front end breaks this model into several graphs, so that it would have to run to be seen whole. "
                f"Its reasons: {'; '.join(_compat.graph_break_reasons(self._reasons))}. Remove graph breaks."
            )
        return super().first_runs(slot, call)

    def _plan_together(self, call: Call, unplanned: Outside) -> None:
        raise Captures(call.reached(unplanned))


def capture_call(model: nn.Module, args: Any, kwargs: Any, settings: Settings, *, run: bool = True) -> Reached:
    """What one training call comes to; the model is left as it was.

    A model that the front end takes whole is only traced. One that it breaks into several graphs has to run its forward
    pass between them; its buffers and the random generators are put back. Without `run` it is refused.
    """
    with undisturbed(model):
        try:
            Capturing(model, settings, run=run)(*args, **kwargs)
        except Captures as captures:
            return captures.reached
    raise UnsupportedModel("nothing in this model needs a gradient, so there is nothing to plan")


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Train mode within; buffers, generators and every module's mode are as before afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    model.train()
    try:
        with torch.random.fork_rng(), torch.enable_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode
        with torch.no_grad():
            for buffer, was in buffers:
                if buffer.device.type != "meta" and not torch.equal(buffer, was):
                    buffer.copy_(was)


def _lowtide_call(call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    return call(*args, **kwargs)


def _nothing_captured(before: Mapping[str, int]) -> UnsupportedModel:
    reasons = "; ".join(_compat.graph_break_reasons(before)) or (
        "it gave none, as it does within a TorchDispatchMode or a torch.func transform, where it looks at nothing"
    )
    return UnsupportedModel(
        "torch.compile's front end captured nothing of this model, so there is nothing to plan. "
        f"Its reasons: {reasons}. Lowtide does not fall back to plain training in silence; lowtide.unfit(model) does "
        "so openly."
    )


def _is_whole(graph: fx.GraphModule) -> bool:
    """Whether a graph is all of a training call: it begins and ends where the call does."""
    reason = _compat.subgraph_reason(graph)
    return not reason.graph_break and reason.user_stack[-1].name == _lowtide_call.__name__
