"""Every GEMM against a float64 reference, what its wrappers refuse, and how tiles are numbered.

Without a GPU the kernels run in Triton's interpreter, all but those of Gluon: it has none. Those are compiled for
sm_90 by `tests/test_kernels.py`, as all others are, and run by `tests/gpu/test_gemm.py`.
"""

from types import FunctionType, SimpleNamespace

import pytest
import torch

from rooflab.kernels import KernelError, check, gemm, gemm_fp8

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BF16 = torch.bfloat16
pytestmark = pytest.mark.filterwarnings("ignore:(invalid value|overflow) encountered:RuntimeWarning")

ANY_SHAPE = [gemm.naive, gemm.tensor_core, gemm.grouped, gemm.autotuned, gemm.split_k]
ALIGNED = [gemm.tma, gemm.persistent]
SMALL = dict(BLOCK_M=16, BLOCK_N=16, BLOCK_K=16, num_warps=4)


def name(version):
    return version.__name__


def normal(*shape, dtype=BF16, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype).to(DEVICE)


def poison(M, N, dtype=BF16):
    return torch.full((M, N), float("nan"), dtype=dtype, device=DEVICE)


def small(version):
    """Return tiles so small that a few hundred rows make several groups, with an incomplete last one."""
    needs_group = version not in (gemm.naive, gemm.tensor_core, gemm.split_k)
    split = dict(SPLIT=3) if version is gemm.split_k else {}
    return SMALL | (dict(GROUP=3) if needs_group else {}) | split


# Results -------------------------------------------------------------------------------------------------------------


SHAPES = [(1, 1, 1), (5, 8, 16), (40, 70, 33), (130, 264, 72), (257, 128, 200)]
# TMA needs rows of whole 16 bytes, and says so: test_bad_input.
WHOLE = [shape for shape in SHAPES if shape[1] % 8 == shape[2] % 8 == 0]


@pytest.mark.parametrize(
    ("version", "shape"),
    [(each, shape) for each in ANY_SHAPE for shape in SHAPES] + [(each, shape) for each in ALIGNED for shape in WHOLE],
    ids=lambda part: str(part) if isinstance(part, tuple) else name(part),
)
def test_gemm(version, shape):
    M, N, K = shape
    a, b = normal(M, K), normal(N, K, seed=1)
    check(version(a, b, poison(M, N)), gemm.reference(a, b), dtype=BF16, length=K)


@pytest.mark.parametrize("version", ANY_SHAPE + ALIGNED, ids=name)
def test_gemm_of_many_small_tiles(version):
    """7 x 5 tiles in groups of 3 rows: every tile is written, by programs that walk where there are fewer."""
    M, N, K = 100, 72, 88
    a, b = normal(M, K, dtype=torch.float16), normal(N, K, dtype=torch.float16, seed=1)
    out = version(a, b, poison(M, N, torch.float16), small(version))
    check(out, gemm.reference(a, b), dtype="fp16", length=K)


@pytest.mark.parametrize("version", ANY_SHAPE + ALIGNED, ids=name)
def test_a_nan_stays_in_its_row_and_infinity_passes(version):
    """Padding must not turn a neighbour's NaN or infinity into one's own: 0 x inf is NaN."""
    M, N, K = 20, 24, 40
    a, b = normal(M, K), normal(N, K, seed=1)
    a[19, 39] = float("nan")
    a[3, 0] = float("inf")
    b[23, 39] = -float("inf")
    out = version(a, b, poison(M, N), small(version))
    reference = gemm.reference(a, b)
    assert reference.isfinite().sum() == 18 * 23
    check(out, reference, dtype=BF16, length=K)


def test_gemm_of_few_rows_reads_all_of_k():
    a, b = normal(16, 640), normal(160, 640, seed=1)
    for config in gemm.CONFIGS["decode"]:
        check(gemm.autotuned(a, b, poison(16, 160), config), gemm.reference(a, b), dtype=BF16, length=640)
    for split in (1, 2, 7, 16):  # 16: more programs than blocks of K, so some add zeros
        config = dict(BLOCK_M=16, BLOCK_N=64, BLOCK_K=64, SPLIT=split, num_warps=4)
        check(gemm.split_k(a, b, poison(16, 160), config), gemm.reference(a, b), dtype=BF16, length=640)


def test_tune_keeps_the_fastest_and_autotuned_takes_it(monkeypatch):
    monkeypatch.setattr(gemm, "TUNED", {})
    a, b = normal(20, 32), normal(24, 32, seed=1)
    candidates = [small(gemm.grouped) | dict(BLOCK_K=block) for block in (16, 32, 64)]
    times = iter([3.0, 1.0, 2.0])
    assert gemm.tune(a, b, candidates, timer=lambda call: (call(), next(times))[1]) is candidates[1]
    taken = []
    monkeypatch.setattr(gemm, "_by_pointers", lambda kernel, a, b, out, config: taken.append(config))
    gemm.autotuned(a, b)
    gemm.autotuned(normal(20, 48), normal(24, 48))  # another shape: nothing tuned
    gemm.autotuned(a, b, config=candidates[0])
    assert taken == [candidates[1], gemm.CONFIGS["decode"][0], candidates[0]]
    assert gemm.config_of(a, b) is candidates[1]
    assert gemm.config_of(normal(20, 48), normal(24, 48)) is gemm.CONFIGS["decode"][0]


def test_tune_leaves_out_what_does_not_fit(monkeypatch):
    monkeypatch.setattr(gemm, "TUNED", {})
    a = normal(16, 16)

    def timer(call):
        raise gemm.triton.runtime.errors.OutOfResources(1, 0, "shared memory")

    with pytest.raises(KernelError, match="none of 1 configs fits on .*; give smaller ones"):
        gemm.tune(a, a, [small(gemm.grouped)], timer)
    assert gemm.TUNED == {}


# FP8 -----------------------------------------------------------------------------------------------------------------

BLOCKS = {
    gemm_fp8.fp8_tensor: lambda M, N, K: ((M, K), (N, K)),
    gemm_fp8.fp8_row: lambda M, N, K: ((1, K), (1, K)),
    gemm_fp8.fp8_block: lambda M, N, K: ((1, 128), (128, 128)),
}


def quantised(version, a, b):
    block_a, block_b = BLOCKS[version](len(a), *b.shape)
    (a, scale_a), (b, scale_b) = gemm_fp8.quantise(a, *block_a), gemm_fp8.quantise(b, *block_b)
    return a, b, scale_a, scale_b


@pytest.mark.parametrize("version", BLOCKS, ids=name)
@pytest.mark.parametrize("shape", [(1, 8, 16), (40, 72, 48), (130, 264, 272), (300, 136, 400)], ids=str)
def test_fp8(version, shape):
    M, N, K = shape
    # Rows and blocks of very different size, so that a scale taken from the wrong place shows.
    a = normal(M, K, dtype=torch.float32) * torch.logspace(-2, 2, M)[:, None].to(DEVICE)
    b = normal(N, K, dtype=torch.float32, seed=1) * torch.logspace(-1, 1, K).to(DEVICE)
    operands = quantised(version, a, b)
    out = version(*operands, out=poison(M, N))
    reference = gemm_fp8.reference(*operands, *BLOCKS[version](M, N, K))
    rows = out.shape[0] // 2 or 1
    for part in (slice(0, rows), slice(rows, M)):  # each against its own size
        if len(out[part]):
            check(out[part], reference[part], dtype=BF16, length=K)


@pytest.mark.parametrize("shape", [(1, 8, 272), (3, 24, 400), (129, 136, 640), (333, 264, 128)], ids=str)
def test_fp8_scales_are_those_of_the_block(shape):
    """Scales change steeply along M, N and K, and each result is compared with its own size."""
    M, N, K = shape
    rise, fall = torch.logspace(-1, 1, K).to(DEVICE), torch.logspace(1, -1, K).to(DEVICE)
    x = normal(M, K, dtype=torch.float32) * torch.logspace(-2, 2, M)[:, None].to(DEVICE) * rise
    y = normal(N, K, dtype=torch.float32, seed=1) * torch.logspace(-2, 2, N)[:, None].to(DEVICE) * fall
    (a, scale_a), (b, scale_b) = gemm_fp8.quantise(x, 1, 128), gemm_fp8.quantise(y, 128, 128)
    out = gemm_fp8.fp8_block(a, b, scale_a, scale_b, poison(M, N)).double()
    a64, b64 = gemm_fp8.dequantise(a, scale_a, 1, 128), gemm_fp8.dequantise(b, scale_b, 128, 128)
    # The size of a sum of such products with random signs. A sum that is 5 times as large loses 5 x 2^-9 to bf16.
    size = (a64.square() @ b64.square().T).sqrt()
    assert ((out - a64 @ b64.T).abs() / size).max() < 2**-5


def test_quantise_stores_the_scales_of_rows_column_after_column():
    """The kernels read them so: each column starts at a multiple of 16 bytes. One scale per row is a plain column."""
    for M, strides in ((1, (1, 4)), (3, (1, 4)), (128, (1, 128)), (333, (1, 336))):
        x = normal(M, 300, dtype=torch.float32)
        scales = gemm_fp8.quantise(x, 1, 128)[1]
        assert scales.shape == (M, 3) and scales.stride() == strides
        expected = torch.stack([part.abs().amax(dim=1) for part in x.split(128, dim=1)], dim=1) / 448
        assert torch.equal(scales, expected)
        assert gemm_fp8.quantise(x, 1, 300)[1].stride() == (1, 1)
        assert gemm_fp8.quantise(x, 128, 128)[1].is_contiguous()


def test_quantise_fills_the_range_and_keeps_zeros():
    x = normal(130, 260, dtype=torch.float32)
    x[:, 128:256] = 0
    values, scales = gemm_fp8.quantise(x, 1, 128)
    assert values.dtype == gemm_fp8.FP8 and scales.shape == (130, 3)
    assert values[:, :128].float().abs().amax(dim=1).eq(448).all()
    assert gemm_fp8.dequantise(values, scales, 1, 128)[:, 128:256].eq(0).all()
    error = (gemm_fp8.dequantise(values, scales, 1, 128) - x.double()).abs()
    # Three bits behind the point: half a step is 2^-4 of an element, and 2^-10 of the scale where e4m3 is subnormal.
    assert (error <= x.double().abs() * 2**-4 + scales.double().amax() * 2**-10).all()


# Refusals ------------------------------------------------------------------------------------------------------------

A, E = torch.ones(16, 32, dtype=BF16, device=DEVICE), torch.ones(16, 32, device=DEVICE).to(gemm_fp8.FP8)
ONE, ROWS = torch.ones(1, 1, device=DEVICE), torch.ones(16, 1, device=DEVICE)
# Two blocks of K, for which scales of A lie in columns.
W, TWO = torch.ones(17, 256, device=DEVICE).to(gemm_fp8.FP8), torch.ones(1, 2, device=DEVICE)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: gemm.naive(A, A[:, :16].contiguous()), r"b has shape \(16, 16\); with a of \(16, 32\) it must be"),
        (lambda: gemm.grouped(A, A.half()), "b is torch.float16 on .* but a is torch.bfloat16"),
        (lambda: gemm.grouped(A.float(), A.float()), "a is torch.float32; convert it to one of bfloat16, float16"),
        (lambda: gemm.tensor_core(A.T, A.T), r"pass a\.contiguous\(\)"),
        (lambda: gemm.autotuned(A[0], A), "a has shape .* reshape it to 2 dimensions"),
        (lambda: gemm.split_k(A, A, out=A), r"out is \(16, 32\)"),
        (lambda: gemm.tma(*[A[:, :20].contiguous()] * 2), "a has rows of 20 elements; TMA needs a multiple of 8"),
        (lambda: gemm.persistent(A, A[:12].contiguous()), "out has rows of 12 elements; .*: use autotuned"),
        (lambda: gemm.tma(torch.ones(40, dtype=BF16, device=DEVICE)[4:36].view(2, 16), A[:8, :16].contiguous()),
         r"a starts 8 bytes off a multiple of 16: pass a\.clone\(\)"),
        (lambda: gemm_fp8.fp8_tensor(A, A, ONE, ONE), "convert it to one of float8_e4m3fn"),
        (lambda: gemm_fp8.fp8_tensor(E, E, ROWS, ONE), r"scale_a is \(16, 1\) on .*; it must be \(1, 1\)"),
        (lambda: gemm_fp8.fp8_row(E, E, ROWS, ONE), r"scale_b is \(1, 1\) on .*; it must be \(16, 1\)"),
        (lambda: gemm_fp8.fp8_block(E, E, ROWS, ONE.double()), "scale_b is torch.float64"),
        (lambda: gemm_fp8.fp8_block(E, E, ROWS, ONE, config=gemm_fp8.PLAIN), "BLOCK_K=128 and BLOCK_N up to 128"),
        (lambda: gemm_fp8.fp8_block_specialised(E, E, ROWS, ONE, config=dict(BLOCK_N=512, BLOCK_K=128)), "up to 256"),
        (lambda: gemm_fp8.fp8_block(W[:16], W[:16], torch.ones(16, 2, device=DEVICE), TWO),
         r"scale_a has strides \(2, 1\); .*, here 16: take them from quantise\(a, 1, 128\)"),
        (lambda: gemm_fp8.fp8_block_specialised(W, W[:16], torch.ones(2, 17, device=DEVICE).t(), TWO),
         r"scale_a has strides \(1, 17\); its columns must .* multiple of 4, here 20: take"),
        (lambda: gemm_fp8.fp8_block(W[:1], W[:16], TWO, TWO), r"scale_a has strides \(2, 1\); .*, here 4: take"),
        (lambda: gemm_fp8.fp8_block(W[:3], W[:16], torch.ones(3, 8, device=DEVICE)[:, ::4], TWO), r"strides \(8, 4\);"),
        (lambda: gemm_fp8.fp8_block(E, E, torch.ones(32, device=DEVICE)[::2, None], ONE), r"pass scale_a\.contiguous"),
        (lambda: gemm_fp8.fp8_block(W, W[:16], 1.0, TWO), "scale_a is a float; give a torch.Tensor"),
        (lambda: gemm_fp8.fp8_block_specialised(W[:16], W[:16], torch.ones(33, device=DEVICE)[1:].view(2, 16).t(), TWO),
         r"scale_a starts 4 bytes off a multiple of 16: take it from quantise\(a, 1, 128\)"),
        (lambda: gemm_fp8.fp8_row(E[:, :24].contiguous(), E[:, :24].contiguous(), ROWS, ROWS), "multiple of 16"),
    ],
)  # fmt: skip
def test_bad_input_says_what_to_do(call, message):
    with pytest.raises(KernelError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_a_stride_that_leads_nowhere_is_not_refused():
    """From row to row where there is one row, and from column to column where there is one column."""
    one_row = torch.ones(1, 8, device=DEVICE)[:, ::4]
    assert one_row.stride() == (8, 4)
    assert gemm_fp8.fp8_block(W[:1], W[:16], one_row, TWO).eq(256).all()
    assert gemm_fp8.fp8_block(E, E, torch.ones(9, 16, device=DEVICE)[:1].t(), ONE).eq(32).all()


@pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU, tests/gpu/test_gemm.py runs these kernels")
def test_gluon_without_a_gpu_names_the_kernel_to_use():
    with pytest.raises(KernelError, match="Gluon has no interpreter; .* use persistent"):
        gemm.warp_specialised(A, A)
    with pytest.raises(KernelError, match="use fp8_block"):
        gemm_fp8.fp8_block_specialised(E, E, ROWS, ONE)


def test_cards_without_tma_or_wgmma_are_told_what_works(monkeypatch):
    monkeypatch.setattr(gemm, "INTERPRETED", False)
    for card, message in [((8, 0), "needs sm_90 or later; this card is sm_80: use autotuned"), ((10, 0), None)]:
        monkeypatch.setattr(gemm, "_capability", lambda tensor, card=card: card)
        if message:
            with pytest.raises(KernelError, match=message):
                gemm.tma(A, A)
        else:
            gemm.require_tma(A)
        with pytest.raises(KernelError, match=f"wgmma .*sm_{card[0]}0: use {'autotuned' if message else 'persistent'}"):
            gemm.warp_specialised(A, A)


# Tiles ---------------------------------------------------------------------------------------------------------------


def order(tiles_m, tiles_n, group):
    """Return rows and columns of tiles in grouped order, from the kernels' own function."""
    corners = (corner(index, tiles_m, tiles_n, 1, 1, group) for index in range(tiles_m * tiles_n))
    return list(corners)


def corner(*args):
    """Run `gemm.corner` on Python's integers."""
    names = gemm.corner.fn.__globals__ | {"gl": SimpleNamespace(minimum=min, constexpr=int)}
    return FunctionType(gemm.corner.fn.__code__, names)(*args)


@pytest.mark.parametrize(("tiles_m", "tiles_n", "group"), [(1, 1, 8), (7, 5, 3), (8, 3, 8), (3, 9, 8), (16, 2, 1)])
def test_grouped_order_visits_every_tile_once(tiles_m, tiles_n, group):
    assert sorted(order(tiles_m, tiles_n, group)) == [(m, n) for m in range(tiles_m) for n in range(tiles_n)]


def test_a_grouped_wave_reads_fewer_blocks():
    assert order(4, 3, 2)[:7] == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2), (2, 0)]
    row_major, grouped = (order(64, 64, group)[:132] for group in (1, 8))
    # What the book says: blocks of A rows, and of B rows.
    assert [len(set(part)) for part in zip(*row_major, strict=True)] == [3, 64]
    assert [len(set(part)) for part in zip(*grouped, strict=True)] == [8, 17]


def tile(config):
    return config["BLOCK_M"], config["BLOCK_N"]


# N and K of the experiments at 256 rows, and the columns of the tile that is fastest on an H200.
FASTEST = {
    (4096, 4096): 64,
    (12288, 4096): 192,  # one wave of odd tiles rather than two of usual ones
    (22016, 4096): 192,
    (8192, 8192): 128,
    (57344, 8192): 128,
}


@pytest.mark.parametrize(("shape", "width"), FASTEST.items(), ids=str)
def test_choose_takes_what_is_fastest(shape, width):
    assert tile(gemm.choose(256, *shape, 132)) == (128, width)


def test_other_classes_have_one_config_each():
    assert gemm.choose(256, 12288, 4096, 192)["BLOCK_N"] == 128  # as many SMs as usual tiles
    assert gemm.choose(16, 12288, 4096, 132)["BLOCK_N"] == 64
    for size in (2048, 4096, 8192, 16384):
        assert gemm.choose(size, size, size, 132) is gemm.FULL


def test_blocks_are_bound_by_products_or_by_operands():
    def block(rows, cols):
        return gemm.microseconds(rows, cols, 64, 132, dict(BLOCK_M=rows, BLOCK_N=cols, BLOCK_K=64))

    assert block(128, 192) == 2 * 128 * 192 * 64 / gemm.FLOP_PER_US
    assert block(128, 64) == 2 * 192 * 64 / gemm.BYTES_PER_US


# What `warp_specialised` took on an H200 for 256 rows, over its time with 128 columns: N, K, columns, ratio.
MEASURED = [(12288, 4096, 192, 0.81), (22016, 4096, 192, 0.97), (22016, 4096, 256, 1.24), (22016, 4096, 64, 1.29)]
MEASURED += [(8192, 8192, 192, 1.32), (57344, 8192, 192, 1.06), (57344, 8192, 256, 1.13)]


@pytest.mark.parametrize(("N", "K", "width", "ratio"), MEASURED)
def test_predictions_are_near_what_was_measured(N, K, width, ratio):
    narrow, other = (dict(BLOCK_M=128, BLOCK_N=each, BLOCK_K=64) for each in (128, width))
    predicted = gemm.microseconds(256, N, K, 132, other) / gemm.microseconds(256, N, K, 132, narrow)
    assert predicted == pytest.approx(ratio, rel=0.2)


@pytest.mark.parametrize("config", sum(gemm.WARP_SPECIALISED.values(), []), ids=str)
def test_rings_fit_into_shared_memory(config):
    rows, cols, depth, stages = (config[each] for each in ("BLOCK_M", "BLOCK_N", "BLOCK_K", "STAGES"))
    assert 2 * (stages * (rows + cols) * depth + rows * cols // 2) + 2 * 8 * stages <= 227 * 1024
