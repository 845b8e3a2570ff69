"""The noun Chain: stages in a straight line and a loss, the problem of `rotor` and of `exact_chain`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from lowtide.errors import InvalidProblem
from lowtide.planners.fields import check_count, check_counts, check_names

WANTED = ("forward_ns", "backward_ns", "value_bytes", "saved_bytes")
OPTIONAL = ("grad_bytes", "forward_scratch", "backward_scratch", "loss_scratch")


@dataclass(frozen=True, slots=True)
class Chain:
    """Stages 1..L, each turning a^(l-1) into a^l, and a loss of zero time after them. Every number is >= 0.

    forward_ns         time of each stage's forward run, L numbers
    backward_ns        time of each stage's backward run, L numbers
    value_bytes        |a^0|..|a^L|: the chain's input, and the output of each stage
    saved_bytes        |ā^1|..|ā^L|: all that a stage records for its backward run, its output a^l included
    grad_bytes         |δ^0|..|δ^L|: the gradient of each value
    forward_scratch    bytes alive only while a stage runs forward, L numbers
    backward_scratch   bytes alive only while a stage runs backward, L numbers
    loss_scratch       bytes alive only while the loss runs

    A budget for a chain counts everything, a^0 too, but no parameters.
    """

    forward_ns: tuple[int, ...]
    backward_ns: tuple[int, ...]
    value_bytes: tuple[int, ...]
    saved_bytes: tuple[int, ...]
    grad_bytes: tuple[int, ...]
    forward_scratch: tuple[int, ...]
    backward_scratch: tuple[int, ...]
    loss_scratch: int = 0

    def __post_init__(self) -> None:
        stages = len(check_counts(self.forward_ns, "forward_ns"))
        for name in ("backward_ns", "saved_bytes", "forward_scratch", "backward_scratch"):
            check_counts(getattr(self, name), name, stages)
        for name in ("value_bytes", "grad_bytes"):
            check_counts(getattr(self, name), name, stages + 1)
        check_count(self.loss_scratch, "loss_scratch")

    @property
    def stages(self) -> int:
        """The number of stages, the loss not among them."""
        return len(self.forward_ns)

    def to_json(self) -> dict[str, Any]:
        """The problem as a JSON object."""
        facts = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: list(fact) if isinstance(fact, tuple) else fact for name, fact in facts.items()}

    @classmethod
    def from_json(cls, data: object) -> Chain:
        """The problem that `to_json` wrote; gradients are as large as their values and scratch is 0 unless given."""
        facts = check_names(data, WANTED, OPTIONAL)
        numbers = {name: check_counts(facts[name], name) for name in WANTED}
        stages = len(numbers["forward_ns"])
        return cls(
            **numbers,
            grad_bytes=check_counts(facts.get("grad_bytes", numbers["value_bytes"]), "grad_bytes"),
            forward_scratch=check_counts(facts.get("forward_scratch", (0,) * stages), "forward_scratch"),
            backward_scratch=check_counts(facts.get("backward_scratch", (0,) * stages), "backward_scratch"),
            loss_scratch=facts.get("loss_scratch", 0),
        )

    def __str__(self) -> str:
        facts = self.to_json()
        return "".join(f"{name} {_words(fact)}\n" for name, fact in facts.items())

    @classmethod
    def parse(cls, text: str) -> Chain:
        """The problem that `str` printed as `text`."""
        facts: dict[str, Any] = {}
        for line in text.splitlines():
            name, *words = line.split() or [""]
            if not all(word.isdecimal() for word in words):
                raise InvalidProblem(f"{name}: {' '.join(words)!r} is not a line of whole numbers >= 0", name)
            facts[name] = [int(word) for word in words]
        if len(facts.get("loss_scratch", ())) == 1:
            facts["loss_scratch"] = facts["loss_scratch"][0]
        return cls.from_json(facts)


def _words(fact: int | Sequence[int]) -> str:
    return str(fact) if isinstance(fact, int) else " ".join(map(str, fact))
