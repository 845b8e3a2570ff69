"""The dag view: the forward values of a step and which of them each is made from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lowtide.planners.dag import Dag
from lowtide.planners.rerun import expand
from lowtide.planners.settled import settled
from lowtide.planners.step import Step


@dataclass(frozen=True)
class Graph:
    """A step's forward values as a Dag. What one op writes is one node, as it is made at once.

    A node is a forward op that makes something that is not settled and that backward wants, itself or to make
    another. Of its bytes those count that some op reads. That an op reads a settled value is no edge: it is there.

    step     the step
    settled  per value, whether it is kept at no choice
    ops      per node, the op
    dag      see above; None where there is no node
    """

    step: Step
    settled: tuple[bool, ...]
    ops: tuple[int, ...]
    dag: Dag | None

    @classmethod
    def of(cls, step: Step) -> Graph:
        """The graph of a step."""
        kept = settled(step)
        wanted = [bool(uses) and not kept[v] for v, uses in enumerate(step.uses)]
        reads: list[set[int]] = [set() for _ in range(step.boundary)]
        nodes = []
        for op in range(step.boundary - 1, -1, -1):
            if any(wanted[v] for v in step.writes[op]):
                nodes.append(op)
                for v in step.reads[op]:
                    if not kept[v]:
                        reads[op].add(step.writer[v])
                        wanted[v] = True
        ops = tuple(reversed(nodes))
        if not ops:
            return cls(step, kept, ops, None)
        place = {op: node for node, op in enumerate(ops)}
        program = step.program
        dag = Dag(
            tuple(sum(program.values[v].bytes for v in step.writes[op] if wanted[v]) for op in ops),
            tuple(program.ops[op].ns for op in ops),
            tuple((place[u], place[op]) for op in ops for u in sorted(reads[op])),
        )
        return cls(step, kept, ops, dag)

    def closed(self) -> Dag:
        """The dag between one source, which stands for the batch, and one target, which stands for the loss; node v is
        v + 1 here.
        """
        assert self.dag is not None
        last = len(self.dag) + 1
        edges = [(u + 1, v + 1) for u, v in self.dag.edges]
        edges += [(0, v + 1) for v, before in enumerate(self.dag.before) if not before]
        edges += [(v + 1, last) for v, after in enumerate(self.dag.after) if not after]
        return Dag((0, *self.dag.bytes, 0), (0, *self.dag.ns, 0), tuple(edges))

    def expand(self, kept: Iterable[int]) -> tuple[int, ...]:
        """The runs that keep the values of these nodes, and make all others again when backward wants them."""
        values = {v for node in kept for v in self.step.writes[self.ops[node]]}
        values |= {v for v, always in enumerate(self.settled) if always and self.step.forward[v]}
        return tuple(expand(self.step, values))
