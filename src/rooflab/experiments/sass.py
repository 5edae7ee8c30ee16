"""The machine code (SASS) of a compiled kernel for sm_90: its multiply-adds, and marks on them that can be changed."""

from __future__ import annotations

import re
import struct
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

# Bits of the upper half of an instruction of 16 byte. NVIDIA documents neither: `nvdisasm` prints the first as `.reuse`
# of the second operand. DeepGEMM's `interleave_ffma.py` (commit 82d4b99) flips both, and names them reuse and yield.
_REUSE, _STAY = 1 << 59, 1 << 45


class MultiplyAdd(NamedTuple):
    """One FFMA: its text, its 16 byte as two halves, and whether its second operand is also that of the next FFMA."""

    text: str
    low: int
    high: int
    shared: bool

    @property
    def keeps(self) -> bool:
        """Tell whether an operand is kept beside the unit for the next instruction."""
        return ".reuse" in self.text

    @property
    def yields(self) -> bool:
        """Tell whether the warp scheduler is asked to go on with another warp after it."""
        return not self.high & _STAY


def multiply_adds(cubin: bytes) -> list[MultiplyAdd]:
    """Return the FFMAs of a kernel's machine code in their order; needs the disassembler that Triton brings."""
    from ..kernels._triton import PTXAS

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        command = [PTXAS.with_name("nvdisasm"), "-hex", "-c", path]
        listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    line = r"/\*[0-9a-f]{4,}\*/\s+([^;]*);\s+/\* 0x([0-9a-f]{16}) \*/\s+/\* 0x([0-9a-f]{16}) \*/"
    code = re.findall(line, listing)
    found = []
    for (text, low, high), (following, *_) in zip(code, code[1:] + [("", "", "")], strict=True):
        if text.startswith("FFMA"):
            shared = following.startswith("FFMA") and _second(text) == _second(following)
            found.append(MultiplyAdd(" ".join(text.split()), int(low, 16), int(high, 16), shared))
    return found


def _second(text: str) -> str:
    return text.split(",")[2].strip().removesuffix(".reuse")


def count_marks(cubin: bytes) -> dict[str, int]:
    """Return how many FFMAs a kernel's machine code has, keep an operand for the next one, and yield after it."""
    found = multiply_adds(cubin)
    return {
        "multiply_adds": len(found),
        "keeping": sum(each.keeps for each in found),
        "yielding": sum(each.yields for each in found),
    }


def remarked(cubin: bytes, marks: Callable[[int], tuple[bool, bool]]) -> bytes:
    """Return the code with `marks(i)`, (keeps, yields), for its i-th FFMA that shares an operand with the next one.

    Equal instructions, as two warpgroups with the same code have them, count once and are changed together.
    """
    different = dict.fromkeys((each.low, each.high) for each in multiply_adds(cubin) if each.shared)
    changed = {}
    for i, (low, high) in enumerate(different):
        keeps, yields = marks(i)
        new = high & ~_REUSE & ~_STAY | keeps * _REUSE | (not yields) * _STAY
        changed[struct.pack("<QQ", low, high)] = struct.pack("<QQ", low, new)
    # All at once: what one becomes may be what another was. Instructions begin at multiples of 16 byte in the file.
    pieces = (cubin[i : i + 16] for i in range(0, len(cubin), 16))
    return b"".join(changed.get(piece, piece) for piece in pieces)
