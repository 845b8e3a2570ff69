"""The noun Captured: a Program together with the graph that carries it out.

Op number i of the program is carried out by `actions[i]`. Capture makes it, apply reads it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import fx

from lowtide.program import Program, Role

GIVE = "hand over gradients"


@dataclass(frozen=True, slots=True)
class Call:
    """Run one node of the joint graph.

    node    the call
    parts   the getitem nodes that take its results apart; empty where it has one result
    """

    node: fx.Node
    parts: tuple[fx.Node, ...]


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """Run one node whose kernel does its full work only while gradients are recorded."""

    call: Call


@dataclass(frozen=True, slots=True)
class RandomCall:
    """Run one node that draws random numbers; run again, it draws the same from the state that `state` took."""

    call: Call
    device: torch.device
    state: int


@dataclass(frozen=True, slots=True)
class StatisticsCall:
    """Run one batch norm, whose kernel moves its running statistics; run again, it leaves them out.

    statistics   positions of the running statistics among the node's arguments
    """

    call: Call
    statistics: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TakeState:
    """Take the state of the device's random generator."""

    device: torch.device


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Copy an input that the step writes to, as it was before."""

    source: fx.Node


@dataclass(frozen=True, slots=True)
class Leave:
    """The forward graph ends: inputs are written back, the outputs go to the caller."""


@dataclass(frozen=True, slots=True)
class Enter:
    """The backward graph begins with the gradients of the outputs."""


@dataclass(frozen=True, slots=True)
class Give:
    """Gradients go to the caller; with the last of them the backward graph ends.

    places   of the inputs that they are the gradients of
    """

    places: tuple[int, ...]


Action = Call | RecordedCall | RandomCall | StatisticsCall | TakeState | Snapshot | Leave | Enter | Give


@dataclass(frozen=True, eq=False)
class Captured:
    """One graph of a training step.

    device            whose memory the program counts
    program           what planners see
    joint             forward and backward as one graph of ATen calls
    forward_outputs   how many of the joint graph's outputs are forward's
    actions           what carries out each op
    value_of          the value that each tensor node of the joint graph is, or is a view of
    views             nodes that cost nothing and make no value: views, and the taking apart of lists of views
    snapshots         op that copies a written input, by the input's node
    gradients         values that are gradients of leaves, which autograd keeps or copies, and the copies
    costs             where the program's nanoseconds come from, in words; empty where it has none
    """

    device: torch.device
    program: Program
    joint: fx.GraphModule
    forward_outputs: int
    actions: tuple[Action, ...]
    value_of: dict[fx.Node, int]
    views: frozenset[fx.Node]
    snapshots: dict[fx.Node, int]
    gradients: frozenset[int]
    costs: str = ""

    @cached_property
    def accumulating(self) -> Program:
        """The Program of a step whose gradients are added to those that are there: no copies, and none is kept."""
        copies = {v for op in self.program.ops if op.name == GIVE for v in op.writes}
        values = tuple(
            replace(value, role=Role.GRADIENT, bytes=0 if i in copies else value.bytes)
            if i in self.gradients
            else value
            for i, value in enumerate(self.program.values)
        )
        return replace(self.program, values=values)
