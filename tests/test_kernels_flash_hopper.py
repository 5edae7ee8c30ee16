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

THREE, TWO, FP8_THREE = flash_hopper.THREE, flash_hopper.TWO, flash_hopper.FP8_THREE
LENGTHS = (1, 64, 100, 128, 192, 333, 512, 1000, 2112)
CAUSAL = pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])


def blocks_of(L, config):
    return math.ceil(L / (64 * config["CONSUMERS"]))


# Schedule ------------------------------------------------------------------------------------------------------------


@CAUSAL
@pytest.mark.parametrize(("heads", "blocks", "group"), [(1, 1, 1), (5, 3, 2), (16, 86, 4), (7, 11, 100), (6, 4, 3)])
def test_every_tile_is_taken_once(heads, blocks, group, causal):
    count = heads * blocks
    places = [flash_hopper.tile_at(tile, heads, blocks, group, causal) for tile in range(count)]
    assert sorted(places) == sorted(itertools.product(range(heads), range(blocks)))


def test_free_choice_balances_causal_tiles_and_a_stride_does_not():
    for L in (512, 1024, 2048, 4096, 8192, 16384):
        for config, least in ((THREE, 0.86), (TWO, 0.88)):
            free, stride = (
                flash_hopper.efficiency(16 * 16384 // L, L, True, dict(config, TAIL=64, SCHEDULE=schedule))
                for schedule in ("free", "stride")
            )
            assert least < free < 1 and free >= stride, (L, config, free, stride)


# Masks ---------------------------------------------------------------------------------------------------------------


@CAUSAL
@pytest.mark.parametrize("config", [THREE, TWO], ids=["three", "two"])
@pytest.mark.parametrize("L", LENGTHS)
def test_each_score_is_computed_once_and_only_masked_tiles_hold_others(L, config, causal):
    wide, span = config["BLOCK_N"], 64 * config["CONSUMERS"]
    seen = torch.zeros(blocks_of(L, config) * span, math.ceil(L / wide) * wide, dtype=torch.int)
    rows, keys = torch.arange(seen.shape[0])[:, None], torch.arange(seen.shape[1])
    keep = (rows >= keys) & (rows < L) if causal else (keys < L) & (rows < L)
    for block in range(blocks_of(L, config)):
        for consumer in range(config["CONSUMERS"]):
            row = block * span + consumer * 64
            needed, whole, masked = flash_hopper.spans(block, consumer, L, causal, config)
            mine = slice(row, row + 64)
            # A row beyond L is computed too, if one of the 64 is not; it is not stored.
            assert whole + masked <= needed and (row < L) == (whole + masked > 0)
            seen[mine, : whole * wide] += 1
            # Not masked, so all must belong to it.
            assert keep[mine, : whole * wide][: max(L - row, 0)].all()
            edge = slice(whole * wide, (whole + masked) * wide)
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


def simulate(heads, L, causal, config, programs, order):
    """Run the kernel's waits and arrivals with threads in random order; return what each consumer found, per program.

    It follows `produce_tiles` and `consume` line by line; places and spans are those of the kernel.
    """
    consumers, slots, overlap = config["CONSUMERS"], config["SLOTS"], config["OVERLAP"]
    blocks = blocks_of(L, config)
    count, group = heads * blocks, flash_hopper.group_of(L, 128, causal)
    taken = itertools.count(programs)
    found = []

    def place_of(tile):
        return flash_hopper.tile_at(tile, heads, blocks, group, causal)

    def program(pid):
        ring, q_ring, mail = [None] * slots, [None] * (2 * consumers), [None] * 2
        filled, drained = [Barrier(1) for _ in range(slots)], [Barrier(consumers) for _ in range(slots)]
        q_filled, q_drained = ([Barrier(1) for _ in range(2 * consumers)] for _ in range(2))
        mail_filled, mail_drained = [Barrier(1) for _ in range(2)], [Barrier(consumers) for _ in range(2)]

        def producer():
            tile, turn, step = pid, 0, 0
            while tile < count:
                head, block = place_of(tile)
                for me in range(consumers):
                    place = turn % 2 * consumers + me
                    yield q_drained[place], (turn // 2 & 1) ^ 1
                    q_ring[place] = head, block, me
                    q_filled[place].arrive()
                needed = flash_hopper.spans(block, 0, L, causal, config)[0]
                behind = int(overlap)
                for i in range(needed + behind):
                    for load, index in (("k", i), ("v", i - behind)):
                        if 0 <= index < needed:
                            yield drained[step % slots], (step // slots & 1) ^ 1
                            ring[step % slots] = load, head, index
                            filled[step % slots].arrive()
                            step += 1
                tile = next(taken) if config["SCHEDULE"] == "free" else tile + programs
                yield mail_drained[turn % 2], (turn // 2 & 1) ^ 1
                mail[turn % 2] = tile if tile < count else -1
                mail_filled[turn % 2].arrive()
                turn += 1

        def consumer(me):
            tile, turn, step = pid, 0, 0
            while tile >= 0:
                head, block = place_of(tile)
                needed, whole, masked = flash_hopper.spans(block, me, L, causal, config)
                place = turn % 2 * consumers + me
                yield q_filled[place], turn // 2 & 1
                assert q_ring[place] == (head, block, me)
                if turn > 0:  # anywhere between here and the last tile of keys
                    q_drained[(turn + 1) % 2 * consumers + me].arrive()

                def at(load, i, step=step, needed=needed):
                    return step + (flash_hopper.k_place if load == "k" else flash_hopper.v_place).fn(i, needed, overlap)

                uses = [(load, i) for i in range(whole) for load in "kv"]
                if overlap and whole:
                    uses = [("k", 0)] + [use for i in range(1, whole) for use in (("k", i), ("v", i - 1))]
                    uses += [("v", whole - 1)]
                uses += [(load, i) for i in range(whole, needed) for load in "kv"]
                held = []
                for load, i in uses:
                    now = at(load, i)
                    yield filled[now % slots], now // slots & 1
                    assert ring[now % slots] == (load, head, i), (ring[now % slots], load, head, i)
                    held.append(now)
                    if whole <= i < whole + masked and load == "k" and config["TAIL"] < config["BLOCK_N"]:
                        continue  # K of the tile in parts is given back with V
                    for each in held:
                        drained[each % slots].arrive()
                    held.clear()
                found.append((head, block, me))
                assert q_ring[place] == (head, block, me)  # O takes its place: it must not have been filled anew
                step += 2 * needed
                yield mail_filled[turn % 2], turn // 2 & 1
                tile = mail[turn % 2]
                mail_drained[turn % 2].arrive()
                turn += 1

        return [producer(), *map(consumer, range(consumers))]

    threads = [[thread, None] for pid in range(programs) for thread in program(pid)]
    while threads:
        ready = [each for each in threads if each[1] is None or each[1][0].passed(each[1][1])]
        assert ready, "deadlock"
        each = order.choice(ready)
        try:
            each[1] = next(each[0])
        except StopIteration:
            threads.remove(each)
    assert sorted(found) == sorted(itertools.product(range(heads), range(blocks), range(consumers)))
    if config["SCHEDULE"] == "free":
        assert next(taken) == count + programs  # the last of `count` questions sets the counter back


@CAUSAL
@pytest.mark.parametrize("schedule", ["stride", "free"])
@pytest.mark.parametrize(
    "config", [THREE, TWO, dict(TWO, SLOTS=4, TAIL=64), dict(TWO, OVERLAP=False), FP8_THREE, dict(THREE, TAIL=64)],
    ids=["three", "two", "two-4", "two-plain", "fp8", "three-64"],
)  # fmt: skip
def test_barriers_neither_block_nor_let_a_slot_be_overwritten(config, schedule, causal):
    config = dict(config, SCHEDULE=schedule)
    for seed, (heads, L) in enumerate(((2, 1), (4, 333), (1, 1000), (3, 512))):
        for programs in {1, min(2, heads * blocks_of(L, config))}:
            simulate(heads, L, causal, config, programs, random.Random(seed))


def test_the_simulation_finds_a_deadlock():
    with pytest.raises(AssertionError, match="deadlock"):  # K is held while V is waited for, in the only slot
        simulate(1, 333, False, dict(THREE, SLOTS=1, TAIL=64), 1, random.Random(0))


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
        assert (options["TAIL"] == 0) == (not causal and L % 128 == 0)
    assert all(template["base"] is None for template in flash_hopper.TEMPLATES.values())


launched_kernel = flash_hopper.fa3_kernel.fn
