"""Settled: the forward values of a step that the papers' methods are not asked about, because they are kept anyway."""

from __future__ import annotations

from lowtide.planners.step import Step

SHARE = 100
FAR = 4


def settled(step: Step) -> tuple[bool, ...]:
    """Per value, whether it is kept at no choice: an output, what cannot be made again, or a trifle.

    Trifles are the smallest values, together at most a hundredth of the bytes that forward makes: statistics of norms,
    masks of a few bytes, states of generators, tables of angles that every layer reads. Kept, they cost next to
    nothing; but in a line of stages or a graph of values each would tie together all stages that read it.
    """
    sizes = step.program.arrays.bytes.tolist()
    kept = [forced or held for forced, held in zip(step.forced, step.held)]
    free = sorted((v for v, made in enumerate(step.forward) if made and not kept[v]), key=lambda v: sizes[v])
    room = sum(sizes[v] for v in free) // SHARE
    for v in free:
        room -= sizes[v]
        if room < 0:
            break
        kept[v] = True
    return tuple(kept)


def with_far_reaching(step: Step, kept: tuple[bool, ...]) -> tuple[bool, ...]:
    """`kept`, and what a forward op reads from farther away than a quarter of the forward ops: the outermost skips of a
    U-Net, what an encoder hands to every layer of a decoder. Such values leave no place where only one crosses.
    """
    more = list(kept)
    for op in range(step.boundary):
        for v in step.reads[op]:
            if FAR * (op - step.writer[v]) > step.boundary:
                more[v] = True
    return tuple(more)
