"""The chain view: a step as stages in a straight line, and the runs of such stages as runs of ops."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush, heapreplace
from itertools import accumulate

from lowtide.planners.chain import Chain
from lowtide.planners.settled import settled, with_far_reaching
from lowtide.planners.sizes import Sizes
from lowtide.planners.step import Step
from lowtide.program import Role

NOTHING = -1


@dataclass(frozen=True)
class Line:
    """A step cut at its narrow places: where no more than one value that is not settled crosses.

    step      the step
    settled   per value, whether it is kept at no choice; such values are left out of everything below
    cuts      stage l (from 1) is the forward ops from cuts[l-1] up to cuts[l]; the last cut is the boundary
    passed    per cut, the value that crosses it, a^l; NOTHING where none does
    blocks    the backward run of stage l is the backward ops from blocks[l] up to blocks[l-1]
    """

    step: Step
    settled: tuple[bool, ...]
    cuts: tuple[int, ...]
    passed: tuple[int, ...]
    blocks: tuple[int, ...]

    @classmethod
    def of(cls, step: Step, kept: tuple[bool, ...], most: int) -> Line:
        """The line of at most `most` stages of a step of which the values `kept` are settled. A step without a narrow
        place is one stage.

        Where there are more narrow places than are wanted, the forward pass is split into `most` parts of about equal
        bytes, and of the narrow places in each the one is taken which least crosses.
        """
        crossing = _narrow(step, kept)
        cuts = [0, *_thinned(step, crossing, most - 1), step.boundary]
        passed = [crossing.get(cut, NOTHING) for cut in cuts]
        return cls(step, kept, tuple(cuts), tuple(passed), _blocks(step, kept, cuts))

    @classmethod
    def both(cls, step: Step, most: int) -> list[Line]:
        """The line of a step, and where that has more stages, the line that it is if far-reaching values are kept."""
        near = settled(step)
        lines = [cls.of(step, near, most), cls.of(step, with_far_reaching(step, near), most)]
        return lines if lines[1].stages > lines[0].stages else lines[:1]

    @property
    def stages(self) -> int:
        """The number of stages, L."""
        return len(self.cuts) - 1

    def made_in(self, l: int) -> list[int]:
        """The values that stage l writes and that are not settled."""
        ops = range(self.cuts[l - 1], self.cuts[l])
        return [v for op in ops for v in self.step.writes[op] if not self.settled[v]]

    def record(self, l: int) -> list[int]:
        """ā^l: what backward reads of the values of stage l, and a^l."""
        return [v for v in self.made_in(l) if self.step.uses[v] or v == self.passed[l]]

    def sizes(self) -> Sizes:
        """The bytes of a^0 to a^L."""
        return Sizes(tuple(self._bytes(v) for v in self.passed))

    def chain(self) -> Chain:
        """The line as a problem of `rotor`. a^0, the batch, is static and so counts nothing.

        Scratch is what a stage holds at its fullest beyond its input and what it leaves; gradients are what is handed
        from one block of backward ops to the next. Parameter gradients and settled values are in none of it.
        """
        ops = self.step.program.ops
        stages = range(1, self.stages + 1)
        gradients = self._gradients()
        value = [self._bytes(v) for v in self.passed]
        saved = [sum(self._bytes(v) for v in self.record(l)) for l in stages]
        across = [gradients[self.blocks[l] - self.step.boundary] for l in range(self.stages + 1)]
        return Chain(
            forward_ns=tuple(
                sum(op.ns for op in ops[self.cuts[l - 1] : self.cuts[l]] if op.rerunnable) for l in stages
            ),
            backward_ns=tuple(sum(op.ns for op in ops[self.blocks[l] : self.blocks[l - 1]]) for l in stages),
            value_bytes=tuple(value),
            saved_bytes=tuple(saved),
            grad_bytes=tuple(across),
            forward_scratch=tuple(self._forward_scratch(l) for l in stages),
            backward_scratch=tuple(max(0, self._fullest(gradients, l) - across[l] - across[l - 1]) for l in stages),
        )

    def _bytes(self, value: int) -> int:
        return 0 if value == NOTHING else self.step.program.values[value].bytes

    def _forward_scratch(self, l: int) -> int:
        """What stage l holds at its fullest beyond its input and what it leaves, whether or not it is recorded."""
        lasts = {self.passed[l]}, set(self.record(l))
        return max(self._peak_of_stage(l, last) - sum(map(self._bytes, last)) for last in lasts)

    def _peak_of_stage(self, l: int, last: set[int]) -> int:
        """The most bytes at once of what stage l writes, where `last` stays to its end."""
        first, end = self.cuts[l - 1], self.cuts[l]
        own = dict.fromkeys(last, end)
        for op in range(first, end):
            for v in (*self.step.writes[op], *self.step.reads[op]):
                if not self.settled[v] and self.step.writer[v] >= first and v not in last:
                    own[v] = op
        gone: dict[int, list[int]] = {}
        for v, op in own.items():
            gone.setdefault(op, []).append(v)
        now = peak = 0
        for op in range(first, end):
            now += sum(self._bytes(v) for v in self.step.writes[op] if not self.settled[v])
            peak = max(peak, now + self.step.program.ops[op].scratch)
            now -= sum(map(self._bytes, gone.get(op, ())))
        return max(peak, sum(map(self._bytes, last)))

    def _gradients(self) -> list[int]:
        """Bytes handed across the place before each backward op, and after the last: made in backward before it, read
        after it, and not handed to the caller.
        """
        step, boundary = self.step, self.step.boundary
        change = [0] * (len(step.reads) - boundary + 2)
        for v, (first, last) in _lives(step).items():
            change[first + 1 - boundary] += self._bytes(v)
            change[last + 1 - boundary] -= self._bytes(v)
        now = 0
        handed = []
        for difference in change[:-1]:
            now += difference
            handed.append(now)
        return handed

    def _fullest(self, handed: Sequence[int], l: int) -> int:
        """The most bytes of gradients and scratch at once in block l."""
        step = self.step
        values = step.program.values
        return max(
            (
                handed[b - step.boundary]
                + sum(values[v].bytes for v in step.writes[b] if values[v].role is not Role.OUTPUT)
                + step.program.ops[b].scratch
                for b in range(self.blocks[l], self.blocks[l - 1])
            ),
            default=0,
        )

    def expand(self, words: Iterable[str]) -> tuple[int, ...]:
        """The runs of ops that carry out runs of stages ("F_ck 1", ..., as `chain_replay` has them).

        A stage that runs makes only what it leaves, of what is not there; the first time also what must have run
        before backward begins. A backward op whose reads are not all there, since the step is no straight line, has
        them made just before it. An op that nothing needed has its run in the first pass.
        """
        words = tuple(words)
        first = list(self.step.essential)
        runs = _Expansion(self, first).carry_out(words)
        unseen = set(range(self.step.boundary)).difference(runs)
        if unseen:
            for op in sorted(unseen, reverse=True):
                first[op] = True
            runs = _Expansion(self, first).carry_out(words)
        return tuple(runs)


class _Expansion:
    """The runs so far, and what is there after them.

    there   per value, whether it may be read; settled values stay for good once they are made
    plain   per cut, whether a^l is held by itself
    saved   per stage, whether ā^l is held
    first   per forward op, whether it must run the first time its stage does
    """

    def __init__(self, line: Line, first: Sequence[bool]) -> None:
        self.line = line
        self.first = first
        self.there = [False] * len(line.step.writer)
        self.plain = [False] * (line.stages + 1)
        self.saved = [False] * (line.stages + 1)
        self.visited = [False] * (line.stages + 1)
        self.runs: list[int] = []

    def carry_out(self, words: Iterable[str]) -> list[int]:
        """All runs of ops."""
        for word in words:
            kind, _, number = word.partition(" ")
            if kind == "B":
                self._backward(int(number))
            elif kind != "loss":
                self._forward(kind, int(number))
        return self.runs

    def _forward(self, kind: str, l: int) -> None:
        line = self.line
        leave = set(line.record(l)) if kind == "F_all" else {line.passed[l]} - {NOTHING}
        wanted = [v for v in leave if not self.there[v]]
        ops: list[int] = []
        if not self.visited[l]:
            self.visited[l] = True
            stage = range(line.cuts[l - 1], line.cuts[l])
            wanted += [v for op in stage for v in line.step.writes[op] if line.settled[v]]
            ops = [op for op in stage if self.first[op]]
        self._make(wanted, ops)
        if kind == "F_all":
            self.saved[l] = True
        else:
            self.plain[l] = True
        if kind == "F_none":
            self.plain[l - 1] = False
        self._settle(l - 1)
        self._settle(l)

    def _backward(self, l: int) -> None:
        line = self.line
        for b in range(line.blocks[l], line.blocks[l - 1]):
            self._run_backward(b)
        self.saved[l] = self.plain[l] = self.plain[l - 1] = False
        self._settle(l, after_backward=True)
        self._settle(l - 1)

    def _run_backward(self, b: int) -> None:
        step = self.line.step
        self._make([v for v in step.reads[b] if step.forward[v] and not self.there[v]], ())
        self.runs.append(b)

    def _settle(self, l: int, *, after_backward: bool = False) -> None:
        """Let go of what stage l made and is not held. Once its block has run, what a later block reads stays: to make
        it again the stages before would have to run again.
        """
        if l == 0 or self.saved[l]:
            return
        line = self.line
        for v in line.made_in(l):
            uses = line.step.uses[v]
            late = after_backward and uses and uses[-1] >= line.blocks[l - 1]
            if not (late or (self.plain[l] and v == line.passed[l])):
                self.there[v] = False

    def _make(self, values: Iterable[int], ops: Iterable[int]) -> None:
        """Run the ops, and those that make the values, with all that they need and is not there."""
        step = self.line.step
        heap: list[int] = []
        needed: set[int] = set()
        for op in (*ops, *(step.writer[v] for v in values)):
            if op not in needed:
                needed.add(op)
                heappush(heap, -op)
        while heap:
            for v in step.reads[-heappop(heap)]:
                op = step.writer[v]
                if not self.there[v] and op not in needed:
                    needed.add(op)
                    heappush(heap, -op)
        for op in sorted(needed):
            self.runs.append(op)
            for v in step.writes[op]:
                self.there[v] = True


def _narrow(step: Step, settled: Sequence[bool]) -> dict[int, int]:
    """The forward ops before which at most one value crosses, each with that value. Of several before which the same
    one crosses, the first; of several in a row before which none does, the first.
    """
    last = [NOTHING] * len(step.writer)
    for op in range(step.boundary):
        for v in step.reads[op]:
            last[v] = op
    count, number = [0] * (step.boundary + 1), [0] * (step.boundary + 1)
    for v, made in enumerate(step.forward):
        if made and not settled[v] and last[v] != NOTHING:
            for change, amount in ((count, 1), (number, v)):
                change[step.writer[v] + 1] += amount
                change[last[v] + 1] -= amount
    narrow: dict[int, int] = {}
    crossing = numbers = 0
    before: int | None = NOTHING
    passed = NOTHING
    for op in range(1, step.boundary):
        crossing += count[op]
        numbers += number[op]
        # The sum of the numbers of what crosses is its number where it is alone.
        here = {0: NOTHING, 1: numbers}.get(crossing)
        if here is not None and here != before and (here == NOTHING or here != passed):
            narrow[op] = passed = here
        before = here
    return narrow


def _thinned(step: Step, crossing: dict[int, int], most: int) -> list[int]:
    """At most `most` of the places: of those near each of as many marks, spread evenly over the bytes written, the one
    where least crosses, and of several the nearest.
    """
    if len(crossing) <= most:
        return list(crossing)
    sizes = step.program.arrays.bytes.tolist()
    written = list(accumulate(sum(sizes[v] for v in writes) for writes in step.writes[: step.boundary]))
    chosen: dict[int, tuple[int, float, int]] = {}
    for op, v in crossing.items() if most else ():
        place = written[op - 1] / max(1, written[-1]) * (most + 1)
        mark = min(max(round(place), 1), most)
        here = 0 if v == NOTHING else sizes[v], abs(place - mark), op
        chosen[mark] = min(chosen.get(mark, here), here)
    return sorted(op for _, _, op in chosen.values())


def _blocks(step: Step, settled: Sequence[bool], cuts: Sequence[int]) -> tuple[int, ...]:
    """For each stage the first backward op of its block.

    A backward op belongs to the last stage of which it reads a value. Blocks follow one another from the last stage to
    the first, and the ops that stand where this cannot be had are as few stages off, in sum, as can be: a monotone
    fit to the numbers of the stages, found with a heap of those still in question.
    """
    stages = len(cuts) - 1
    places: list[int] = []
    fit: list[int] = []
    heap: list[int] = []
    for b in range(step.boundary, len(step.reads)):
        read = [step.writer[v] for v in step.reads[b] if step.forward[v] and not settled[v]]
        if read:
            stage = bisect_right(cuts, max(read))
            # The fit falls, so stages count downwards here: the least of the heap is the latest stage.
            heappush(heap, stage)
            if heap[0] < stage:
                heapreplace(heap, stage)
            places.append(b)
            fit.append(heap[0])
    for i in range(len(fit) - 2, -1, -1):
        fit[i] = max(fit[i], fit[i + 1])
    blocks = [len(step.reads)] * (stages + 1)
    for b, stage in zip(reversed(places), reversed(fit)):
        blocks[stage] = b
    blocks[stages] = step.boundary
    for l in range(1, stages + 1):
        blocks[l] = min(blocks[l], blocks[l - 1])
    return tuple(blocks)


def _lives(step: Step) -> dict[int, tuple[int, int]]:
    """The gradients that stay inside: where each is made and where it is last read."""
    values = step.program.values
    lives: dict[int, tuple[int, int]] = {}
    for b in range(step.boundary, len(step.reads)):
        for v in step.reads[b]:
            if v in lives:
                lives[v] = lives[v][0], b
        lives |= {v: (b, b) for v in step.writes[b] if values[v].role is not Role.OUTPUT}
    return lives
