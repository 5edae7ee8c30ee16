"""What of FlashAttention-3 can be checked without a GPU: its schedule, its masks, its barriers, its order of keys.

Gluon has no interpreter. The kernel runs in `tests/gpu/test_flash_hopper.py`.
"""

import inspect
import itertools
import math
import random

import pytest
import torch

from rooflab import numerics
from rooflab.kernels import KernelError, flash_hopper

LENGTHS = (1, 64, 100, 128, 192, 333, 512, 1000, 2112)
CAUSAL = pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
WIDE = pytest.mark.parametrize("share", [0, 0.5, 1], ids=["narrow", "mixed", "wide"])  # of tiles of 192 rows


def wide_of(share, L):
    return math.floor(share * (L // 192))


def masked(L, causal):
    return causal or L % 128 > 0


# Schedule ------------------------------------------------------------------------------------------------------------


@CAUSAL
@WIDE
@pytest.mark.parametrize("group", [1, 2, 100])
@pytest.mark.parametrize(("heads", "L"), [(1, 1), (5, 333), (3, 512), (7, 1000)])
def test_every_row_is_in_one_tile(heads, L, group, share, causal):
    wide = wide_of(share, L)
    found = []
    for tile in range(heads * flash_hopper.tiles_of(L, wide)):
        head, rows = flash_hopper.tile_at(tile, heads, L, group, wide, causal)
        assert len(rows) == 3 and rows == sorted(rows)
        found += [(head, row) for first in rows for row in range(first, min(first + 64, L))]
    assert sorted(found) == sorted(itertools.product(range(heads), range(L)))


def test_full_attention_has_its_narrow_tiles_last_and_causal_its_long_ones_first():
    ends = [
        flash_hopper.tile_at(tile, 4, 1000, 2, 2, False)[1][2] for tile in range(4 * flash_hopper.tiles_of(1000, 2))
    ]
    assert [end == 1000 for end in ends] == [False] * 8 + [True] * (len(ends) - 8)
    places = [flash_hopper.tile_at(tile, 4, 1000, 2, 5, True) for tile in range(4 * flash_hopper.tiles_of(1000, 5))]
    half = len(places) // 2
    for group, heads in ((places[:half], {0, 1}), (places[half:], {2, 3})):
        assert {head for head, _ in group} == heads
        firsts = [rows[0] for _, rows in group]
        assert firsts == sorted(firsts, reverse=True)


@pytest.mark.parametrize("L", [4096, 16384])
def test_the_last_wave_is_filled_with_narrow_tiles(L):
    """Each of 132 SMs would have 1985.9 of 262,144 rows; 192 at a time some have 2112 or more, mixed 2060 or so."""
    heads = 16 * 16384 // L
    wide = flash_hopper.wide_of(heads, L, False, 132)
    times = {each: flash_hopper.makespan(heads, L, each, 132) for each in (0, wide, L // 192)}
    assert 0 < wide < L // 192 and times[wide] < 0.98 * min(times[0], times[L // 192])
    assert 262144 / 132 < times[wide] < 1.06 * 262144 / 132


# Masks ---------------------------------------------------------------------------------------------------------------


@CAUSAL
@WIDE
@pytest.mark.parametrize("L", LENGTHS)
def test_each_score_is_computed_once_and_only_masked_tiles_hold_others(L, share, causal):
    wide = wide_of(share, L)
    seen = torch.zeros(L + 192, math.ceil(L / 128) * 128, dtype=torch.int)
    rows, keys = torch.arange(seen.shape[0])[:, None], torch.arange(seen.shape[1])
    keep = (rows >= keys) & (rows < L) if causal else (keys < L) & (rows < L)
    tiles = flash_hopper.tiles_of(L, wide)
    for tile in range(tiles):
        _, first = flash_hopper.place_of.fn(tile, 1, L, 1, wide, tiles, causal)
        needed = flash_hopper.needed_of.fn(first, flash_hopper.consumers_of.fn(first, wide, tiles), L, causal)
        for row in flash_hopper.tile_at(tile, 1, L, 1, wide, causal)[1]:
            whole = flash_hopper.whole_of.fn(row, L, causal)
            assert whole + masked(L, causal) <= needed and (row < L or whole == 0)
            if row == L:
                continue
            mine = slice(row, row + 64)
            seen[mine, : whole * 128] += 1
            # Not masked, so all must belong to it.
            assert keep[mine, : whole * 128][: max(L - row, 0)].all()
            if masked(L, causal):
                edge = slice(whole * 128, whole * 128 + 128)
                seen[mine, edge] += keep[mine, edge].int()
    assert torch.equal(seen[:L] > 0, keep[:L]) and seen.max() == 1


# Barriers ------------------------------------------------------------------------------------------------------------


class Barrier:
    """An mbarrier: a phase ends after `count` arrivals; who waits for a parity waits for the end of such a phase."""

    def __init__(self, count):
        self.count, self.missing, self.phase = count, count, 0

    def arrive(self):
        self.missing -= 1
        assert self.missing >= 0
        if self.missing == 0:
            self.missing, self.phase = self.count, self.phase + 1

    def passed(self, parity):
        return self.phase % 2 != parity


def simulate(heads, L, causal, wide, programs, order, slots=4):
    """Run the kernel's waits and arrivals with threads in random order; return what each consumer found, per program.

    It follows `produce` and `consume` line by line; places and spans are those of the kernel.
    """
    tiles, group = flash_hopper.tiles_of(L, wide), flash_hopper.group_of(L, 128, causal)
    count = heads * tiles
    taken = itertools.count(programs)
    found = []

    def place_of(tile):
        return flash_hopper.place_of.fn(tile, heads, L, group, wide, tiles, causal)

    def consumers_of(first):
        return flash_hopper.consumers_of.fn(first, wide, tiles)

    def row_of(first, me):
        return flash_hopper.row_of.fn(first, consumers_of(first), me, L)

    def needed_of(first):
        return flash_hopper.needed_of.fn(first, consumers_of(first), L, causal)

    def program(pid):
        ring, q_ring, mail = [None] * slots, [None] * 6, [None] * 2
        filled, drained = [Barrier(1) for _ in range(slots)], [Barrier(3) for _ in range(slots)]
        q_filled, q_drained = ([Barrier(1) for _ in range(6)] for _ in range(2))
        mail_filled, mail_drained = [Barrier(1) for _ in range(2)], [Barrier(3) for _ in range(2)]

        def producer():
            (head, first), turn, step = place_of(pid), 0, 0
            while head >= 0:
                needed = needed_of(first)
                for i in range(needed):
                    for load in "kv":
                        yield drained[step % slots], (step // slots & 1) ^ 1
                        ring[step % slots] = load, head, needed - 1 - i
                        filled[step % slots].arrive()
                        step += 1
                    for me in range(3) if i == 0 else ():
                        place, phase = divmod(3 * turn + me, 6)[::-1]
                        yield q_drained[place], (phase & 1) ^ 1
                        q_ring[place] = head, row_of(first, me)
                        q_filled[place].arrive()
                tile = next(taken)
                head, first = place_of(tile) if tile < count else (-1, first)
                yield mail_drained[turn % 2], (turn // 2 & 1) ^ 1
                mail[turn % 2] = head, first
                mail_filled[turn % 2].arrive()
                turn += 1

        def consumer(me):
            (head, first), turn, step = place_of(pid), 0, 0
            while head >= 0:
                needed, row = needed_of(first), row_of(first, me)
                whole, mask = flash_hopper.whole_of.fn(row, L, causal), masked(L, causal)
                begin = needed - whole
                place, phase = divmod(3 * turn + me, 6)[::-1]
                before = [q_drained[(3 * turn + 3 + me) % 6]] if turn > 0 else []
                for i in range(needed):
                    if i == begin - mask:
                        yield q_filled[place], phase & 1
                        assert q_ring[place] == (head, row)
                        for barrier in before:
                            barrier.arrive()
                    held = []
                    for now, load in enumerate("kv", step + 2 * i):
                        yield filled[now % slots], now // slots & 1
                        assert ring[now % slots] == (load, head, needed - 1 - i), (ring[now % slots], load, head, i)
                        held.append(now)
                        if load == "k" and mask and i == begin - 1:
                            continue  # K of the tile in two halves is given back with V
                        for each in held:
                            drained[each % slots].arrive()
                        held.clear()
                if whole == 0 and not mask:
                    yield q_filled[place], phase & 1
                    for barrier in before:
                        barrier.arrive()
                found.append((head, first, me))
                assert q_ring[place] == (head, row)  # O takes its place: it must not have been filled anew
                step += 2 * needed
                yield mail_filled[turn % 2], turn // 2 & 1
                head, first = mail[turn % 2]
                mail_drained[turn % 2].arrive()
                turn += 1

        return [producer(), *map(consumer, range(3))]

    threads = [[thread, None] for pid in range(programs) for thread in program(pid)]
    while threads:
        ready = [each for each in threads if each[1] is None or each[1][0].passed(each[1][1])]
        assert ready, "deadlock"
        each = order.choice(ready)
        try:
            each[1] = next(each[0])
        except StopIteration:
            threads.remove(each)
    expected = [(*place_of(tile), me) for tile in range(count) for me in range(3)]
    assert sorted(found) == sorted(expected)
    assert next(taken) == count + programs  # the last of `count` questions sets the counter back


@CAUSAL
@WIDE
@pytest.mark.parametrize("slots", [4, 8])
def test_barriers_neither_block_nor_let_a_slot_be_overwritten(slots, share, causal):
    for seed, (heads, L) in enumerate(((2, 1), (4, 333), (1, 1000), (3, 512))):
        wide = wide_of(share, L)
        for programs in {1, min(2, heads * flash_hopper.tiles_of(L, wide))}:
            simulate(heads, L, causal, wide, programs, random.Random(seed), slots)


def test_the_simulation_finds_a_deadlock():
    with pytest.raises(AssertionError, match="deadlock"):  # K is held while V is waited for, in the only slot
        simulate(1, 333, False, 1, 1, random.Random(0), slots=1)


# FP8 -----------------------------------------------------------------------------------------------------------------


def accumulator(row, column):
    """Return lane and register of an element of a warp's 16 x N accumulator (PTX: wgmma, matrix D)."""
    lane = row % 8 * 4 + column % 8 // 2
    return lane, column // 8 * 4 + row // 8 * 2 + column % 2


def operand_of_8_bits(row, column):
    """Return lane and place of an element of a warp's 16 x 32 k operand A of 8 bits (PTX: wgmma, matrix A)."""
    lane = row % 8 * 4 + column % 16 // 4
    return lane, column // 32 * 16 + column % 32 // 16 * 8 + row // 8 * 4 + column % 4


def test_p_never_leaves_its_lane_with_keys_in_order():
    N = 128
    order = flash_hopper.key_order(N)
    assert sorted(order.tolist()) == list(range(N))
    for row, place in itertools.product(range(16), range(N)):
        # The operand's element at `place` is P of key order[place]; the lane that needs it must have computed it.
        assert operand_of_8_bits(row, place)[0] == accumulator(row, order[place].item())[0]


def test_p_times_v_is_right_through_the_registers():
    """Move P as the hardware does, lane by lane, and multiply with V^T as it is stored."""
    N, d = 64, 32
    generator = torch.Generator().manual_seed(0)
    p = torch.rand(16, N, generator=generator)
    v = torch.randint(-8, 9, (1, 1, N, d), generator=generator).to(flash_hopper.FP8)
    lanes = torch.zeros(32, N // 2)
    for row, column in itertools.product(range(16), range(N)):
        lane, register = accumulator(row, column)
        lanes[lane, register] = p[row, column]
    # What `operand` does in Gluon: only the names of registers change. Per 16 keys and 2 rows a lane has 2 x 2 numbers.
    operand = torch.zeros(16, N)
    for row, place in itertools.product(range(16), range(N)):
        lane, _ = operand_of_8_bits(row, place)
        key = place // 16 * 16 + place % 4 // 2 * 8 + place % 16 // 4 * 2 + place % 2
        owner, register = accumulator(row, key)
        assert owner == lane
        operand[row, place] = lanes[lane, register]
    stored = flash_hopper.fp8_layout_of_v(v)[0, 0].float()  # (d, N)
    torch.testing.assert_close((operand.double() @ stored.double().T), p.double() @ v[0, 0].double())
    # And as the tensor operations in `operand` write it.
    assert torch.equal(p.view(16, N // 16, 2, 4, 2).transpose(2, 3).reshape(16, N), operand)


@pytest.mark.parametrize("L", [16, 20, 1, 256])
def test_layout_of_v(L):
    v = torch.randn(2, 3, L, 64, generator=torch.Generator().manual_seed(L)).to(flash_hopper.FP8)
    stored = flash_hopper.fp8_layout_of_v(v)
    assert stored.is_contiguous() and stored.shape == (2, 3, 64, math.ceil(L / 16) * 16)
    keys = flash_hopper.key_order(stored.shape[-1])
    for place, key in enumerate(keys.tolist()):
        column = stored[..., place].float()
        assert torch.equal(column, v[:, :, key].float() if key < L else torch.zeros_like(column))


def test_scales_per_head_lose_no_more_than_the_recipe_of_the_paper():
    """With Q and K rotated, one scale per head is as good as one per block: within 1.2 times its error."""
    generator = torch.Generator().manual_seed(0)
    squares = {"ours": 0.0, "paper": 0.0}
    for _ in range(2):
        q, k, v = (
            numerics.with_outliers(rows, 128, outlier_rate=1e-3, generator=generator) for rows in (256, 2048, 2048)
        )
        exact = (q.double() @ k.double().T / math.sqrt(128)).softmax(-1) @ v.double()
        paper = numerics.flash_fp8(q, k, v)
        rotated = numerics.rotate(q), numerics.rotate(k), v
        q, k, v = (values.float() * scale for values, scale in map(quantised, rotated))
        s = q @ k.T / math.sqrt(128)
        p = (s - s.amax(-1, keepdim=True)).exp()
        ours = (p * 256).to(flash_hopper.FP8).float() @ v / (256 * p.sum(-1, keepdim=True))
        squares["ours"] += (ours - exact).square().mean().item()
        squares["paper"] += (paper - exact).square().mean().item()
    assert math.sqrt(squares["ours"]) < 1.2 * math.sqrt(squares["paper"])


def quantised(x):
    values, scales = flash_hopper.quantise_heads(x[None, None])
    assert scales.shape == (1, 1) and values.float().abs().max() == 448
    return values[0, 0], scales[0, 0]


# Refusals ------------------------------------------------------------------------------------------------------------


def heads(h=2, L=64, d=128, dtype=torch.bfloat16, B=1):
    return torch.zeros(B, h, L, d, dtype=dtype)


def fp8_operands(d=128):
    q = heads(d=d, dtype=torch.float32).to(flash_hopper.FP8)
    return q, q, flash_hopper.fp8_layout_of_v(q), *[torch.ones(1, 2)] * 3


@pytest.fixture
def on_hopper(monkeypatch):
    monkeypatch.setattr(flash_hopper, "INTERPRETED", False)
    monkeypatch.setattr(flash_hopper.gemm, "_capability", lambda tensor: (9, 0))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: flash_hopper.fa3(*[heads(d=96)] * 3, True), "head dimension 96; this kernel has 64, 128: use flash"),
        (lambda: flash_hopper.fa3(*[heads(dtype=torch.float32)] * 3, True), "float32; .* or use flash.fa2"),
        (lambda: flash_hopper.fa3(heads(3), heads(2), heads(2), True), "a divisor of 3"),
        (lambda: flash_hopper.fa3(heads(), heads(L=128), heads(L=128), True), "k has shape"),
        (lambda: flash_hopper.fa3(heads(), heads(), heads(1), True), "it needs k's"),
        (lambda: flash_hopper.fa3(heads(), heads(), heads(dtype=torch.float16), True), "convert one with .to"),
        (lambda: flash_hopper.fa3(heads()[0], heads(), heads(), True), "q must be a torch.Tensor of shape"),
        (lambda: flash_hopper.fa3(*[heads(L=0)] * 3, True), "at least one element"),
        (lambda: flash_hopper.fa3(*[heads()] * 3, True, out=heads(dtype=torch.float16)), "out is"),
        (lambda: flash_hopper.fa3(*[heads()] * 3, True, lse=torch.zeros(1, 2, 64, dtype=torch.bfloat16)), "lse is"),
        (lambda: flash_hopper.fa3(heads(d=256)[..., ::2], heads(), heads(), True), "pass q.contiguous"),
        (lambda: flash_hopper.fa3(heads(), heads(d=132)[..., :128], heads(), True), "rows that start at multiples"),
        (lambda: flash_hopper.fa3(heads(d=136)[..., 3:131], heads(), heads(), True), "6 bytes off a multiple of 16"),
        (lambda: flash_hopper.fa3_fp8(*fp8_operands(64), True), "this kernel has 128: use fa3 in 16 bits"),
        (lambda: flash_hopper.fa3_fp8(*[heads()] * 3, *[torch.ones(1, 2)] * 3, True), "float8_e4m3fn"),
        (lambda: flash_hopper.fa3_fp8(fp8_operands()[0], *[fp8_operands()[0]] * 2, *[torch.ones(1, 2)] * 3, True),
         "make it with fp8_layout_of_v"),
        (lambda: flash_hopper.fa3_fp8(*fp8_operands()[:3], torch.ones(2), *[torch.ones(1, 2)] * 2, True), "scale_q is"),
    ],
)  # fmt: skip
def test_bad_input_says_what_to_do(call, message, on_hopper):
    with pytest.raises(KernelError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="without a GPU only")
def test_no_interpreter_and_no_other_card(monkeypatch):
    with pytest.raises(KernelError, match="Gluon has no interpreter; to run without a GPU use flash.fa2"):
        flash_hopper.fa3(*[heads()] * 3, True)
    monkeypatch.setattr(flash_hopper, "INTERPRETED", False)
    monkeypatch.setattr(flash_hopper.gemm, "_capability", lambda tensor: (10, 0))
    with pytest.raises(KernelError, match="wgmma exists on sm_90 only; this card is sm_100: use flash.fa2"):
        flash_hopper.fa3(*[heads()] * 3, True)


def test_calls_keep_no_tensor_alive(on_hopper, monkeypatch):
    launched = []

    class Kernel:
        def __getitem__(self, grid):
            return lambda *args, **options: launched.append((grid, args, options))

    monkeypatch.setattr(flash_hopper, "fa3_kernel", Kernel())
    monkeypatch.setattr(flash_hopper, "sm_count", lambda device: 132)
    for L, causal in ((512, False), (500, False), (16384, True)):
        q = heads(L=L)
        out = flash_hopper.fa3(q, q, q, causal)
        grid, args, options = launched[-1]
        assert out.shape == q.shape and args[0].base is q and args[3].base.data_ptr() == out.data_ptr()
        parameters = list(inspect.signature(launched_kernel).parameters)
        assert len(args) + len(options) - 1 == len(parameters) and set(options) <= {*parameters, "num_warps"}
        named = dict(zip(parameters, args, strict=False))
        assert named["MASK"] == masked(L, causal) and named["tiles"] == flash_hopper.tiles_of(L, named["wide"])
    assert all(template["base"] is None for template in flash_hopper.TEMPLATES.values())


launched_kernel = flash_hopper.fa3_kernel.fn
