"""Small random Programs, and the true optimum of each by exhaustive search."""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import combinations, count

from hypothesis import strategies as st

from lowtide.program import Op, Phase, Program, Role, Value


@st.composite
def programs(draw: st.DrawFn, max_forward: int = 5, max_backward: int = 4) -> Program:
    """A training step in small: branches and skips, several writes, ops that run once, outputs, scratch.

    Most have a "leave" at the end of forward that reads the outputs and an "enter" that begins backward, as captured
    steps do; backward ops read gradients and forward values, mostly of the mirrored place.
    """
    values: list[Value] = []
    ops: list[Op] = []

    def value(role: Role, most: int = 9) -> int:
        values.append(Value(f"v{len(values)}", draw(st.integers(0, most)), role))
        return len(values) - 1

    def some(pool: list[int], most: int) -> list[int]:
        return draw(st.lists(st.sampled_from(pool), max_size=most, unique=True)) if pool else []

    small = st.integers(0, 3)
    time = st.integers(0, 9)
    statics = [value(Role.STATIC) for _ in range(draw(st.integers(0, 2)))]
    forward: list[int] = []
    outputs: list[int] = []
    for i in range(draw(st.integers(1, max_forward))):
        reads = some(statics, 1) + some(forward[-3:], 2) + some(forward[:-3], 1)
        writes = [value(draw(st.sampled_from([Role.ACTIVATION] * 7 + [Role.OUTPUT])))]
        writes += [value(Role.ACTIVATION) for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2])))]
        once = draw(st.sampled_from([""] * 6 + ["moves a counter"]))
        ops.append(Op(f"f{i}", Phase.FORWARD, tuple(reads), tuple(writes), draw(time), draw(small), once))
        forward += writes
        outputs += [v for v in writes if values[v].role is Role.OUTPUT]
    if draw(st.sampled_from([True, True, False])):
        reads = outputs + [v for v in some(forward, 1) if v not in outputs]
        ops.append(Op("leave", Phase.FORWARD, tuple(reads), (), 0, 0, "ends forward"))
    gradients: list[int] = []
    if draw(st.sampled_from([True, True, False])):
        gradients.append(value(Role.GRADIENT))
        ops.append(Op("enter", Phase.BACKWARD, tuple(outputs), tuple(gradients), 0, 0, "begins backward"))
    steps = draw(st.integers(0, max_backward))
    for i in range(steps):
        middle = len(forward) - round(len(forward) * i / steps)
        near = forward[max(0, middle - 3) : middle + 1]
        reads = list(dict.fromkeys(some(statics, 1) + some(gradients[-2:], 2) + some(near, 2) + some(forward, 1)))
        writes = [value(draw(st.sampled_from([Role.GRADIENT, Role.GRADIENT, Role.OUTPUT])))]
        writes += [value(Role.GRADIENT) for _ in range(draw(st.sampled_from([0, 0, 1])))]
        ops.append(Op(f"b{i}", Phase.BACKWARD, tuple(reads), tuple(writes), draw(time), draw(small)))
        gradients += writes
    return Program(tuple(values), tuple(ops))


@st.composite
def mirrored(draw: st.DrawFn, max_layers: int = 4) -> Program:
    """A step in which backward mirrors forward: a chain of layers with skips, each of which is undone in turn by ops
    that read the gradient and some of what the layer read and wrote.
    """
    values: list[Value] = []
    ops: list[Op] = []

    def value(role: Role, least: int = 0) -> int:
        values.append(Value(f"v{len(values)}", draw(st.integers(least, 9)), role))
        return len(values) - 1

    time = st.integers(1, 9)
    scratch = st.sampled_from([0, 0, 0, 1, 3])
    layers: list[tuple[list[int], list[int]]] = []
    made: list[int] = []
    last = draw(st.integers(2, max_layers)) - 1
    gives_output = draw(st.booleans())
    for i in range(last + 1):
        reads = made[-1:]
        if len(made) > 1 and draw(st.integers(0, 2)) == 0:
            reads.append(draw(st.sampled_from(made[:-1])))
        writes = [value(Role.OUTPUT if gives_output and i == last else Role.ACTIVATION, 1)]
        if draw(st.integers(0, 3)) == 0:
            writes.append(value(Role.ACTIVATION))
        once = "moves a counter" if draw(st.integers(0, 11)) == 0 else ""
        ops.append(Op(f"f{i}", Phase.FORWARD, tuple(reads), tuple(writes), draw(time), draw(scratch), once))
        layers.append((reads, writes))
        made.append(writes[0])
    if draw(st.integers(0, 3)):
        ops.append(Op("leave", Phase.FORWARD, (made[-1],), (), 0, 0, "ends forward"))
    gradient = value(Role.GRADIENT)
    ops.append(Op("enter", Phase.BACKWARD, (made[-1],) if gives_output else (), (gradient,), 0, 0, "begins backward"))
    for i, (reads, writes) in reversed(list(enumerate(layers))):
        wanted = [gradient, *writes[1:]]
        wanted += [v for v in (*reads, writes[0]) if draw(st.integers(0, 2))]
        grown = value(Role.GRADIENT if i else Role.OUTPUT)
        wanted = list(dict.fromkeys(wanted))
        ops.append(Op(f"b{i}", Phase.BACKWARD, tuple(wanted), (grown,), draw(time), draw(scratch)))
        if draw(st.integers(0, 3)) == 0:
            ops.append(Op(f"w{i}", Phase.BACKWARD, (gradient, *reads), (value(Role.OUTPUT),), draw(time)))
        gradient = grown
    return Program(tuple(values), tuple(ops))


def least_time(
    program: Program, budget: int, *, backward_in_order: bool = False, in_stages: bool = False
) -> int | None:
    """Least time of any sequence that fits, over all orders and any number of reruns; None where none fits.

    Dijkstra over what has run, what is held, and which outputs have a second copy. Nothing is dropped before room is
    short, for it could as well be dropped then; and then only as little as will do.
    With `backward_in_order`, over the sequences in which every backward op runs once, in the program's order, and
    forward ops that may run only once have run before the first of them. With `in_stages`, over the sequences that
    `stage_targets` cuts into stages: before its target each forward op that may run again and makes no output, and that
    stands before the target in the program, runs at most once, in the program's order.
    """
    ops, values = program.ops, program.values
    counted = [0 if v.role is Role.STATIC else v.bytes for v in values]
    static = frozenset(i for i, v in enumerate(values) if v.role is Role.STATIC)
    reads = [frozenset(op.reads) - static for op in ops]
    outputs = frozenset(i for i, v in enumerate(values) if v.role is Role.OUTPUT)
    read_by_some = frozenset().union(*reads)
    backward = [i for i, op in enumerate(ops) if op.phase is Phase.BACKWARD]
    before = frozenset(i for i, op in enumerate(ops) if op.phase is Phase.FORWARD and op.once)
    targets = stage_targets(program) if in_stages else []
    movable = {i for i, op in enumerate(ops) if i not in backward and not op.once and not outputs & {*op.writes}}
    everything = frozenset(range(len(ops)))
    ties = count()
    nothing: frozenset[int] = frozenset()
    start = (nothing, nothing, nothing, (0, -1))
    best = {start: 0}
    heap = [(0, next(ties), start)]
    while heap:
        time, _, state = heappop(heap)
        if best[state] < time:
            continue
        done, held, doubled, (stage, latest) = state
        if done == everything:
            return time
        for i, op in enumerate(ops):
            if i in done and op.once:
                continue
            if backward_in_order and op.phase is Phase.BACKWARD:
                due = next((b for b in backward if b not in done), None)
                if i != due or not before <= done:
                    continue
            place = (stage, latest)
            if in_stages and stage < len(targets) and i == targets[stage]:
                place = (stage + 1, -1)
            elif in_stages:
                if stage == len(targets) or i not in movable or not latest < i < targets[stage]:
                    continue
                place = (stage, i)
            if not reads[i] <= held:
                continue
            writes = frozenset(op.writes)
            second = doubled | (writes & outputs if i in done else nothing)
            first_copies = sum(counted[v] for v in second)
            rest = held - writes
            here = first_copies + sum(counted[v] for v in rest | writes) + op.scratch
            bound_to_stay = reads[i] | (outputs - second)
            for dropped in _least_drops(sorted(rest - bound_to_stay), counted, here - budget):
                kept = rest - dropped
                kept |= {v for v in writes if v in read_by_some or (v in outputs and v not in second)}
                following = (done | {i}, kept, second, place)
                if time + op.ns < best.get(following, time + op.ns + 1):
                    best[following] = time + op.ns
                    heappush(heap, (time + op.ns, next(ties), following))
    return None


def stage_targets(program: Program) -> list[int]:
    """Of the forward ops those that must run before backward begins, then all backward ops."""
    ops = program.ops
    backward = [i for i, op in enumerate(ops) if op.phase is Phase.BACKWARD]
    wanted = set(ops[backward[0]].reads) if backward else set()
    wanted |= {i for i, v in enumerate(program.values) if v.role is Role.OUTPUT}
    targets: list[int] = []
    for i in range(len(ops) - len(backward) - 1, -1, -1):
        if ops[i].once or wanted & {*ops[i].writes}:
            wanted |= {*ops[i].reads}
            targets.append(i)
    return targets[::-1] + backward


def _least_drops(droppable: list[int], counted: list[int], excess: int) -> list[frozenset[int]]:
    """The sets of values that free `excess` bytes, of which no member could stay."""
    if excess <= 0:
        return [frozenset()]
    found = []
    for size in range(1, len(droppable) + 1):
        for chosen in combinations(droppable, size):
            freed = sum(counted[v] for v in chosen)
            if freed >= excess and all(freed - counted[v] < excess for v in chosen):
                found.append(frozenset(chosen))
    return found
