"""The bytes of a whole step, forward and backward, from the code that Inductor wrote for both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx

from lowtide import _compat
from lowtide.compiled.code import Blank, Ledger, View, blank, carry_out
from lowtide.compiled.partitioned import Partitioned, is_tangent


@dataclass(frozen=True, slots=True)
class Written:
    """What Inductor wrote.

    forward, backward   the code
    """

    forward: str
    backward: str


@dataclass(frozen=True, slots=True)
class Peaks:
    """What memory holds in a compiled step beyond what is static.

    forward    bytes at the peak of the forward code
    between    bytes while the loss is worked out and its gradient comes in
    backward   bytes at the peak of the backward code
    where      the line of code at the highest of them
    """

    forward: int
    between: int
    backward: int
    where: str

    @property
    def peak(self) -> int:
        """The highest."""
        return max(self.forward, self.between, self.backward)


def peaks(step: Partitioned, written: Written, modules: Sequence[fx.GraphModule]) -> Peaks:
    """What the compiled code of these two modules holds, the outputs of forward to the end."""
    first, second = modules
    ledger = Ledger(step.unit)
    inputs = [_static(node) for node in first.graph.find_nodes(op="placeholder")]
    returned = carry_out(written.forward, inputs, ledger)
    forward, where = ledger.peak, ledger.at
    for position, description in enumerate(_compat.output_descriptions(first.graph)[: step.outputs]):
        if _compat.mutated_input(description) is not None:
            ledger.drop(returned[position])  # Copied into the input, and gone.
    places = second.graph.find_nodes(op="placeholder")
    saved = iter(returned[step.outputs :])
    tangents = {node: blank(node.meta["val"]) for node in places if is_tangent(node)}
    enter = step.program.ops[step.entered]
    given: list[Any] = [tangents[node] if node in tangents else next(saved) for node in places]
    ledger.hold(list(tangents.values()), "the gradients of the outputs")
    if not _compat.INCOMING_GRADIENTS_ARE_FREED:
        ledger.hold(list(tangents.values()))
    ledger.hold([blank_bytes(2 * max(8, step.unit))])
    between = ledger.now + enter.scratch
    if between > ledger.peak:
        where = step.program.ops[step.entered].name
    ledger.peak, ledger.at = ledger.now, where
    carry_out(written.backward, given, ledger)
    if ledger.peak > max(forward, between):
        where = ledger.at
    return Peaks(forward, between, ledger.peak, where)


def blank_bytes(size: int) -> View:
    """A storage of that many bytes."""
    import torch

    return View(Blank(size), torch.empty(0, device="meta"))


def _static(node: fx.Node) -> Any:
    """An input of forward: it is there all along, so its storage counts for nothing."""
    value = blank(node.meta.get("val"))
    return View(Blank(0), value.tensor) if isinstance(value, View) else value
