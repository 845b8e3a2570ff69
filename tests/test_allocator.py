"""What PyTorch's caching allocator counts for a tensor, by a model of it that takes segments and cuts them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lowtide.allocator import MIB, charged


def in_new_segments(size: int) -> int:
    """c10/cuda/CUDACachingAllocator.cpp: round_size, get_allocation_size and should_split, on an empty device."""
    size = 512 * -(-size // 512)
    if size <= MIB:
        return size
    segment = 20 * MIB if size < 10 * MIB else 2 * MIB * -(-size // (2 * MIB))
    return size if segment - size > MIB else segment


@given(st.integers(1, 100 * MIB) | st.sampled_from([9, 10, 11, 49, 50]).map(lambda n: n * MIB))
def test_a_tensor_in_a_new_segment(size: int) -> None:
    assert charged(size, "cuda") == in_new_segments(size)
    assert charged(size, "cpu") == size


def test_it_is_never_less_than_asked_nor_much_more() -> None:
    for size in range(1, 64 * MIB, 12_345):
        assert size <= charged(size, "cuda") <= size + MIB + 512
