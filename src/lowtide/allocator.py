"""What a tensor takes from its device's allocator, which is more than the bytes it asks for."""

from __future__ import annotations

UNIT = 512
MIB = 1 << 20
OWN = 10 * MIB  # From here on a tensor gets a segment of its own; below, it is cut from one that others share.
SEGMENT = 2 * MIB
LEFT_OVER = MIB  # Of a segment that is larger than its tensor, at most so much stays with the tensor.


def charged(count: int, kind: str) -> int:
    """Bytes that a device of this kind counts for a tensor of `count` bytes.

    PyTorch's caching allocator on CUDA rounds up to 512 bytes. A large tensor gets a segment of whole 2 MiB; what is
    left over is cut off for others only where it is more than 1 MiB, and counts for the tensor else. (A segment that
    was another's before may leave over as much where a new one would not, and expandable segments never do.)

    >>> charged(1, "cpu"), charged(1, "cuda"), charged(513, "cuda")
    (1, 512, 1024)
    >>> charged(49 * MIB, "cuda") // MIB, charged(98 * MIB, "cuda") // MIB, charged(101 * MIB // 2, "cuda") / MIB
    (50, 98, 50.5)
    """
    if kind != "cuda":
        return count
    size = -(-count // UNIT) * UNIT
    if size < OWN:
        return size
    segment = -(-size // SEGMENT) * SEGMENT
    return segment if segment - size <= LEFT_OVER else size
