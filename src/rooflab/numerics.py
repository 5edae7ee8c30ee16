"""Floating-point formats bit by bit, scaling to eight bits, and what each rounding costs attention.

The formats need Python only; scaling and attention import torch inside their functions.
Attention is emulated: numbers are rounded where a kernel rounds them, and products accumulate in FP32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass


class NumericsError(ValueError):
    """Raised when a format, scheme or block is not known, or a number cannot be scaled."""


# Formats -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Format:
    """A binary floating-point format: one sign bit, then exponent, then mantissa, subnormals below the normal range.

    With `has_infinity`, the highest exponent holds infinity and NaN, as in IEEE 754. Without, it holds numbers, and the
    only NaN has all exponent and mantissa bits set.

    >>> E4M3.decode(0b0_0111_100), E4M3.largest, E4M3.spacing(300)
    (1.5, 448.0, 32.0)
    """

    name: str
    exponent_bits: int
    mantissa_bits: int
    bias: int
    has_infinity: bool
    torch_dtype: str

    @property
    def bits(self) -> int:
        """Return the size of a number in bit."""
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def _largest_code(self) -> int:
        highest = (2**self.exponent_bits - 1) << self.mantissa_bits
        return highest - 1 if self.has_infinity else highest + 2**self.mantissa_bits - 2

    @property
    def largest(self) -> float:
        """Return the largest finite number."""
        return self.decode(self._largest_code)

    @property
    def smallest_normal(self) -> float:
        """Return the smallest number that keeps all mantissa bits."""
        return 2.0 ** (1 - self.bias)

    @property
    def smallest_subnormal(self) -> float:
        """Return the smallest positive number; all numbers below `smallest_normal` are multiples of it."""
        return 2.0 ** (1 - self.bias - self.mantissa_bits)

    @property
    def roundoff(self) -> float:
        """Return the unit roundoff: rounding to nearest changes a normal number by at most this share of it."""
        return 2.0 ** -(self.mantissa_bits + 1)

    def decode(self, code: int) -> float:
        """Return the number that the bits of `code` stand for.

        >>> E5M2.decode(0b0_11111_00), E4M3.decode(0b0_1111_000), E4M3.decode(0b1_0000_001)
        (inf, 256.0, -0.001953125)
        """
        if not 0 <= code < 2**self.bits:
            raise NumericsError(f"{self.name} has codes from 0 to {2**self.bits - 1}, not {code}")
        sign = -1.0 if code >> (self.bits - 1) else 1.0
        exponent = code >> self.mantissa_bits & (2**self.exponent_bits - 1)
        mantissa = code & (2**self.mantissa_bits - 1)
        if code & (2 ** (self.bits - 1) - 1) > self._largest_code:
            return sign * math.inf if self.has_infinity and mantissa == 0 else math.nan
        if exponent == 0:
            return sign * mantissa * self.smallest_subnormal
        return sign * (1 + mantissa / 2**self.mantissa_bits) * 2.0 ** (exponent - self.bias)

    def encode(self, value: float, *, saturate: bool | None = None) -> int:
        """Return the code of the number nearest to `value`; halfway between two, the one with an even code.

        Beyond the largest number, after rounding: `saturate=True` gives the largest, also for infinity, as a GPU's
        conversion to FP8 does (`cvt.satfinite`). `saturate=False` gives infinity, or NaN where there is none.
        The default is torch's: a format without infinity saturates, the others do not; until its pull request 178817 of
        April 2026 torch gave NaN in E4M3. NaN stays NaN, and zero keeps its sign.

        >>> E4M3.decode(E4M3.encode(1000)), E4M3.decode(E4M3.encode(1000, saturate=False))
        (448.0, nan)
        >>> E5M2.decode(E5M2.encode(1e6)), E5M2.decode(E5M2.encode(1e6, saturate=True))
        (inf, 57344.0)
        """
        if math.isnan(value):
            return 2 ** (self.bits - 1) - 1
        if saturate is None:
            saturate = not self.has_infinity
        sign = (math.copysign(1, value) < 0) << (self.bits - 1)
        code = self._largest_code + 1
        if not math.isinf(value):
            exponent = self._exponent(value)
            # Python rounds halves to even. What rounds up to the next power of two carries into the exponent.
            steps = round(abs(value) / 2.0 ** (exponent - self.mantissa_bits))
            code = min(code, steps + (exponent + self.bias - 1 << self.mantissa_bits))
        if saturate:
            code = min(code, self._largest_code)
        return sign | code

    def round(self, value: float, *, saturate: bool | None = None) -> float:
        """Return `value` rounded to the format; see `encode`.

        >>> E4M3.round(0.3), E5M2.round(0.3), BF16.round(0.3)
        (0.3125, 0.3125, 0.30078125)
        """
        return self.decode(self.encode(value, saturate=saturate))

    def spacing(self, value: float) -> float:
        """Return the distance from |value|, a number of the format, to the next larger one.

        >>> E4M3.spacing(1.0), E4M3.spacing(2.0), E4M3.spacing(0.0)
        (0.125, 0.25, 0.001953125)
        """
        if not abs(value) <= self.largest:
            raise NumericsError(f"{value} is not in the range of {self.name}, up to {self.largest:g}")
        return 2.0 ** (self._exponent(value) - self.mantissa_bits)

    def values(self) -> list[float]:
        """Return all finite numbers of the format, sorted; zero appears once.

        >>> len(E4M3.values()), len(E5M2.values()), E4M3.values()[-3:]
        (253, 247, [384.0, 416.0, 448.0])
        """
        if self.bits > 16:
            raise NumericsError(f"{self.name} has {2**self.bits} codes: too many to list")
        positive = [self.decode(code) for code in range(1, self._largest_code + 1)]
        return [-value for value in reversed(positive)] + [0.0] + positive

    def _exponent(self, value: float) -> int:
        """Return floor(log2 |value|), but no less than the exponent of the subnormals."""
        return max(math.frexp(value)[1] - 1, 1 - self.bias) if value else 1 - self.bias


# Micikevicius et al. 2022 (arXiv:2209.05433), table 1; E4M3 is what torch calls float8_e4m3fn.
E4M3 = Format("E4M3", 4, 3, 7, False, "float8_e4m3fn")
E5M2 = Format("E5M2", 5, 2, 15, True, "float8_e5m2")
FP16 = Format("FP16", 5, 10, 15, True, "float16")
BF16 = Format("BF16", 8, 7, 127, True, "bfloat16")
FP32 = Format("FP32", 8, 23, 127, True, "float32")
FORMATS = {format.name: format for format in (E4M3, E5M2, FP16, BF16, FP32)}


# Scaling -------------------------------------------------------------------------------------------------------------

FP32_SMALLEST_NORMAL = FP32.smallest_normal


def quantize(x, scheme: str, format: str = "E4M3", *, block: tuple[int, int] = (128, 128)):
    """Return `x` in an 8-bit format and its scales in FP32, so that x is about codes * scales.

    Each scale maps the largest magnitude of its part to the largest number of the format; a part of zeros has scale 1.
    The part is the whole of `x` ("tensor", scales of shape ()), one row ("row", shape (..., rows, 1)), or one block of
    rows x columns ("block", shape (..., blocks of rows, blocks of columns)); blocks at the edges may be smaller.
    DeepGEMM scales weights by blocks of 128 x 128 and activations by blocks of 1 x 128.
    Raises NumericsError where `x` is not finite: one infinity would turn all other numbers of its part into zeros.

    >>> import torch
    >>> codes, scales = quantize(torch.tensor([[1.0, -3.0], [100.0, 50.0]]), "row")
    >>> codes.float().tolist(), scales.tolist()
    ([[144.0, -448.0], [448.0, 224.0]], [[0.0066964286379516125], [0.2232142835855484]])
    """
    import torch

    if format not in ("E4M3", "E5M2"):
        raise NumericsError(f"no 8-bit format {format!r}; use E4M3 or E5M2")
    if scheme not in ("tensor", "row", "block"):
        raise NumericsError(f"unknown scheme {scheme!r}; choose from tensor, row, block")
    if x.dim() < {"tensor": 0, "row": 1, "block": 2}[scheme]:
        raise NumericsError(f"scheme {scheme!r} needs more dimensions than the shape {tuple(x.shape)} has")
    if scheme == "block" and not all(isinstance(extent, int) and extent > 0 for extent in block):
        raise NumericsError(f"a block has a positive number of rows and of columns, not {block}")
    x = x.float()
    if scheme == "tensor":
        largest = x.abs().amax() if x.numel() else torch.tensor(0.0)
    elif scheme == "row":
        largest = x.abs().amax(-1, keepdim=True) if x.shape[-1] else x.new_zeros(*x.shape[:-1], 1)
    else:
        largest = _largest_by_block(x.abs(), *block)
    if not largest.isfinite().all():
        wrong = int((~x.isfinite()).sum())
        raise NumericsError(f"{wrong} of {x.numel()} numbers are not finite in FP32: clip or mask them before scaling")
    # A subnormal scale would have few bits itself.
    scales = (largest / FORMATS[format].largest).clamp_min(FP32_SMALLEST_NORMAL)
    scales = torch.where(largest == 0, 1.0, scales)
    spread = _spread(scales, x.shape, block) if scheme == "block" else scales
    return (x / spread).to(getattr(torch, FORMATS[format].torch_dtype)), scales


def dequantize(codes, scales, *, block: tuple[int, int] | None = None):
    """Return codes * scales in FP32; give `block` as it was given to `quantize` for its scheme "block".

    >>> import torch
    >>> x = torch.randn(300, 200)
    >>> bool(((dequantize(*quantize(x, "block"), block=(128, 128)) - x).abs() <= x.abs() / 16 + 1e-4).all())
    True
    """
    if block:
        rows, columns = (math.ceil(extent / size) for extent, size in zip(codes.shape[-2:], block, strict=True))
        if tuple(scales.shape) != (*codes.shape[:-2], rows, columns):
            raise NumericsError(f"{tuple(scales.shape)} scales do not fit {tuple(codes.shape)} in blocks of {block}")
        scales = _spread(scales, codes.shape, block)
    elif scales.dim() and tuple(scales.shape) != (*codes.shape[:-1], 1):
        raise NumericsError(f"{tuple(scales.shape)} scales do not fit {tuple(codes.shape)} by row: give their block")
    return codes.float() * scales


def _largest_by_block(magnitude, rows: int, columns: int):
    """Return the largest element of each block, after padding with zeros to whole blocks."""
    import torch

    height, width = magnitude.shape[-2:]
    padded = torch.nn.functional.pad(magnitude, (0, -width % columns, 0, -height % rows))
    blocks = (padded.shape[-2] // rows, rows, padded.shape[-1] // columns, columns)
    return padded.reshape(*magnitude.shape[:-2], *blocks).amax((-3, -1))


def _spread(scales, shape, block: tuple[int, int]):
    """Return one scale per element of `shape`."""
    rows, columns = block
    spread = scales.repeat_interleave(rows, -2).repeat_interleave(columns, -1)
    return spread[..., : shape[-2], : shape[-1]]


# Incoherent processing -----------------------------------------------------------------------------------------------


def hadamard(n: int):
    """Return the n x n Hadamard matrix over sqrt(n) in float64: orthonormal, all entries of one size; n a power of 2.

    >>> (hadamard(2) * 2**0.5).round().tolist()
    [[1.0, 1.0], [1.0, -1.0]]
    """
    import torch

    if n < 1 or n & (n - 1):
        raise NumericsError(f"this construction needs a power of two, not {n}")
    matrix = torch.ones(1, 1, dtype=torch.float64)
    while len(matrix) < n:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix / math.sqrt(n)


def rotate(x, *, seed: int = 0):
    """Return x D H: random signs D, then a Hadamard matrix H, along the last dimension, in the dtype of `x`.

    Rotating Q and K with one seed leaves Q K^T as it is, since D H is orthogonal, and spreads an outlier over its row:
    incoherent processing (Shah et al. 2024, section 3.3).

    >>> import torch
    >>> rotate(torch.tensor([[64.0, 0.0, 0.0, 0.0]])).abs().tolist()
    [[32.0, 32.0, 32.0, 32.0]]
    """
    import torch

    n = x.shape[-1]
    signs = torch.randint(0, 2, (n,), generator=torch.Generator().manual_seed(seed)) * 2 - 1
    working = torch.promote_types(x.dtype, torch.float32)
    return (x.to(working) @ (signs[:, None] * hadamard(n)).to(working)).to(x.dtype)


# Accuracy of attention -----------------------------------------------------------------------------------------------
# One head: FP16 numbers in FP32 tensors, Q of shape (queries, d_h), K and V of (L, d_h). Products accumulate in FP32.

# Rows of Q, and of K and V, that share a scale: the tile of FlashAttention-3's FP8 kernel of 2024 for d_h = 128.
ROWS_PER_SCALE = {"q": 128, "kv": 256}
# FlashAttention-3 multiplies P by 2**8 before rounding it to E4M3 (hopper/softmax.h): P from 2**-14 on stays normal.
P_SCALE = 2.0**8


def _fp16(x):
    return x.half().float()


def _e4m3(x):
    import torch

    return x.to(torch.float8_e4m3fn).float()


def standard_fp16(q, k, v):
    """Return softmax(Q K^T / sqrt(d_h)) V with S and P stored in FP16 between the kernels: unfused attention."""
    s = _fp16(_fp16(q @ k.T) / math.sqrt(q.shape[-1]))
    p = _fp16(s.softmax(-1))
    return _fp16(p @ v)


def flash_fp16(q, k, v):
    """Return attention with S, its softmax and O in FP32 and P rounded to FP16 for P V: FlashAttention-2 and -3."""
    p, row_sum = _unnormalised(q @ k.T / math.sqrt(q.shape[-1]))
    return _fp16(_fp16(p) @ v / row_sum)


def baseline_fp8(q, k, v):
    """Return attention of Q, K, V in E4M3, one scale per tensor, S and P in FP16: the paper's FP8 baseline."""
    q, k, v = (_through_e4m3(x) for x in (q, k, v))
    s = _fp16(q @ k.T / math.sqrt(q.shape[-1]))
    p = _fp16(s.softmax(-1))
    return _fp16(p @ v)


def flash_fp8(q, k, v, *, block_scales: bool = True, incoherent: bool = True):
    """Return attention of Q, K, V and P in E4M3, softmax and O in FP32: FlashAttention-3.

    `incoherent`: Q and K are rotated first. `block_scales`: a scale per block of rows, else one per tensor.
    """
    if incoherent:
        q, k = _fp16(rotate(q)), _fp16(rotate(k))
    if block_scales:
        q = _through_e4m3(q, ROWS_PER_SCALE["q"])
        k, v = (_through_e4m3(x, ROWS_PER_SCALE["kv"]) for x in (k, v))
    else:
        q, k, v = (_through_e4m3(x) for x in (q, k, v))
    p, row_sum = _unnormalised(q @ k.T / math.sqrt(q.shape[-1]))
    return _fp16(_e4m3(p * P_SCALE) @ v / (row_sum * P_SCALE))


def _through_e4m3(x, rows_per_scale: int | None = None):
    """Return `x` after quantisation to E4M3 and back, with one scale for so many rows, or for all."""
    if rows_per_scale is None:
        return dequantize(*quantize(x, "tensor"))
    block = (rows_per_scale, x.shape[-1])
    return dequantize(*quantize(x, "block", block=block), block=block)


def _unnormalised(s):
    """Return exp(S - largest of the row), at most 1, and its sums by row."""
    p = (s - s.amax(-1, keepdim=True)).exp()
    return p, p.sum(-1, keepdim=True)


@dataclass(frozen=True)
class AttentionScheme:
    """One row of an accuracy table: how attention is computed, and the RMSE that the paper reports."""

    attention: Callable
    paper_rmse: float


# Shah et al., NeurIPS 2024, table 3.
ATTENTION_SCHEMES = {
    "FP16 standard": AttentionScheme(standard_fp16, 3.2e-4),
    "FP16 FlashAttention": AttentionScheme(flash_fp16, 1.9e-4),
    "FP8 baseline": AttentionScheme(baseline_fp8, 2.4e-2),
    "FP8 FlashAttention-3": AttentionScheme(flash_fp8, 9.1e-3),
    "FP8 without block scales": AttentionScheme(lambda q, k, v: flash_fp8(q, k, v, block_scales=False), 9.3e-3),
    "FP8 without rotation": AttentionScheme(lambda q, k, v: flash_fp8(q, k, v, incoherent=False), 2.4e-2),
}


def with_outliers(rows: int, d_h: int, *, outlier_rate: float, generator):
    """Return rows x d_h numbers of N(0, 1) + N(0, 100) Bernoulli(outlier_rate) in FP32; 100 is the variance."""
    import torch

    normal, outlier = torch.randn(2, rows, d_h, generator=generator)
    return normal + 10 * outlier * (torch.rand(rows, d_h, generator=generator) < outlier_rate)


def attention_rmse(
    schemes: Iterable[str] = tuple(ATTENTION_SCHEMES),
    *,
    L: int = 8192,
    d_h: int = 128,
    heads: int = 8,
    queries: int = 512,
    outlier_rate: float = 1e-3,
    seed: int = 0,
) -> dict[str, float]:
    """Return the root mean square error of each scheme's output against attention in float64, without a mask.

    Each head has its own Q of `queries` rows and K, V of `L` rows; all schemes get the same. They are drawn in FP32 and
    rounded to FP16 for the schemes only, so that this first rounding is part of the error, as of a kernel's.

    >>> rmse = attention_rmse(["FP16 standard", "FP16 FlashAttention"], L=256, heads=1)
    >>> rmse["FP16 standard"] > rmse["FP16 FlashAttention"]
    True
    """
    import torch

    schemes = list(schemes)
    if min(L, heads, queries) < 1:
        raise NumericsError("attention needs at least one key, one head and one query")
    for name in schemes:
        if name not in ATTENTION_SCHEMES:
            raise NumericsError(f"no scheme {name!r}; choose from {', '.join(ATTENTION_SCHEMES)}")
    generator = torch.Generator().manual_seed(seed)
    squares = dict.fromkeys(schemes, 0.0)
    for _ in range(heads):
        q, k, v = (with_outliers(rows, d_h, outlier_rate=outlier_rate, generator=generator) for rows in (queries, L, L))
        reference = (q.double() @ k.double().T / math.sqrt(d_h)).softmax(-1) @ v.double()
        operands = [_fp16(x) for x in (q, k, v)]
        for name in schemes:
            error = ATTENTION_SCHEMES[name].attention(*operands).double() - reference
            squares[name] += error.square().mean().item() / heads
    return {name: math.sqrt(square) for name, square in squares.items()}
