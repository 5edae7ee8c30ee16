"""The GEMMs on a real GPU, where Gluon's kernels run too: pytest -m gpu tests/gpu/test_gemm.py."""

import pytest
import torch

from rooflab.kernels import check, gemm, gemm_fp8

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]
HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
hopper = pytest.mark.skipif(not HOPPER, reason="needs sm_90")

ANY_CARD = [gemm.naive, gemm.tensor_core, gemm.grouped, gemm.autotuned, gemm.split_k]
BY_TMA = [gemm.tma, gemm.persistent, gemm.warp_specialised]
VERSIONS = ANY_CARD + [pytest.param(each, marks=hopper) for each in BY_TMA]


def normal(*shape, seed=0, dtype=torch.bfloat16):
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(shape, generator=generator, device="cuda").to(dtype)


def poison(M, N, dtype=torch.bfloat16):
    return torch.full((M, N), float("nan"), dtype=dtype, device="cuda")


# Full tiles, many waves, one tile, ragged in every direction, few rows, fewer blocks of K than slots in a ring.
SHAPES = [(2048, 2048, 1024), (4096, 4608, 512), (64, 128, 64), (1000, 1544, 776), (16, 4096, 4096), (300, 520, 8)]


@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.__name__)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gemm(version, shape):
    M, N, K = shape
    a, b = normal(M, K), normal(N, K, seed=1)
    reference = gemm.reference(a, b)
    for _ in range(3):  # a missing barrier shows now and then only
        check(version(a, b, poison(M, N)), reference, dtype="bf16", length=K)


@hopper
@pytest.mark.parametrize("config", [
    dict(BLOCK_M=128, BLOCK_N=256, BLOCK_K=64, GROUP=1, STAGES=3),
    dict(BLOCK_M=256, BLOCK_N=128, BLOCK_K=64, GROUP=8, STAGES=4),
    dict(BLOCK_M=128, BLOCK_N=256, BLOCK_K=128, GROUP=8, STAGES=2),
    dict(BLOCK_M=128, BLOCK_N=128, BLOCK_K=64, GROUP=8, STAGES=6),
], ids=str)  # fmt: skip
def test_other_rings(config):
    M, N, K = 1000, 5000, 776
    a, b = normal(M, K, dtype=torch.float16), normal(N, K, seed=1, dtype=torch.float16)
    out = gemm.warp_specialised(a, b, poison(M, N, torch.float16), config)
    check(out, gemm.reference(a, b), dtype="fp16", length=K)


THIRDS = [each for each in gemm.WARP_SPECIALISED["small"] if each["BLOCK_N"] == gemm.THIRDS]


@hopper
@pytest.mark.parametrize("config", THIRDS + [dict(THIRDS[0], STAGES=2, GROUP=1)], ids=str)
# Several tiles per SM, one wave, an incomplete last tile, less than one consumer's columns, ragged, one short block.
@pytest.mark.parametrize(
    "shape",
    [(4096, 4608, 512), (256, 12288, 4096), (256, 22016, 1024), (100, 8, 200), (1000, 1544, 776), (300, 520, 8)],
    ids=str,
)
def test_three_consumers(config, shape):
    M, N, K = shape
    a, b = normal(M, K), normal(N, K, seed=1)
    reference = gemm.reference(a, b)
    outs = [gemm.warp_specialised(a, b, poison(M, N), config) for _ in range(10)]
    check(outs[0], reference, dtype="bf16", length=K)
    assert all(torch.equal(out, outs[0]) for out in outs)


@hopper
def test_all_rows_and_columns_arrive_where_they_belong():
    """Integers, all sums exact: a tile turned the wrong way round differs."""
    M, N, K = 300, 1000, 640
    a = torch.arange(M * K, device="cuda").view(M, K).remainder(7).bfloat16()
    b = torch.arange(N * K, device="cuda").view(N, K).remainder(5).bfloat16()
    expected = gemm.reference(a, b).bfloat16()
    assert torch.equal(gemm.warp_specialised(a, b, poison(M, N), THIRDS[0]), expected)


@hopper
@pytest.mark.parametrize(
    "shape", [(256, 12288, 4096), (256, 22016, 4096), (256, 8192, 8192), (256, 4096, 4096)], ids=str
)
def test_chosen_tiles(shape):
    M, N, K = shape
    a, b = normal(M, K), normal(N, K, seed=1)
    check(gemm.warp_specialised(a, b, poison(M, N)), gemm.reference(a, b), dtype="bf16", length=K)


@hopper
def test_nan_and_infinity_pass():
    a, b = normal(200, 136), normal(264, 136, seed=1)
    a[199, 135], b[263, 0] = float("nan"), float("inf")
    reference = gemm.reference(a, b)
    for version in BY_TMA:
        check(version(a, b, poison(200, 264)), reference, dtype="bf16", length=136)
    out = gemm.warp_specialised(a, b, poison(200, 264), THIRDS[0])
    check(out, reference, dtype="bf16", length=136)


def test_split_k_gives_equal_bits():
    a, b = normal(16, 4096), normal(4096, 4096, seed=1)
    assert torch.equal(gemm.split_k(a, b), gemm.split_k(a, b))


def test_tune_finds_a_config_that_is_right():
    a, b = normal(256, 4096), normal(4096, 4096, seed=1)
    assert gemm.tune(a, b) in gemm.CONFIGS["small"]
    assert gemm.config_of(a, b) is gemm.TUNED[gemm._key(a, b)]
    check(gemm.autotuned(a, b), gemm.reference(a, b), dtype="bf16", length=4096)


FP8 = {
    gemm_fp8.fp8_tensor: lambda M, N, K: ((M, K), (N, K)),
    gemm_fp8.fp8_row: lambda M, N, K: ((1, K), (1, K)),
    gemm_fp8.fp8_block: lambda M, N, K: ((1, 128), (128, 128)),
    gemm_fp8.fp8_block_specialised: lambda M, N, K: ((1, 128), (128, 128)),
}


@hopper
@pytest.mark.parametrize("version", FP8, ids=lambda version: version.__name__)
@pytest.mark.parametrize("shape", [(2048, 2304, 1024), (1000, 1544, 784), (128, 128, 128)], ids=str)
def test_fp8(version, shape):
    M, N, K = shape
    block_a, block_b = FP8[version](M, N, K)
    a, scale_a = gemm_fp8.quantise(normal(M, K, dtype=torch.float32), *block_a)
    b, scale_b = gemm_fp8.quantise(normal(N, K, seed=1, dtype=torch.float32), *block_b)
    reference = gemm_fp8.reference(a, b, scale_a, scale_b, block_a, block_b)
    for _ in range(3):
        out = version(a, b, scale_a, scale_b, poison(M, N))
        # The Tensor Cores add FP8 products with some 13 bits behind the point; fp16 has 10.
        check(out, reference, dtype="bf16", length=K, accumulate="fp16")


# Several tiles per SM, so that slots of the ring serve several of them; then ragged, with few rows and short sums.
DEEP = [(4096, 4608, 1152), (2048, 2304, 1024), (1000, 1544, 784)]
RAGGED = [(1, 8, 16), (1, 264, 784), (3, 1544, 272), (64, 136, 128), (129, 1544, 400), (200, 264, 272), (333, 520, 784)]


@hopper
@pytest.mark.parametrize("version", ["fp8_block", *gemm_fp8.SPECIALISED], ids=str)
@pytest.mark.parametrize("shape", DEEP + RAGGED, ids=str)
def test_fp8_scales_are_those_of_the_block(version, shape):
    """Scales change steeply along M, N and K, and each result is compared with its own size."""
    M, N, K = shape
    rise, fall = (torch.logspace(*ends, K, device="cuda") for ends in ((-1, 1), (1, -1)))
    x = normal(M, K, dtype=torch.float32) * torch.logspace(-2, 2, M, device="cuda")[:, None] * rise
    y = normal(N, K, seed=1, dtype=torch.float32) * torch.logspace(-2, 2, N, device="cuda")[:, None] * fall
    (a, scale_a), (b, scale_b) = gemm_fp8.quantise(x, 1, 128), gemm_fp8.quantise(y, 128, 128)
    if K > 128:  # what lies between the columns reaches no result
        scale_a.as_strided((scale_a.shape[1], gemm_fp8.pitch(M)), (gemm_fp8.pitch(M), 1))[:, M:] = float("nan")
    a64, b64 = gemm_fp8.dequantise(a, scale_a, 1, 128), gemm_fp8.dequantise(b, scale_b, 128, 128)
    if version == "fp8_block":
        outs = [gemm_fp8.fp8_block(a, b, scale_a, scale_b, poison(M, N)) for _ in range(5)]
    else:
        config = gemm_fp8.SPECIALISED[version]
        outs = [gemm_fp8.fp8_block_specialised(a, b, scale_a, scale_b, poison(M, N), config) for _ in range(5)]
    # The size of a sum of such products with random signs. A sum that is 5 times as large loses 5 x 2^-9 to bf16, and
    # the Tensor Cores add with some 13 bits behind the point.
    size = (a64.square() @ b64.square().T).sqrt()
    assert ((outs[0].double() - a64 @ b64.T).abs() / size).max() < 2**-5
    assert all(torch.equal(out, outs[0]) for out in outs)  # a missing barrier shows now and then only


@hopper
def test_fp8_rows_of_any_number_choose_a_tile():
    """The width that `tile_width` takes, where that is the narrow and where it is the wide one."""
    for M, width in ((16, 256), (256, 128), (333, 256)):
        assert gemm_fp8.tile_width(M, 22016, 132) == width
        a, scale_a = gemm_fp8.quantise(normal(M, 1024, dtype=torch.float32), 1, 128)
        b, scale_b = gemm_fp8.quantise(normal(22016, 1024, seed=1, dtype=torch.float32), 128, 128)
        out = gemm_fp8.fp8_block_specialised(a, b, scale_a, scale_b, poison(M, 22016))
        reference = gemm_fp8.reference(a, b, scale_a, scale_b, (1, 128), (128, 128))
        check(out, reference, dtype="bf16", length=1024, accumulate="fp16")
