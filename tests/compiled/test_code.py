"""Reading Inductor's code for what it holds, held by code worked out by hand."""

from __future__ import annotations

import pytest
import torch

from lowtide.compiled.code import Ledger, View, blank, carry_out
from lowtide.errors import UnsupportedModel

CODE = """
class Runner:
    def call(self, args):
        primals_1, primals_2 = args
        args.clear()
        assert_size_stride(primals_1, (8, 8), (8, 1))
        with torch.cuda._DeviceGuard(0):
            buf0 = empty_strided_cuda((8, 8), (8, 1), torch.float32)
            stream0 = get_raw_stream(0)
            triton_poi_fused_0.run(primals_1, buf0, 64, stream=stream0)
            buf1 = empty_strided_cuda((8, 16), (16, 1), torch.float32)
            extern_kernels.mm(buf0, reinterpret_tensor(primals_2, (8, 16), (1, 8), 0), out=buf1)
            buf2 = reinterpret_tensor(buf0, (4, 16), (16, 1), 0); del buf0  # reuse
            del primals_1
            buf3 = torch.ops.aten.sort.stable(buf1, stable=False, dim=1, descending=False)
            del buf1
            buf4 = buf3[0]
            buf5 = buf3[1]
            del buf3
            del buf5
            buf6 = empty_strided_cuda((1, ), (1, ), torch.float32)
            triton_red_fused_1.run(buf4, buf6, 128, stream=stream0)
            del buf4
        return (buf6, reinterpret_tensor(buf2, (64, ), (1, ), 0), primals_2, )
"""


def test_every_storage_is_held_from_the_line_that_makes_it_to_its_last_name() -> None:
    ledger = Ledger()
    weight = blank(torch.empty(8, 8))
    kept = blank(torch.empty(16, 8))
    ledger.hold([weight, kept])
    assert ledger.now == 256 + 512
    returned = carry_out(CODE, [weight, kept], ledger)
    # kept 512, buf0 and buf2 the same 256, buf1 512, and what sort returns: 512 and twice as much for its indices.
    assert ledger.peak == 512 + 256 + 512 + 512 + 1024
    assert ledger.at == "torch.ops.aten.sort.stable"
    assert ledger.now == 512 + 256 + 4
    assert [view.tensor.shape for view in returned if isinstance(view, View)] == [(1,), (64,), (16, 8)]


def test_what_the_allocator_rounds_to_counts() -> None:
    ledger = Ledger(kind="cuda")
    carry_out(CODE, [blank(torch.empty(8, 8)), blank(torch.empty(16, 8))], ledger)
    assert ledger.now == 512 + 512


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("def other(args): pass", "0 functions"),
        ("def call(args):\n    args.clear()", "without returning"),
        ("def call(args):\n    a = alloc_from_pool(pool, 0, torch.float32, (4,), (1,))\n    return (a,)", "pools"),
    ],
)
def test_code_that_cannot_be_read_is_refused(code: str, found: str) -> None:
    with pytest.raises(UnsupportedModel, match=found):
        carry_out(code, [], Ledger())
