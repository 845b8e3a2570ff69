"""The noun Device: what a device can do, for estimates of a step that will run on one that is not here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from lowtide.errors import LowtideError


@dataclass(frozen=True, slots=True)
class Device:
    """What a device can do at best.

    name        for people
    kind        "cuda" or "cpu": whose kernels and whose allocator
    flops       arithmetic operations a second, by bytes an element of the operands (matrix units where it has them)
    bandwidth   bytes a second to and from memory
    launch      nanoseconds that even the smallest call takes
    single      operations a second on four-byte numbers where TF32 is switched off; 0 where that changes nothing
    memory      bytes it has, for budgets such as "80%"; 0 where that is not known
    seen        how far estimates were from measured times, in words; empty where nobody has looked
    """

    name: str
    kind: str
    flops: Mapping[int, float]
    bandwidth: float
    launch: int
    single: float = 0
    memory: int = 0
    seen: str = ""

    def __post_init__(self) -> None:
        if self.kind not in ("cuda", "cpu"):
            raise LowtideError(f'device {self.name!r} is of kind {self.kind!r}, which is neither "cuda" nor "cpu"')
        if set(self.flops) != {8, 4, 2, 1} or not all(each > 0 for each in (*self.flops.values(), self.bandwidth)):
            raise LowtideError(
                f"device {self.name!r}: flops gives operations a second for 8, 4, 2 and 1 bytes an element, and "
                f"bandwidth bytes a second, all above 0; found {dict(self.flops)} and {self.bandwidth}"
            )


# About three quarters of what the makers' data sheets promise without sparsity, which good kernels reach. The CPU is
# none in particular; how far it was from one core stands in bench/results/estimates.jsonl.
CPU = Device(
    "cpu",
    "cpu",
    {8: 2e10, 4: 5e10, 2: 5e10, 1: 5e10},
    1e10,
    4_000,
    seen="1.7 to 3.6 times what one core took",
)
H100 = Device("h100", "cuda", {8: 3e13, 4: 3e14, 2: 7e14, 1: 1.2e15}, 2.8e12, 4_000, 5e13, 80 * 10**9)
H200 = Device("h200", "cuda", {8: 3e13, 4: 3e14, 2: 7e14, 1: 1.2e15}, 4e12, 4_000, 5e13, 141 * 10**9)
A100 = Device("a100", "cuda", {8: 1.4e13, 4: 1.1e14, 2: 2.3e14, 1: 4.6e14}, 1.7e12, 4_000, 1.4e13, 80 * 10**9)
L40S = Device("l40s", "cuda", {8: 1e12, 4: 1.3e14, 2: 2.6e14, 1: 5e14}, 7e11, 4_000, 6.5e13, 48 * 10**9)
RTX_4090 = Device("4090", "cuda", {8: 9e11, 4: 6e13, 2: 1.2e14, 1: 2.4e14}, 8.5e11, 4_000, 6e13, 24 * 10**9)
DEVICES: Mapping[str, Device] = {device.name: device for device in (A100, CPU, H100, H200, L40S, RTX_4090)}


def resembling(name: str, kind: str) -> Device:
    """The known device that one of this name and kind is most like, a H100 for a GPU that is not known.

    >>> resembling("NVIDIA H200", "cuda").name
    'h200'
    """
    if kind == "cpu":
        return CPU
    found = [device for word, device in DEVICES.items() if device.kind == kind and word in name.lower()]
    return found[0] if found else H100


def named(device: str | Device | Mapping[str, object]) -> Device:
    """The device of this name, or made from a table of its fields.

    >>> named("h100").kind
    'cuda'
    >>> named({"name": "mine", "kind": "cuda", "flops": {8: 1e12, 4: 1e13, 2: 1e14, 1: 1e14},
    ...        "bandwidth": 1e12, "launch": 4000}).name
    'mine'
    """
    if isinstance(device, Device):
        return device
    if isinstance(device, Mapping):
        known = {field.name for field in fields(Device)}
        required = {"name", "kind", "flops", "bandwidth", "launch"}
        if not required <= set(device) <= known:
            raise LowtideError(
                f"device={dict(device)!r}: a device is described by {', '.join(sorted(required))}, and maybe "
                f"{', '.join(sorted(known - required))}"
            )
        return Device(**device)  # type: ignore[arg-type]
    if device.lower() not in DEVICES:
        raise LowtideError(
            f'device={device!r} is not known; write one of {", ".join(map(repr, DEVICES))}, "cuda" for the one that is '
            f"here, or give a lowtide.Device"
        )
    return DEVICES[device.lower()]
