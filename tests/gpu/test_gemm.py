"""The GEMMs on a real GPU, where Gluon's kernels run too: pytest -m gpu tests/gpu/test_gemm.py."""

import pytest
import torch

from rooflab.kernels import check, gemm, gemm_fp8

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]
HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
hopper = pytest.mark.skipif(not HOPPER, reason="needs sm_90")

ANY_CARD = [gemm.naive, gemm.tensor_core, gemm.grouped, gemm.autotuned, gemm.split_k]
VERSIONS = ANY_CARD + [pytest.param(each, marks=hopper) for each in (gemm.tma, gemm.persistent, gemm.warp_specialised)]


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


@hopper
def test_nan_and_infinity_pass():
    a, b = normal(200, 136), normal(264, 136, seed=1)
    a[199, 135], b[263, 0] = float("nan"), float("inf")
    reference = gemm.reference(a, b)
    for version in (gemm.tma, gemm.persistent, gemm.warp_specialised):
        check(version(a, b, poison(200, 264)), reference, dtype="bf16", length=136)


def test_split_k_gives_equal_bits():
    a, b = normal(16, 4096), normal(4096, 4096, seed=1)
    assert torch.equal(gemm.split_k(a, b), gemm.split_k(a, b))


def test_tune_finds_a_config_that_is_right():
    a, b = normal(256, 4096), normal(4096, 4096, seed=1)
    assert gemm.tune(a, b) in gemm.CONFIGS["small"]
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
