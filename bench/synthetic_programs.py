"""Training steps of well-known shapes as Programs, with the ratios of bytes and nanoseconds of real ones.

Times are those of dense products, convolutions and memory-bound ops on a large GPU in half precision: products and
convolutions take time by their operations, everything else by the bytes it touches.
"""

from __future__ import annotations

from lowtide.program import Op, Phase, Program, Role, Value

OPERATIONS_A_NS = 400_000
BYTES_A_NS = 2_500
LAUNCH_NS = 2_000


class Recorder:
    """Collects values and ops; forward first, then what `later` put aside, last first, as backward."""

    def __init__(self) -> None:
        self.values: list[Value] = []
        self.ops: list[Op] = []
        self.phase = Phase.FORWARD
        self.gradient: dict[int, int] = {}
        self.tape: list = []

    def value(self, name: str, size: int, role: Role = Role.ACTIVATION) -> int:
        self.values.append(Value(name, size, role))
        return len(self.values) - 1

    def size(self, v: int) -> int:
        return self.values[v].bytes

    def op(
        self, name: str, reads: list[int], sizes: list[int], *, flops: int = 0, once: str = "", roles=None
    ) -> list[int]:
        """One op that writes values of these sizes; its time is that of its operations or of its bytes."""
        plain = Role.ACTIVATION if self.phase is Phase.FORWARD else Role.GRADIENT
        roles = roles or [plain] * len(sizes)
        moved = sum(self.size(v) for v in reads) + sum(sizes)
        ns = LAUNCH_NS + max(flops // OPERATIONS_A_NS, moved // BYTES_A_NS)
        writes = [self.value(f"{name}.{i}", size, role) for i, (size, role) in enumerate(zip(sizes, roles))]
        self.ops.append(Op(name, self.phase, tuple(dict.fromkeys(reads)), tuple(writes), ns, 0, once))
        return writes

    def later(self, backward) -> None:
        self.tape.append(backward)

    def arrives(self, v: int, gradient: int) -> None:
        """A gradient of v; a second one is added to the first."""
        if v in self.gradient:
            gradient = self.op("add", [self.gradient[v], gradient], [self.size(v)])[0]
        self.gradient[v] = gradient

    def linear(self, x: int, weight: int, out: int, flops: int, name: str = "mm") -> int:
        """A product or convolution: its backward reads its input."""
        w = self.value("weight", weight, Role.STATIC)
        (y,) = self.op(name, [x, w], [out], flops=flops)

        def backward() -> None:
            dy = self.gradient.pop(y)
            if self.values[x].role is not Role.STATIC:
                self.arrives(x, self.op(f"{name}_dgrad", [dy, w], [self.size(x)], flops=flops)[0])
            self.op(f"{name}_wgrad", [dy, x], [weight], flops=flops, roles=[Role.OUTPUT])

        self.later(backward)
        return y

    def pointwise(self, x: int, name: str, *, reads_result: bool = False) -> int:
        """An elementwise op whose backward reads its input or its result."""
        (y,) = self.op(name, [x], [self.size(x)])

        def backward() -> None:
            dy = self.gradient.pop(y)
            self.arrives(x, self.op(f"{name}_backward", [dy, y if reads_result else x], [self.size(x)])[0])

        self.later(backward)
        return y

    def norm(self, x: int, stats: int, name: str, running: list[int] | None = None) -> int:
        """A normalisation: its backward reads its input and its small statistics."""
        sizes = [self.size(x), stats]
        if running is not None:
            sizes.append(stats)
        written = self.op(name, [x], sizes)
        if running is not None:
            running.append(written[2])
        y, saved = written[:2]

        def backward() -> None:
            dy = self.gradient.pop(y)
            roles = [Role.GRADIENT, Role.OUTPUT]
            self.arrives(x, self.op(f"{name}_backward", [dy, x, saved], [self.size(x), stats], roles=roles)[0])

        self.later(backward)
        return y

    def add(self, x: int, y: int) -> int:
        (z,) = self.op("add", [x, y], [self.size(x)])

        def backward() -> None:
            dz = self.gradient.pop(z)
            self.arrives(x, dz)
            self.arrives(y, dz)

        self.later(backward)
        return z

    def dropout(self, x: int) -> int:
        (state,) = self.op("generator_state", [], [5056], once="draws from the generator")
        y, mask = self.op("dropout", [x, state], [self.size(x), self.size(x) // 2])

        def backward() -> None:
            self.arrives(x, self.op("mul", [self.gradient.pop(y), mask], [self.size(x)])[0])

        self.later(backward)
        return y

    def finish(self, result: int, leaves: list[int]) -> Program:
        (loss, weight) = self.op(
            "cross_entropy", [result], [4, self.size(result)], roles=[Role.OUTPUT, Role.ACTIVATION]
        )
        self.op("leave", [loss, *leaves], [], once="ends forward")
        self.phase = Phase.BACKWARD
        (grown,) = self.op("enter", [loss], [4], once="begins backward")
        self.gradient[result] = self.op("cross_entropy_backward", [grown, weight], [self.size(result)])[0]
        for backward in reversed(self.tape):
            backward()
        return Program(tuple(self.values), tuple(self.ops))


def transformer(
    layers: int, *, width: int = 1024, tokens: int = 25_216, context: int = 197, vocabulary: int = 1000,
    dropout: bool = False,
) -> Program:  # fmt: skip
    """Pre-norm transformer; the sizes by default are those of ViT-L with 128 images in half precision."""
    r = Recorder()
    unit, stats = 2 * tokens * width, 8 * tokens

    def dense(x: int, inner: int, outer: int, rows: int = tokens) -> int:
        return r.linear(x, 2 * inner * outer, 2 * rows * outer, 2 * rows * inner * outer)

    x = dense(r.value("batch", unit, Role.STATIC), width, width)
    for _ in range(layers):
        qkv = dense(r.norm(x, stats, "layer_norm"), width, 3 * width)
        a, lse = r.op("attention", [qkv], [unit, stats], flops=4 * tokens * context * width)

        def backward(qkv: int = qkv, a: int = a, lse: int = lse) -> None:
            reads = [r.gradient.pop(a), qkv, a, lse]
            r.arrives(qkv, r.op("attention_backward", reads, [3 * unit], flops=10 * tokens * context * width)[0])

        r.later(backward)
        p = dense(a, width, width)
        x = r.add(x, r.dropout(p) if dropout else p)
        f = dense(r.norm(x, stats, "layer_norm"), width, 4 * width)
        m = dense(r.pointwise(f, "gelu"), 4 * width, width)
        x = r.add(x, r.dropout(m) if dropout else m)
    head = dense(r.norm(x, stats, "layer_norm"), width, vocabulary)
    return r.finish(head, [])


def resnet(blocks: tuple[int, ...] = (3, 4, 6, 3), batch: int = 128) -> Program:
    """Bottleneck residual network on 224 x 224 images in half precision."""
    r = Recorder()
    running: list[int] = []

    def conv(x: int, inner: int, outer: int, pixels: int, kernel: int) -> int:
        weight, out = 2 * inner * outer * kernel**2, 2 * batch * outer * pixels
        y = r.linear(x, weight, out, 2 * batch * pixels * inner * outer * kernel**2, "conv")
        return r.norm(y, 8 * outer, "batch_norm", running)

    x = conv(r.value("batch", 2 * batch * 3 * 224**2, Role.STATIC), 3, 64, 112**2, 7)
    x = _pool(r, r.pointwise(x, "relu", reads_result=True))
    inner, side = 64, 56
    for stage, count in enumerate(blocks):
        width = 64 * 2**stage
        for block in range(count):
            stride = 2 if stage and not block else 1
            h = r.pointwise(conv(x, inner, width, side**2, 1), "relu", reads_result=True)
            side //= stride
            h = r.pointwise(conv(h, width, width, side**2, 3), "relu", reads_result=True)
            h = conv(h, width, 4 * width, side**2, 1)
            short = conv(x, inner, 4 * width, side**2, 1) if not block else x
            x = r.pointwise(r.add(h, short), "relu", reads_result=True)
            inner = 4 * width
    return r.finish(r.linear(_mean(r, x, 2 * batch * inner), 2 * inner * 1000, 2 * batch * 1000, 0), running)


def unet(depth: int = 4, width: int = 64, side: int = 256, batch: int = 16) -> Program:
    """U-Net: two convolutions a level on the way down and up, and a skip across at every level."""
    r = Recorder()
    running: list[int] = []

    def conv(x: int, inner: int, outer: int, side: int, kernel: int = 3) -> int:
        weight, out = 2 * inner * outer * kernel**2, 2 * batch * outer * side**2
        y = r.linear(x, weight, out, 2 * batch * side**2 * inner * outer * kernel**2, "conv")
        return r.pointwise(r.norm(y, 8 * outer, "batch_norm", running), "relu", reads_result=True)

    x = r.value("batch", 2 * batch * 3 * side**2, Role.STATIC)
    inner, skips = 3, []
    for level in range(depth):
        outer = width * 2**level
        x = conv(conv(x, inner, outer, side), outer, outer, side)
        skips.append(x)
        x, inner, side = _pool(r, x), outer, side // 2
    x = conv(conv(x, inner, 2 * inner, side), 2 * inner, 2 * inner, side)
    inner *= 2
    for skip in reversed(skips):
        side *= 2
        up = r.linear(x, 8 * inner * (inner // 2), 2 * batch * side**2 * (inner // 2),
                      2 * batch * side**2 * inner * (inner // 2), "conv_transpose")  # fmt: skip
        (x,) = r.op("cat", [skip, up], [r.size(skip) + r.size(up)])

        def backward(x: int = x, skip: int = skip, up: int = up) -> None:
            parts = r.op("split", [r.gradient.pop(x)], [r.size(skip), r.size(up)])
            r.arrives(skip, parts[0])
            r.arrives(up, parts[1])

        r.later(backward)
        x = conv(conv(x, inner, inner // 2, side), inner // 2, inner // 2, side)
        inner //= 2
    return r.finish(r.linear(x, 2 * inner * 2, 2 * batch * side**2 * 2, 0, "conv"), running)


def _pool(r: Recorder, x: int) -> int:
    y, index = r.op("max_pool", [x], [r.size(x) // 4, r.size(x)])

    def backward() -> None:
        r.arrives(x, r.op("max_pool_backward", [r.gradient.pop(y), x, index], [r.size(x)])[0])

    r.later(backward)
    return y


def _mean(r: Recorder, x: int, size: int) -> int:
    (y,) = r.op("mean", [x], [size])
    r.later(lambda: r.arrives(x, r.op("expand", [r.gradient.pop(y)], [r.size(x)])[0]))
    return y


SHAPES = {
    "transformer-6": lambda: transformer(6),
    "transformer-24": lambda: transformer(24),
    "gpt-12": lambda: transformer(12, width=768, tokens=8192, context=1024, vocabulary=50_257, dropout=True),
    "resnet-50": lambda: resnet(),
    "resnet-152": lambda: resnet((3, 8, 36, 3), 48),
    "unet-4": lambda: unet(),
    "unet-5": lambda: unet(5, 32, 512, 8),
}
LARGE = {
    "transformer-40": lambda: transformer(40),
    "transformer-200": lambda: transformer(200),
    "transformer-800": lambda: transformer(800),
}
