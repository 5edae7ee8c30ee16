"""The book's experiments. Operands are standard normal, drawn anew from a seed for each case."""

from __future__ import annotations

import dataclasses
import functools
import os
import tempfile
from unittest import mock

from .. import ledger
from ..ledger import Demand
from ..models import model
from ..step import cache_bytes, decode, linear_layers, linear_stack, weight_bytes
from ..units import DTYPE_BYTES
from . import sass
from .base import Call, Experiment, Gpu

SEED = 0
OPERANDS = f"standard normal, seed {SEED}"
MIB = 2**20
# The proof of an element needs it in float64 several times over, beside the operands and the results.
PROOF_BYTES = 64


def _normal(*shape, dtype="bf16", seed=SEED):
    import torch

    generator = torch.Generator(device="cuda").manual_seed(seed)
    return torch.randn(shape, generator=generator, device="cuda", dtype=torch.float32).to(torch_dtype(dtype))


def torch_dtype(name: str):
    """Return the torch type of one of the book's dtype names."""
    import torch

    names = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp8": "float8_e4m3fn"}
    return getattr(torch, names[name])


def _compiled(function, **options):
    """Return `function` compiled for the shapes it is called with, nothing kept from earlier cases."""
    import torch

    torch._dynamo.reset()
    return torch.compile(function, dynamic=False, **options)


def _proof(run, reference64, *, dtype, length, accumulate="float32"):
    """Return a function that runs once and compares with the reference in float64."""

    def prove():
        from ..kernels import check

        return check(run(), reference64(), dtype=dtype, length=length, accumulate=accumulate)

    return prove


def _exact(run, actual, expected):
    """Return a proof for what must be equal to the bit."""

    def prove():
        import torch

        from ..kernels import Check

        run()
        torch.cuda.synchronize()
        return Check(float(not torch.equal(actual(), expected())), 0.0)

    return prove


# Bandwidth -----------------------------------------------------------------------------------------------------------


def _stream_cases(gpu: Gpu, quick: bool):
    sizes = [MIB * 2**i for i in range(0, 13)] + [24 * MIB, 48 * MIB]
    for op in ("copy", "read", "write"):
        for size in sorted(sizes if not quick else (4 * MIB, 16 * MIB, 1024 * MIB)):
            if 2 * size <= gpu.memory_bytes // 4:
                yield {"op": op, "bytes": size}


def _stream_demand(case: dict, version: str) -> Demand:
    moved = {"copy": 2, "read": 1, "write": 1}[case["op"]] * case["bytes"]
    return Demand(case["op"], {"vector": case["bytes"] // 4 if case["op"] == "read" else 0}, {"hbm": moved})


def _stream(case: dict, versions):
    import torch

    from ..kernels import Check, streams

    n = case["bytes"] // 4
    x = _normal(n, dtype="fp32")
    out = torch.full_like(x, float("nan"))

    def poisoned(run):
        def again():
            out.fill_(float("nan"))
            return run()

        return again

    def sums(run):
        def prove():
            exact = float(x.double().sum())
            # Partial sums of n normal numbers: the error grows as sqrt(n) roundings of their root-mean-square.
            return Check(abs(float(run().double().sum()) - exact), 2**-23 * n**0.5 * 64)

        return prove

    if case["op"] == "copy":
        runs = {"torch": lambda: out.copy_(x), "triton": lambda: streams.copy(x, out)}
        proofs = {name: _exact(poisoned(run), lambda: out, lambda: x) for name, run in runs.items()}
    elif case["op"] == "write":
        runs = {"torch": lambda: out.fill_(1.5), "triton": lambda: streams.write(out, 1.5)}
        proofs = {
            name: _exact(poisoned(run), lambda: out, lambda: torch.full_like(out, 1.5)) for name, run in runs.items()
        }
    else:
        runs = {"torch": lambda: x.sum(), "triton": lambda: streams.read(x)}
        proofs = {name: sums(run) for name, run in runs.items()}
    kernels = {"torch": None, "triton": "streams"}
    return {name: Call(runs[name], proofs[name], kernels[name]) for name in versions}


# Matrix products -----------------------------------------------------------------------------------------------------


def _gemm_cases(gpu: Gpu, quick: bool):
    for dtype in ("bf16", "fp16", "fp8"):
        for n in (1024, 4096) if quick else (512, 1024, 2048, 4096, 8192, 16384):
            if 3 * n * n * 2 <= gpu.memory_bytes // 4:
                yield {"dtype": dtype, "M": n, "N": n, "K": n}


def _gemm_needs(gpu: Gpu, case: dict) -> str:
    if case["dtype"] == "fp8" and gpu.capability < 89:
        return f"no FP8 matrix units below sm_89, this is sm_{gpu.capability}"
    return ""


def _gemm_demand(case: dict, version: str) -> Demand:
    shape = {name: case[name] for name in "MNK"}
    return ledger.WORKLOADS["gemm"].demand(**shape, b=DTYPE_BYTES[case["dtype"]])


def _gemm(case: dict, versions):
    import torch

    from ..kernels import Check

    M, N, K = case["M"], case["N"], case["K"]
    a, b = _normal(M, K, dtype=case["dtype"]), _normal(N, K, dtype=case["dtype"], seed=SEED + 1)
    out = torch.empty(M, N, device="cuda", dtype=torch.bfloat16 if case["dtype"] == "fp8" else a.dtype)
    one = torch.ones((), device="cuda")

    def run():
        if case["dtype"] == "fp8":
            return torch._scaled_mm(a, b.t(), one, one, out_dtype=out.dtype, use_fast_accum=True)
        return torch.mm(a, b.t(), out=out)

    def prove():
        out.fill_(float("nan"))
        rows = torch.linspace(0, M - 1, 64, device="cuda").long()
        exact = a[rows].double() @ b.double().t()
        error = (run()[rows].double() - exact).abs().max()
        # The result is rounded once. Fast FP8 accumulation also cuts off bits: each of its K / 32 additions loses up
        # to 2**-14 of the sum so far, which is two thirds of the last one on average.
        share = {"bf16": 2**-8, "fp16": 2**-11, "fp8": 2**-8 + 2 / 3 * K / 32 * 2**-14}[case["dtype"]]
        return Check(float(error), float(exact.abs().max()) * (share + 4 * 2**-24 * K**0.5))

    return {"cublas": Call(run, prove)}


# The GEMM ladder: our kernels, one change after the other, and the library's in the same run.
LADDER = ("naive", "tensor_core", "grouped", "autotuned", "split_k", "tma", "persistent", "warp_specialised")
# (N, K) of projections: Q, K, V and gate with up of Llama-2-7B; O and gate with up of Llama-2-70B.
LLM_SHAPES = ((12288, 4096), (22016, 4096), (8192, 8192), (57344, 8192))


def _ladder_cases(gpu: Gpu, quick: bool):
    # Nothing quick here: to compile all versions alone takes half a minute.
    shapes = [(n, n, n) for n in (1024, 2048, 4096, 8192, 16384)]
    shapes += [(M, N, K) for M in (16, 256, 4096) for N, K in LLM_SHAPES]
    for M, N, K in () if quick else shapes:
        if gpu.memory_bytes // 2 >= 16 * (M * K + N * K):  # the proof holds both in float64
            yield {"dtype": "bf16", "M": M, "N": N, "K": K}


def _ladder(case: dict, versions):
    import torch

    from ..kernels import gemm

    M, N, K = case["M"], case["N"], case["K"]
    a, b = _normal(M, K, dtype=case["dtype"]), _normal(N, K, dtype=case["dtype"], seed=SEED + 1)
    out = torch.empty(M, N, device="cuda", dtype=a.dtype)
    fits = {
        "naive": M == N and M <= 4096,
        "tensor_core": M == N,
        "grouped": M == N,
        "split_k": M <= 64,
        "tma": M == N,
        "persistent": M == N,
    }
    chosen = [name for name in versions if fits.get(name, True) and _runs_here(name)]
    settings = {name: {} for name in chosen}
    if "autotuned" in chosen:
        settings["autotuned"]["config"] = config = case.get("config") or gemm.tune(a, b)
    if "warp_specialised" in chosen:
        sms = torch.cuda.get_device_properties(0).multi_processor_count
        settings["warp_specialised"]["tile"] = [gemm.choose(M, N, K, sms)[f"BLOCK_{each}"] for each in "MNK"]
    runs = {name: lambda name=name: getattr(gemm, name)(a, b, out) for name in chosen if name != "cublas"}
    if "autotuned" in chosen:
        runs["autotuned"] = lambda: gemm.autotuned(a, b, out, config)
    runs["cublas"] = lambda: torch.mm(a, b.t(), out=out)

    def prove(name):
        out.fill_(float("nan"))
        runs[name]()
        return _sampled_product(out, a.double(), b.double(), K, 2**-8)

    kernel = {"cublas": None}
    return {
        name: Call(runs[name], lambda name=name: prove(name), kernel.get(name, "gemm"), settings[name])
        for name in chosen
    }


# Versions that need TMA or dependent launches (sm_90 and later), or wgmma (sm_90 alone).
_FROM_SM90 = {"tma", "persistent", "fp8_tensor", "fp8_row", "fp8_block", "chained_graph", "triton", "split"}
_FROM_SM90 |= {"split_stack", "fa2", "flash_attn_4"}
_WGMMA = {"warp_specialised", "fp8_block_specialised", "fp8_block_torch_ptxas", "fa3", "fa3_fp8"}
_WGMMA |= {"specialised_remarked", "specialised_unmarked", "torch_ptxas_remarked"}


# Their version "triton" is a plain kernel; that of a decode step launches each kernel before the last one has ended.
_PLAIN = ("bandwidth", "exponential", "latency", "launch")


def runs_on(experiment: str, version: str, capability: int) -> bool:
    """Return whether a version of an experiment can run on a compute capability, major * 10 + minor.

    >>> runs_on("gemm_ladder", "tma", 89), runs_on("gemm_ladder", "tma", 100)
    (False, True)
    >>> runs_on("gemm_ladder", "warp_specialised", 100), runs_on("decode_step", "triton", 80)
    (False, False)
    """
    return experiment in _PLAIN or _works(version, capability)


def _works(version: str, capability: int) -> bool:
    return capability // 10 == 9 if version in _WGMMA else capability >= 90 if version in _FROM_SM90 else True


def _runs_here(version: str) -> bool:
    import torch

    major, minor = torch.cuda.get_device_capability()
    return _works(version, 10 * major + minor)


def _sampled_product(out, a64, b64, length: int, share: float):
    """Return the check of 64 rows of A B^T; `share` bounds what an element loses to rounding its result and sums."""
    import torch

    from ..kernels import Check

    rows = torch.linspace(0, len(a64) - 1, min(64, len(a64)), device=out.device).long()
    exact = a64[rows] @ b64.t()
    error = (out[rows].double() - exact).abs().max()
    return Check(float(error), float(exact.abs().max()) * (share + 4 * 2**-24 * length**0.5))


def _fp8_cases(gpu: Gpu, quick: bool):
    shapes = [(n, n, n) for n in (1024, 2048, 4096, 8192, 16384)]
    shapes += [(M, 22016, 4096) for M in (16, 256, 4096)]
    for M, N, K in () if quick else shapes:
        if gpu.memory_bytes // 2 >= 16 * (M * K + N * K):
            yield {"dtype": "fp8", "M": M, "N": N, "K": K}


def _assembled(module, kernel: str, run, assembler, change=None):
    """Return `run` with the kernel from another assembler, and its machine code, which `change` may alter."""
    from ..kernels._triton import gluon

    twin = gluon.jit(getattr(module, kernel).fn)

    def other():
        with mock.patch.object(module, kernel, twin):
            return run()

    # It is compiled by the first call. Triton's cache does not tell assemblers apart within a process.
    with tempfile.TemporaryDirectory() as folder:
        chosen = {"TRITON_PTXAS_PATH": str(assembler), "TRITON_CACHE_DIR": folder}
        with mock.patch.dict(os.environ, chosen):
            other()
    (compiled,) = (each for caches in twin.device_caches.values() for each in caches[0].values())
    if change:  # the next launch loads it
        compiled.kernel, compiled.module, compiled.function, compiled._run = change(compiled.kernel), None, None, None
    return other, compiled.kernel


def _fp8_demand(case: dict, version: str) -> Demand:
    product = _gemm_demand(case | {"dtype": "bf16" if version == "bf16" else "fp8"}, version)
    # The result of FP8 operands is written in bf16, one byte more each.
    more = 0 if version == "bf16" else case["M"] * case["N"]
    if version == "quantising":  # A is read in bf16 and written in FP8 first
        more += 3 * case["M"] * case["K"]
    launches = 2 if version == "quantising" else 1
    return Demand("GEMM", product.work, {"hbm": product.traffic["hbm"] + more}, launches)


def _fp8(case: dict, versions):
    import torch

    from ..kernels import gemm, gemm_fp8
    from ..kernels._triton import TORCH_PTXAS

    M, N, K = case["M"], case["N"], case["K"]
    x, y = _normal(M, K), _normal(N, K, seed=SEED + 1)
    blocks = {"tensor": ((M, K), (N, K)), "row": ((1, K), (1, K)), "block": ((1, 128), (128, 128))}
    ready = {
        name: [*gemm_fp8.quantise(x.float(), *one), *gemm_fp8.quantise(y.float(), *other)]
        for name, (one, other) in blocks.items()
    }
    out = torch.empty(M, N, device="cuda", dtype=torch.bfloat16)
    by_row = _compiled(lambda each: gemm_fp8.quantise(each, 1, K))

    def library(how, values=None):
        a, scale_a, b, scale_b = ready[how]
        a, scale_a = values or (a, scale_a)
        scale_b = scale_b.t() if how == "row" else scale_b
        return torch._scaled_mm(a, b.t(), scale_a, scale_b, out_dtype=out.dtype, use_fast_accum=True)

    def ours(kernel, how):
        a, scale_a, b, scale_b = ready[how]
        return kernel(a, b, scale_a, scale_b, out)

    runs = {
        "bf16": lambda: gemm.eager(x, y),
        "cublas": lambda: library("tensor"),
        "cublas_row": lambda: library("row"),
        "quantising": lambda: library("row", by_row(x)),
        "fp8_tensor": lambda: ours(gemm_fp8.fp8_tensor, "tensor"),
        "fp8_row": lambda: ours(gemm_fp8.fp8_row, "row"),
        "fp8_block": lambda: ours(gemm_fp8.fp8_block, "block"),
        "fp8_block_specialised": lambda: ours(gemm_fp8.fp8_block_specialised, "block"),
    }
    how = {"cublas": "tensor", "fp8_tensor": "tensor"}
    how |= dict.fromkeys(("fp8_block", "fp8_block_specialised", "fp8_block_torch_ptxas"), "block")
    versions = [name for name in versions if _runs_here(name)]
    if "fp8_block_torch_ptxas" in versions:
        if TORCH_PTXAS.exists():
            name, own = "fp8_block_specialised_kernel", runs["fp8_block_specialised"]
            runs["fp8_block_torch_ptxas"], _ = _assembled(gemm_fp8, name, own, TORCH_PTXAS)
        else:
            versions.remove("fp8_block_torch_ptxas")

    def prove(name):
        out.fill_(float("nan"))
        got = runs[name]()
        if name == "bf16":
            return _sampled_product(got, x.double(), y.double(), K, 2**-8)
        kind = how.get(name, "row")
        a, scale_a, b, scale_b = ready[kind]
        operands = [
            gemm_fp8.dequantise(*pair, *block)
            for pair, block in zip(((a, scale_a), (b, scale_b)), blocks[kind], strict=True)
        ]
        return _sampled_product(got, *operands, K, 2**-8 + 2 / 3 * K / 32 * 2**-14)

    return {
        name: Call(runs[name], lambda name=name: prove(name), "gemm_fp8" if name.startswith("fp8") else None)
        for name in versions
    }


def _marks_cases(gpu: Gpu, quick: bool):
    for n in () if quick else (4096, 8192):
        yield {"dtype": "fp8", "M": n, "N": n, "K": n}


def _marks(case: dict, versions):
    """The code of one kernel from two assemblers, as it is and with other marks on its multiply-adds."""
    from ..kernels import gemm_fp8
    from ..kernels._triton import PTXAS, TORCH_PTXAS

    # Triton's assembler lets each multiply-add keep the operand that the next one takes too; PyTorch's lets every
    # second one keep it, and the warp yield at the others.
    keeps, halves, drops = (lambda i: (True, False)), (lambda i: (i % 2 == 0, i % 2 == 1)), (lambda i: (False, False))
    changes = {
        "fp8_block_specialised": (PTXAS, None),
        "fp8_block_torch_ptxas": (TORCH_PTXAS, None),
        "torch_ptxas_remarked": (TORCH_PTXAS, keeps),
        "specialised_remarked": (PTXAS, halves),
        "specialised_unmarked": (PTXAS, drops),
    }
    calls, proven = {}, _fp8(case, ("fp8_block_specialised",)).get("fp8_block_specialised")
    for name in versions if proven else ():
        assembler, marks = changes[name]
        if assembler.exists():
            change = marks and functools.partial(sass.remarked, marks=marks)
            run, code = _assembled(gemm_fp8, "fp8_block_specialised_kernel", proven.run, assembler, change)
            calls[name] = Call(run, _as_proven(proven, run), "gemm_fp8", sass.count_marks(code))
    return calls


def _as_proven(first: Call, run):
    """Return a proof of the first call, and that `run`, which has the same output, leaves the same bits there."""

    def prove():
        check, expected = first.prove(), first.run().clone()
        first.run().fill_(float("nan"))
        same = _exact(run, run, lambda: expected)()
        return same if same.max_error else check

    return prove


# Exponentials, latency, launches -------------------------------------------------------------------------------------


def _exp_cases(gpu: Gpu, quick: bool):
    for repeats in (256,) if quick else (64, 256, 1024):
        yield {"n": 2**22, "repeats": repeats}


def _exp_demand(case: dict, version: str) -> Demand:
    return Demand("exponentials", {"exp": case["n"] * case["repeats"]}, {"hbm": 8 * case["n"]})


def _exp(case: dict, versions):
    import torch

    from ..kernels import check, streams

    x = _normal(case["n"], dtype="fp32")

    def prove():
        exact = x.double()
        for _ in range(case["repeats"]):
            exact = torch.exp2(-exact)
        # Each step shrinks the error of the one before, so that of the last few is all there is.
        return check(streams.exponentials(x, case["repeats"]), exact, dtype="fp32", length=4)

    return {"triton": Call(lambda: streams.exponentials(x, case["repeats"]), prove, "streams")}


def _latency_cases(gpu: Gpu, quick: bool):
    # What fits in L2 is read warm; what does not is read cold, since the chain alone would fit.
    places = [(2**20, "warm"), (2**30, "cold")] if quick else [(2**18, "warm"), (2**20, "warm"), (2**22, "warm")]
    for size, cache in places + ([] if quick else [(2**26, "cold"), (2**28, "cold"), (2**30, "cold"), (2**32, "cold")]):
        if size <= gpu.memory_bytes // 4:
            yield {"bytes": size, "steps": 2048, "cache": cache}


def _latency_demand(case: dict, version: str) -> Demand:
    # A load brings a line of 128 byte.
    return Demand("pointer chase", {"vector": 0}, {"hbm": 128 * min(case["steps"], case["bytes"] // 128)})


def _latency(case: dict, versions):
    import torch

    from ..kernels import Check, streams

    # One link per 128-byte line, in a random cycle that starts at 0: each load waits for the one before it.
    stride, lines = 32, case["bytes"] // 128
    generator = torch.Generator("cuda").manual_seed(SEED)
    order = torch.randperm(lines - 1, device="cuda", generator=generator) + 1
    order = torch.cat([order.new_zeros(1), order])
    links = torch.zeros(lines * stride, dtype=torch.int32, device="cuda")
    links[order * stride] = (order.roll(-1) * stride).int()
    expected = int(order[case["steps"] % lines]) * stride

    def run():
        return streams.chase(links, case["steps"])

    def prove():
        return Check(float(int(run()) != expected), 0.0)

    return {"triton": Call(run, prove, "streams")}


def _launch_cases(gpu: Gpu, quick: bool):
    yield {"kernels": 100}


def _launch_demand(case: dict, version: str) -> Demand:
    kernels = case["kernels"]
    return Demand("one-element adds", {"vector": kernels}, {"hbm": 8 * kernels}, kernels)


def _launch(case: dict, versions):
    import torch

    from .. import timing
    from ..kernels import streams

    x = torch.zeros(1, device="cuda")

    def many(step):
        def run():
            for _ in range(case["kernels"]):
                step()

        return run

    runs = {"eager": many(lambda: x.add_(1)), "triton": many(lambda: streams.add_one(x))}
    runs["graph"] = timing.graphed(runs["eager"])

    def counted(run):
        def zeroed():
            x.zero_()
            run()

        return _exact(zeroed, lambda: x, lambda: torch.full_like(x, case["kernels"]))

    return {name: Call(runs[name], counted(runs[name]), "streams" if name == "triton" else None) for name in versions}


# Fusion --------------------------------------------------------------------------------------------------------------


def _chain_cases(gpu: Gpu, quick: bool):
    for dtype in ("bf16",) if quick else ("bf16", "fp16"):
        for n in (2**16, 2**26) if quick else (2**14, 2**18, 2**22, 2**24, 2**26, 2**28):
            for k in (4,) if quick else (1, 2, 4, 8):
                if 4 * n * DTYPE_BYTES[dtype] <= gpu.memory_bytes // 4:
                    yield {"dtype": dtype, "n": n, "k": k}


def _chain_demand(case: dict, version: str) -> Demand:
    how = "unfused" if version in ("eager", "unfused") else "fused"
    values = {"n": case["n"], "k": case["k"], "b": DTYPE_BYTES[case["dtype"]]}
    return ledger.WORKLOADS[f"elementwise_{how}"].demand(**values)


def _chain(case: dict, versions):
    from ..kernels import elementwise

    n, k, dtype = case["n"], case["k"], case["dtype"]
    x = _normal(n, dtype=dtype)
    runs = {
        "eager": lambda: elementwise.eager(x, k),
        "unfused": lambda: elementwise.unfused(x, k),
        "fused": lambda: elementwise.fused(x, k),
    }
    if "compiled" in versions:
        compiled = _compiled(elementwise.eager)
        runs["compiled"] = lambda: compiled(x, k)
    calls = {}
    for name in versions:
        # Where each operation writes its result it is rounded to the storage type k times, where they are fused once.
        kept = torch_dtype(dtype) if name in ("eager", "unfused") else "float32"
        reference = lambda: elementwise.reference(x, k)  # noqa: E731
        proof = _proof(runs[name], reference, dtype=dtype, length=k, accumulate=kept)
        calls[name] = Call(runs[name], proof, "elementwise")
    return calls


def _norm_cases(gpu: Gpu, quick: bool):
    # The same rows in fp32: twice the bytes, about the same instructions.
    for dtype, sizes in {"bf16": (1, 16, 256, 1024, 4096, 16384, 65536), "fp32": (65536,)}.items():
        for rows in (1, 4096) if quick else sizes:
            if rows * 4096 * PROOF_BYTES <= gpu.memory_bytes and not (quick and dtype == "fp32"):
                yield {"dtype": dtype, "rows": rows, "columns": 4096}


def _norm_demand(case: dict, version: str) -> Demand:
    how = "unfused" if version in ("eager", "graph") else "fused"
    values = {"R": case["rows"], "C": case["columns"], "b": DTYPE_BYTES[case["dtype"]]}
    return ledger.WORKLOADS[f"norm_relu_add_{how}"].demand(**values)


def _norm(case: dict, versions):
    import torch

    from .. import timing
    from ..kernels import layernorm

    rows, columns, dtype = case["rows"], case["columns"], case["dtype"]
    x, residual = _normal(rows, columns, dtype=dtype), _normal(rows, columns, dtype=dtype, seed=SEED + 1)
    weight, bias = _normal(columns, dtype=dtype, seed=SEED + 2), _normal(columns, dtype=dtype, seed=SEED + 3)
    inputs = (x, residual, weight, bias)
    runs = {
        "eager": lambda: layernorm.eager(*inputs),
        "fused_row": lambda: layernorm.fused_row(*inputs),
        "fused_persistent": lambda: layernorm.fused_persistent(*inputs),
    }
    captured = {"graph": layernorm.eager, "fused_graph": layernorm.fused_row}
    results = {}
    for name in captured.keys() & set(versions):
        # A replay returns nothing: the captured call leaves its output here.
        runs[name] = timing.graphed(lambda name=name: results.__setitem__(name, captured[name](*inputs)))
    for name, options in {"compiled": {}, "reduce_overhead": {"mode": "reduce-overhead"}}.items():
        if name in versions:
            torch._dynamo.reset()
            function = torch.compile(lambda *each: layernorm.eager(*each), dynamic=False, **options)
            for _ in range(3):  # compile, and record the graph
                function(*inputs)
            runs[name] = lambda function=function: function(*inputs)

    def reference():
        return layernorm.reference(*inputs)

    def returning(name):
        def run():
            out = runs[name]()
            return results[name] if name in captured else out

        return run

    calls = {}
    for name in versions:
        # PyTorch rounds the normalised row and the relu to the storage type; our kernels keep them in fp32.
        ours = name.startswith("fused")
        precision = {"length": columns} if ours else {"length": 3, "accumulate": torch_dtype(dtype)}
        proof = _proof(returning(name), reference, dtype=dtype, **precision)
        calls[name] = Call(runs[name], proof, "layernorm")
    return calls


def _softmax_cases(gpu: Gpu, quick: bool):
    elements = 2**26 if quick else 2**28
    while elements * PROOF_BYTES > gpu.memory_bytes:
        elements //= 2
    for columns in (1024,) if quick else (256, 1024, 4096, 16384, 32768):
        yield {"dtype": "bf16", "rows": elements // columns, "columns": columns}
    # The same rows in fp32: twice the bytes, about the same instructions.
    for columns in () if quick else (1024, 4096):
        yield {"dtype": "fp32", "rows": elements // columns, "columns": columns}


def _softmax_demand(case: dict, version: str) -> Demand:
    # Compulsory: each row once. Versions that read a row again move more where rows do not fit in the caches.
    values = {"R": case["rows"], "C": case["columns"], "b": DTYPE_BYTES[case["dtype"]]}
    return ledger.WORKLOADS["softmax"].demand(**values)


def _softmax(case: dict, versions):
    import torch

    from ..kernels import softmax

    rows, columns, dtype = case["rows"], case["columns"], case["dtype"]
    x = _normal(rows, columns, dtype=dtype)
    runs = {
        "eager": lambda: torch.softmax(x, -1),
        "three_pass": lambda: softmax.three_pass(x),
        "online": lambda: softmax.online(x),
        "on_chip": lambda: softmax.on_chip(x),
    }
    if "compiled" in versions:
        compiled = _compiled(lambda each: torch.softmax(each, -1))
        runs["compiled"] = lambda: compiled(x)

    def sampled(run):
        def rows_of():
            return run()[:: max(1, rows // 512)]

        return rows_of

    reference, calls = sampled(lambda: x), {}
    for name in versions:
        proof = _proof(sampled(runs[name]), lambda: softmax.reference(reference()), dtype=dtype, length=columns)
        calls[name] = Call(runs[name], proof, "softmax")
    return calls


def _epilogue_cases(gpu: Gpu, quick: bool):
    for n in (1024,) if quick else (512, 1024, 2048, 4096, 8192):
        yield {"dtype": "bf16", "M": n, "N": n, "K": n}


def _epilogue_demand(case: dict, version: str) -> Demand:
    product = _gemm_demand(case, version)
    # As a second kernel, relu reads the product and writes it again.
    again = 2 * case["M"] * case["N"] * DTYPE_BYTES[case["dtype"]] if version == "apart" else 0
    return Demand("GEMM and relu", product.work, {"hbm": product.traffic["hbm"] + again}, 2 if again else 1)


def _epilogue(case: dict, versions):
    import torch

    M, N, K = case["M"], case["N"], case["K"]
    a, b = _normal(M, K, dtype=case["dtype"]), _normal(K, N, dtype=case["dtype"], seed=SEED + 1)
    bias = _normal(N, dtype=case["dtype"], seed=SEED + 2)
    runs = {
        "apart": lambda: torch.relu(torch.addmm(bias, a, b)),
        "inside": lambda: torch._addmm_activation(bias, a, b),
    }
    rows = slice(0, M, max(1, M // 64))

    def reference():
        return torch.relu(a[rows].double() @ b.double() + bias.double())

    def some(run):
        return lambda: run()[rows]

    return {
        name: Call(runs[name], _proof(some(runs[name]), reference, dtype=case["dtype"], length=K)) for name in versions
    }


# Attention -----------------------------------------------------------------------------------------------------------


def _attention_cases(gpu: Gpu, quick: bool):
    for length in (1024,) if quick else (1024, 2048, 4096, 8192):
        if 4 * 32 * length**2 * 2 <= gpu.memory_bytes // 4:
            yield {"dtype": "bf16", "B": 1, "h": 32, "L": length, "d_h": 128}


def _attention_demand(case: dict, version: str) -> Demand:
    values = {name: case[name] for name in ("B", "h", "L", "d_h")} | {"h_kv": case["h"], "c": 1}
    name = "attention_prefill" if version == "fused" else "attention_naive"
    found = ledger.WORKLOADS[name].demand(**values, b=DTYPE_BYTES[case["dtype"]])
    if version != "eager":
        return found
    # PyTorch scales the scores in a kernel of its own, which reads and writes them once more.
    again = 2 * case["B"] * case["h"] * case["L"] ** 2 * DTYPE_BYTES[case["dtype"]]
    return Demand(found.title, found.work, {"hbm": found.traffic["hbm"] + again}, found.launches + 1)


def _attention(case: dict, versions):
    import torch

    from ..kernels import attention

    shape = (case["B"], case["h"], case["L"], case["d_h"])
    q, k, v = (_normal(*shape, dtype=case["dtype"], seed=SEED + i) for i in range(3))
    runs = {
        "naive": lambda: attention.naive(q, k, v, False),
        "eager": lambda: attention.eager(q, k, v, False),
        "fused": lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v),
    }

    def one_head(run):
        return lambda: run()[:, :1]

    def reference():
        return attention.reference(*(each[:, :1] for each in (q, k, v)), False)

    calls = {}
    for name in versions:
        # Scores and probabilities, or the latter alone, are rounded to the storage type before they are summed.
        kept = torch_dtype(case["dtype"])
        proof = _proof(one_head(runs[name]), reference, dtype=case["dtype"], length=4, accumulate=kept)
        calls[name] = Call(runs[name], proof, "attention")
    return calls


# One decode step of a model ------------------------------------------------------------------------------------------

DECODE_MODELS = ("llama-2-7b", "llama-3-8b")


def _decode_linear_cases(gpu: Gpu, quick: bool):
    for name in DECODE_MODELS[:1] if quick else DECODE_MODELS:
        for batch in (1,) if quick else (1, 2, 4, 8, 16, 32, 64, 128, 192, 256, 384, 512):
            # Four layers are far larger than L2. One vector is given all that fit, so that the start of a graph is no
            # part of what is compared.
            layers = int(min(model(name).n_layers if batch == 1 else 4, gpu.memory_bytes / 2 / _layer_bytes(name)))
            if layers:
                yield {"dtype": "bf16", "model": name, "layers": layers, "B": batch}


def _layer_bytes(name: str) -> float:
    return sum(2 * d_in * d_out for _, d_in, d_out in linear_layers(model(name)))


def _decode_linear_demand(case: dict, version: str) -> Demand:
    merged, size = version not in ("eager", "graph"), DTYPE_BYTES[case["dtype"]]
    return linear_stack(model(case["model"]), case["layers"], batch=case["B"], merged=merged, size=size)


def _decode_linear(case: dict, versions):
    import torch

    from .. import timing
    from ..kernels import gemv

    batch, dtype = case["B"], case["dtype"]
    shapes = {merged: linear_layers(model(case["model"]), merged) for merged in (False, True)}
    inputs = {name: _normal(batch, d_in, dtype=dtype, seed=d_in) for name, d_in, _ in shapes[False]}
    # Merged weights are the same numbers: their parts are views of them.
    merged = [
        [_normal(d_out, d_in, dtype=dtype, seed=100 * layer + i) for i, (_, d_in, d_out) in enumerate(shapes[True])]
        for layer in range(case["layers"])
    ]
    sizes = [d_out for _, _, d_out in shapes[False]]
    apart = [[*qkv.split(sizes[:3]), o, *gate_up.split(sizes[4:6]), down] for qkv, o, gate_up, down in merged]

    def stack(layers, names, product):
        def run():
            for weights in layers:
                outs = [product(inputs[name], weight) for name, weight in zip(names, weights, strict=True)]
            return outs

        return run

    names = {kind: [name for name, _, _ in shapes[kind]] for kind in shapes}
    runs = {
        "eager": stack(apart, names[False], gemv.eager),
        "graph": stack(apart, names[False], gemv.eager),
        "merged_graph": stack(merged, names[True], gemv.eager),
        "gemv_graph": stack(merged, names[True], gemv.rows),
        "chained_graph": stack(merged, names[True], gemv.chained),
    }
    ours = ("gemv_graph", "chained_graph")  # they take one vector only
    runs = {name: run for name, run in runs.items() if _runs_here(name) and (batch == 1 or name not in ours)}

    def proof(name, call):
        def outputs():
            for out in results.get(name, ()):  # a graph writes where it wrote before
                out.fill_(float("nan"))
            return torch.cat(call() or results[name], dim=1)

        def reference():
            weights = apart[-1] if name in ("eager", "graph") else merged[-1]
            kind = name not in ("eager", "graph")
            return torch.cat(
                [gemv.reference(inputs[each], weight) for each, weight in zip(names[kind], weights, strict=True)], dim=1
            )

        return _proof(outputs, reference, dtype=dtype, length=max(d_in for _, d_in, _ in shapes[False]))

    calls, results = {}, {}
    for name in (each for each in versions if each in runs):
        run = runs[name]
        if name != "eager":
            run = timing.graphed(lambda name=name, run=run: results.__setitem__(name, run()))
        calls[name] = Call(run, proof(name, run), "gemv" if name in ours else None)
    return calls


def _decode_attention_cases(gpu: Gpu, quick: bool):
    for h_kv in (8,) if quick else (32, 8):
        for batch in (1,) if quick else (1, 8, 64, 512):
            for length in (4096,) if quick else (1024, 4096, 32768):
                case = {"dtype": "bf16", "h": 32, "h_kv": h_kv, "d_h": 128, "B": batch, "L": length}
                if 2 * batch * length * h_kv * 128 * DTYPE_BYTES["bf16"] <= gpu.memory_bytes // 4:
                    yield case


STACK = 32  # layers, each with a cache of its own, in the versions that run one after the other


def _decode_attention_demand(case: dict, version: str) -> Demand:
    size = DTYPE_BYTES[case["dtype"]]
    values = {name: case[name] for name in ("B", "L", "h", "h_kv", "d_h")}
    found = ledger.WORKLOADS["attention"].demand(**values, s=1, c=1, b_kv=size, b_a=size)
    if not version.endswith("_stack"):
        return found
    work, traffic = ({key: STACK * value for key, value in each.items()} for each in (found.work, found.traffic))
    return Demand(found.title, work, traffic, STACK * found.launches)


def _decode_attention(case: dict, versions):
    import torch

    from .. import timing
    from ..kernels import decode as kernels
    from ..kernels import gemv

    batch, h, h_kv, length, d_h = (case[name] for name in ("B", "h", "h_kv", "L", "d_h"))
    q = _normal(batch, h, 1, d_h, dtype=case["dtype"])
    last = torch.tensor([length - 1], device="cuda")

    def cache(layer):
        # Drawn a sequence at a time: in fp32 all of them at once would not fit.
        k, v = (torch.empty(batch, h_kv, length, d_h, device="cuda", dtype=q.dtype) for _ in range(2))
        for i in range(batch):
            seed = SEED + 1 + 2 * (batch * layer + i)
            k[i], v[i] = (_normal(h_kv, length, d_h, dtype=case["dtype"], seed=seed + j) for j in range(2))
        return k, v

    def library(k, v):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=h_kv != h)

    def ours(k, v, early):
        return kernels.split_attention(q[:, :, 0], k, v, last, early=early).unsqueeze(2)

    some = [0, batch - 1]

    def exact(k, v):
        keys, values = (each[some].double().repeat_interleave(h // h_kv, dim=1) for each in (k, v))
        weights = torch.softmax(q[some].double() @ keys.transpose(-1, -2) * d_h**-0.5, dim=-1)
        return weights @ values

    room = torch.cuda.get_device_properties(0).total_memory // 4
    fits = batch == 1 and STACK * 2 * h_kv * length * d_h * q.element_size() <= room
    versions = [name for name in versions if _runs_here(name) and (fits or not name.endswith("_stack"))]
    stacked = [name for name in versions if name.endswith("_stack")]
    caches = [cache(layer) for layer in range(STACK if stacked else 1)]

    def calls_of(name):
        layers = caches if name in stacked else caches[:1]
        # In a stack, as in a step, ours starts while the kernel before it ends.
        early = name in stacked and gemv.can_start_early(q)

        def run():
            return [ours(k, v, early) if name.startswith("split") else library(k, v) for k, v in layers]

        results = []
        call = run if name == "eager" else timing.graphed(lambda: results.__setitem__(slice(None), run()))

        def outputs():
            for out in results:  # a graph writes where it wrote before
                out.fill_(float("nan"))
            found = call() or results
            return torch.cat([found[0][some], found[-1][some]])

        def reference():
            return torch.cat([exact(*layers[i]) for i in (0, -1)])

        return call, _proof(outputs, reference, dtype=case["dtype"], length=4, accumulate=torch_dtype(case["dtype"]))

    return {name: Call(*calls_of(name), "decode" if name.startswith("split") else None) for name in versions}


STEP_MODEL = "llama-3-8b"


def _step_cases(gpu: Gpu, quick: bool):
    # Nothing quick here: to compile a step of 32 layers alone takes half a minute, to choose among kernels minutes.
    cases = [{"B": batch, "L": length} for batch, length in ((1, 4096), (1, 1024), (1, 32768), (8, 4096), (64, 4096))]
    whole = model(STEP_MODEL)
    ends = 2 * 2 * whole.V * whole.d  # embedding and LM head
    for case in () if quick else [*cases, {"B": 1, "L": 4096, "tuned": True}]:
        layer = (weight_bytes(whole) - ends + case["B"] * cache_bytes(whole, case["L"])) / whole.n_layers
        layers = int(min(whole.n_layers, (gpu.memory_bytes / 1.5 - ends) / layer))  # a small card runs fewer
        if layers > 0:
            yield {"dtype": "bf16", "model": STEP_MODEL, "layers": layers} | case


def _step_demand(case: dict, version: str) -> Demand:
    shown = dataclasses.replace(model(case["model"]), n_layers=case["layers"])
    return decode(shown, batch=case["B"], context=case["L"]).demand()


class _Wide:
    """Gives tensors by name in float64, each when it is asked for: those of all layers at once would not fit."""

    def __init__(self, tensors: dict):
        self._tensors = tensors

    def __getattr__(self, name):
        return self._tensors[name].double()


class _Each(list):
    """The same for a list of tensors that is walked through."""

    def __iter__(self):
        return (each.double() for each in super().__iter__())


def _step(case: dict, versions):
    import torch

    from .. import decoder
    from ..kernels import Check

    torch._dynamo.reset()
    weights = decoder.Weights.random(model(case["model"]), "cuda", torch_dtype(case["dtype"]), SEED, case["layers"])
    cache = decoder.Cache.empty(weights, case["B"], case["L"])
    cache.fill(SEED + 1)
    cache.seek(case["L"] - 1)
    generator = torch.Generator("cuda").manual_seed(SEED + 2)
    tokens = torch.randint(weights.model.V, (case["B"],), device="cuda", generator=generator)
    wanted = ("eager", "compiled", "reduce_overhead", "graph", "triton") if case["L"] == 4096 else ("graph", "triton")
    wanted = ("max_autotune", "triton") if "tuned" in case else wanted
    versions = [name for name in versions if _runs_here(name) and name in wanted]
    runs = {name: decoder.WAYS[name](weights, cache, case["L"]) for name in versions}
    exact = []

    def reference():
        if not exact:
            ends = {name: getattr(weights, name).double() for name in ("embedding", "final_norm", "head")}
            layers = [_Wide(vars(layer)) for layer in weights.layers]
            wide = dataclasses.replace(cache, k=_Each(cache.k), v=_Each(cache.v))
            wide.cos, wide.sin = cache.cos.double(), cache.sin.double()
            exact.append(decoder.step(dataclasses.replace(weights, layers=layers, **ends), wide, tokens, case["L"]))
        return exact[0]

    def prove(name):
        runs[name](tokens).fill_(float("nan"))
        error = runs[name](tokens).double() - reference()
        # About eight results are rounded in each layer, by at most 2^-9 of themselves; layers pass it on: 4 times.
        tolerance = 4 * (8 * len(weights.layers)) ** 0.5 * 2**-9
        return Check(float(error.norm() / reference().norm()), tolerance)

    return {
        name: Call(
            lambda name=name: runs[name](tokens), lambda name=name: prove(name), "decode" if name == "triton" else None
        )
        for name in versions
    }


# What is slow the first time -----------------------------------------------------------------------------------------

SHAPES = 8  # as many versions of one function as torch.compile keeps


def _first_cases(gpu: Gpu, quick: bool):
    for kernels in () if quick else (10, 100, 1000):
        yield {"kernels": kernels}
    if not quick:
        yield {"shapes": SHAPES, "cols": 4096}
        yield {"M": 4096, "N": 4096, "K": 4096}


def _first_demand(case: dict, version: str) -> Demand:
    return Demand("first call", {"vector": 0}, {"hbm": 1})


def _first(case: dict, versions):
    if "kernels" in case:
        found = {"capture": _capture_call(case["kernels"])}
    elif "shapes" in case:
        found = {name: _shapes_call(name, case) for name in ("eager", "static", "dynamic")}
    else:
        found = {"autotune": _autotune_call(case)}
    return {name: call for name, call in found.items() if name in versions}


def _capture_call(kernels: int) -> Call:
    import torch

    from .. import timing

    x, settings, graphs = torch.zeros(1, device="cuda"), {}, []

    def many():
        for _ in range(kernels):
            x.add_(1)

    def run():
        free, _ = torch.cuda.mem_get_info()
        graphs.append(timing.graphed(many))
        settings["memory_bytes"] = max(0, free - torch.cuda.mem_get_info()[0])

    def replayed():
        x.zero_()
        graphs[-1]()

    run()
    return Call(run, _exact(replayed, lambda: x, lambda: torch.full_like(x, kernels)), settings=settings)


def _shapes_call(how: str, case: dict) -> Call:
    import torch

    from ..decoder import Recompiles
    from ..kernels import check, layernorm

    inputs = [_normal(256 + 32 * i, case["cols"]) for i in range(case["shapes"])]
    weight, bias, settings = _normal(case["cols"]), _normal(case["cols"], seed=1), {}

    def all_shapes():
        if how == "eager":
            return [layernorm.eager(x, x, weight, bias) for x in inputs]
        torch._dynamo.reset()
        fast = torch.compile(layernorm.eager, dynamic=False if how == "static" else None)
        # Else the compiled code would come from a file that an earlier run left.
        with torch._inductor.config.patch(force_disable_caches=True), Recompiles() as seen:
            found = [fast(x, x, weight, bias) for x in inputs]
        settings["recompilations"] = seen.count
        return found

    def prove():
        x = inputs[-1]
        exact = layernorm.reference(x, x, weight, bias)
        return check(all_shapes()[-1], exact, dtype="bf16", length=4, accumulate=torch.bfloat16)

    return Call(all_shapes, prove, settings=settings)


def _autotune_call(case: dict) -> Call:
    from ..kernels import gemm

    a, b = _normal(case["M"], case["K"]), _normal(case["N"], case["K"], seed=SEED + 1)

    def prove():
        gemm.tune(a, b)
        return _sampled_product(gemm.autotuned(a, b), a.double(), b.double(), case["K"], 2**-8)

    return Call(lambda: gemm.tune(a, b), prove, "gemm")


# The FlashAttention curve ---------------------------------------------------------------------------------------------

CURVE_TOKENS = 16384  # in all, whatever the length: the batch is what is left
YARDSTICK = 8192  # the rows of the square product that is timed beside each case
SLOW = ("naive", "fa1")  # in cases of their own: beside a call of half a second the card would rest
BACKWARD = ("fa2", "sdpa_flash", "sdpa_cudnn")
HOPPER_SMS = 132  # of an H100 SXM and an H200: a demand is a case's, for any card, and `fa3` runs on these


def _flash_cases(gpu: Gpu, quick: bool):
    # Nothing quick here: what it compiles alone takes half a minute.
    case = {"dtype": "bf16", "h": 16, "d_h": 128}
    # The proof of one head needs L x L numbers in float64 several times, of its gradients more often.
    lengths = [length for length in (512, 1024, 2048, 4096, 8192, 16384) if 128 * length**2 <= gpu.memory_bytes]
    for length in () if quick else lengths:
        for causal in (False, True):
            shape = case | {"B": CURVE_TOKENS // length, "L": length, "causal": causal}
            yield shape
            if 6 * 16 * shape["B"] * length**2 <= gpu.memory_bytes:  # S, P, and what is kept for the next call
                yield shape | {"slow": True}
            if length == 16384:
                yield shape | {"sustained": True}
            if length in (2048, 16384):
                yield shape | {"pass": "backward"}


def _flash_dtype(case: dict, version: str) -> str:
    return "fp8" if version == "fa3_fp8" else case["dtype"]


def _flash_demand(case: dict, version: str) -> Demand:
    from ..kernels import flash

    if version == "gemm":
        return _gemm_demand({"dtype": case["dtype"]} | dict.fromkeys("MNK", YARDSTICK), version)
    shape = {name: case[name] for name in ("B", "h", "L", "d_h")}
    scores = case["B"] * case["h"] * case["L"] ** 2
    share = 0.5 if case["causal"] else 1.0
    size, results = DTYPE_BYTES[_flash_dtype(case, version)], DTYPE_BYTES[case["dtype"]]
    elements = case["B"] * case["h"] * case["L"] * case["d_h"]
    hbm = 3 * size * elements + results * elements  # Q, K and V; O
    if case.get("pass") == "backward":
        # The papers' convention: five products for two. Read: Q, K, V, O and dO; written: dQ, dK and dV.
        work = {"tensor": 10 * share * scores * case["d_h"], "exp": share * scores}
        return Demand("attention, backward", work, {"hbm": 8 * size * elements})
    if version == "naive":  # its products leave out no masked tile; what counts as useful is the same
        moved = ledger.WORKLOADS["attention_naive"].demand(**shape, b=size)
        work = {"tensor": share * moved.flop, "exp": share * scores}
        return Demand(moved.title, work, moved.traffic, moved.launches)
    traffic = {"hbm": hbm}
    if version == "fa1":
        traffic["l2"] = flash.fa1_bytes(**shape, causal=case["causal"], size=size)
    elif version in ("fa2", "fa3", "fa3_fp8"):
        rows = flash.FA2[2]["BLOCK_M"] if version == "fa2" else _fa3_rows(case)
        asked = flash.fa2_bytes(**shape, causal=case["causal"], size=size, block_m=rows)
        traffic["l2"] = asked + (results - size) * elements
    work = {"tensor": 4 * share * scores * case["d_h"], "exp": share * scores}
    return Demand("fused attention", work, traffic)


def _fa3_rows(case: dict) -> int:
    """Return for how many rows of Q `fa3` reads K and V once, on average, with the tiles that it takes."""
    from ..kernels import flash_hopper

    wide = flash_hopper.wide_of(case["B"] * case["h"], case["L"], case["causal"], HOPPER_SMS)
    return -(-case["L"] // flash_hopper.tiles_of(case["L"], wide))


class _Exact:
    """Attention of a case's first and last head in float64, with its logsumexp, or with `do` its gradients."""

    def __init__(self, q, k, v, causal, do=None):
        import torch

        self._found = {}
        for head in (0, -1):
            q1, k1, v1 = (x.flatten(0, 1)[head].double().requires_grad_(do is not None) for x in (q, k, v))
            s = q1 @ k1.t() * q1.shape[-1] ** -0.5
            if causal:
                s = s.masked_fill(torch.ones_like(s, dtype=torch.bool).triu(1), -float("inf"))
            found = s.softmax(-1) @ v1
            if do is None:
                self._found[head] = found, s.logsumexp(-1)
            else:
                self._found[head] = torch.autograd.grad(found, (q1, k1, v1), do.flatten(0, 1)[head].double())

    def _errors(self, index: int, tensor) -> list:
        """Return (error, result) of each head."""
        heads = tensor.flatten(0, 1)
        return [(heads[head].double() - exact[index], exact[index]) for head, exact in self._found.items()]

    def share(self, index: int, tensor) -> float:
        """Return the error's norm over the result's, where it is largest among blocks of 64 rows; NaN stays NaN."""
        import torch

        blocks = [zip(*(x.split(64) for x in pair), strict=True) for pair in self._errors(index, tensor)]
        return torch.stack([error.norm() / exact.norm() for pairs in blocks for error, exact in pairs]).max().item()

    def largest(self, index: int, tensor) -> float:
        """Return the largest error of an element; NaN stays NaN."""
        import torch

        return torch.cat([error.abs() for error, _ in self._errors(index, tensor)]).max().item()


def _rounded(times: int, dtype: str = "bf16") -> float:
    """Return the error that independent roundings leave in a sum of many numbers, as a share of it, at most.

    One rounding errs by up to u, evenly distributed, so by u / sqrt(3) in the mean square.
    """
    return {"bf16": 2.0**-8, "fp8": 2.0**-4}[dtype] * (times / 3) ** 0.5


# P and O are rounded, P in FP8 to e4m3. The naive kernels round S too: P = exp(S) feels S times its share, and where P
# is large S^2 is 5 on average, for normal S weighted with P^2.
_ROUNDINGS = {"naive": (2 + 5, "bf16"), "fa3_fp8": (2, "fp8")}


def _flash(case: dict, versions):
    import torch

    from ..kernels import Check, attention, flash, flash_hopper

    causal = case["causal"]
    shape = (case["B"], case["h"], case["L"], case["d_h"])
    q, k, v = (_normal(*shape, dtype=case["dtype"], seed=SEED + i) for i in range(3))
    if case.get("pass") == "backward":
        return _flash_backward(case, [name for name in versions if name in BACKWARD], q, k, v)
    chosen = [name for name in versions if (name in SLOW) == ("slow" in case) and _runs_here(name)]
    chosen = [name for name in chosen if name != "flex" or case["L"] == 16384]  # it compiles for each shape
    out, lse = torch.empty_like(q), torch.empty(shape[:3], dtype=torch.float32, device=q.device)
    a, b, product, fp8, exact = None, None, None, None, {}
    if "gemm" in chosen:
        a, b = (_normal(YARDSTICK, YARDSTICK, dtype=case["dtype"], seed=SEED + i) for i in range(2))
        product = torch.empty_like(a)
    if "fa3_fp8" in chosen:
        (q8, s_q), (k8, s_k), (v8, s_v) = (flash_hopper.quantise_heads(x) for x in (q, k, v))
        fp8 = (q8, k8, flash_hopper.fp8_layout_of_v(v8), s_q, s_k, s_v)
        dequantised = [x.double() * s[:, :, None, None] for x, s in ((q8, s_q), (k8, s_k), (v8, s_v))]
    runs = {
        "gemm": lambda: torch.mm(a, b.t(), out=product),
        "naive": lambda: attention.naive(q, k, v, causal, out),
        "fa1": lambda: flash.fa1(q, k, v, causal, out),
        "fa2": lambda: flash.fa2(q, k, v, causal, out, lse),
        "fa3": lambda: flash_hopper.fa3(q, k, v, causal, out),
        "fa3_fp8": lambda: flash_hopper.fa3_fp8(*fp8, causal, out),
        "sdpa_flash": _sdpa("FLASH_ATTENTION", q, k, v, causal),
        "sdpa_cudnn": _sdpa("CUDNN_ATTENTION", q, k, v, causal),
    }
    for name, build in _LIBRARIES.items():
        if name in chosen and (run := build(q, k, v, causal)):
            runs[name] = run

    def prove(name):
        if name == "gemm":
            product.fill_(float("nan"))
            runs[name]()
            return _sampled_product(product, a.double(), b.double(), YARDSTICK, 2**-8)
        dtype = _flash_dtype(case, name)
        if dtype not in exact:
            exact[dtype] = _Exact(*(dequantised if dtype == "fp8" else (q, k, v)), causal)
        out.fill_(float("nan"))
        lse.fill_(float("nan"))
        tolerance = _rounded(*_ROUNDINGS.get(name, (2, "bf16")))
        shares = [exact[dtype].share(0, runs[name]()) / tolerance]
        # The logsumexp is for a backward pass; like the libraries without one, fa3 is timed without it.
        if name == "fa3":
            flash_hopper.fa3(q, k, v, causal, out, lse)
        elif name == "fa3_fp8":
            flash_hopper.fa3_fp8(*fp8, causal, out, lse)
        if name in ("fa2", "fa3", "fa3_fp8"):
            # fp32 sums of products; Hopper's FP8 sums keep 14 bits of each of their d_h / 32 = 4 parts.
            shares.append(exact[dtype].largest(1, lse) / (2**-7 if dtype == "fp8" else 2**-10))
        return Check(torch.tensor(shares).max().item() * tolerance, tolerance)

    kernel = {"naive": "attention", "fa1": "flash", "fa2": "flash", "fa3": "flash_hopper", "fa3_fp8": "flash_hopper"}
    return {name: Call(runs[name], lambda name=name: prove(name), kernel.get(name)) for name in chosen if name in runs}


def _sdpa(backend: str, q, k, v, causal: bool):
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def run():
        with sdpa_kernel(getattr(SDPBackend, backend)):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

    return run


def _flash_backward(case: dict, versions, q, k, v):
    import torch

    from ..kernels import Check, flash

    do, causal, exact = _normal(*q.shape, dtype=case["dtype"], seed=SEED + 3), case["causal"], []
    leaves, forward = [each.detach().requires_grad_() for each in (q, k, v)], {}

    def ours():
        if "fa2" not in forward:
            lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
            forward["fa2"] = flash.fa2(q, k, v, causal, lse=lse), lse
        o, lse = forward["fa2"]
        return flash.fa2_backward(q, k, v, o, do, lse, causal)

    def library(backend):
        if backend not in forward:
            forward[backend] = _sdpa(backend, *leaves, causal)()
        return torch.autograd.grad(forward[backend], leaves, do, retain_graph=True)

    runs = {
        "fa2": ours,
        "sdpa_flash": lambda: library("FLASH_ATTENTION"),
        "sdpa_cudnn": lambda: library("CUDNN_ATTENTION"),
    }

    def prove(name):
        if not exact:
            exact.append(_Exact(q, k, v, causal, do))
        # P, dS, O within delta, the result, and what was P of the other kernel.
        tolerance = _rounded(5)
        shares = torch.tensor([exact[0].share(index, grad) for index, grad in enumerate(runs[name]())])
        return Check(shares.max().item(), tolerance)

    return {
        name: Call(runs[name], lambda name=name: prove(name), "flash" if name == "fa2" else None)
        for name in versions
        if _runs_here(name)
    }


# Peers that are timed where they are installed: each returns a call, or None. What fails, fails in its own proof.


def _flex(q, k, v, causal: bool):
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    ready = []

    def run():
        if not ready:
            mask = None
            if causal:
                length = q.shape[2]
                mask = create_block_mask(lambda b, h, row, key: row >= key, None, None, length, length, q.device)
            ready.extend((_compiled(flex_attention), mask))
        return ready[0](q, k, v, block_mask=ready[1])

    return run


def _flash_attn_4(q, k, v, causal: bool):
    try:
        from flash_attn.cute import flash_attn_func
    except ImportError:
        return None
    operands = [x.transpose(1, 2).contiguous() for x in (q, k, v)]  # (B, L, h, d_h)

    def run():
        found = flash_attn_func(*operands, causal=causal)
        return (found[0] if isinstance(found, tuple) else found).transpose(1, 2)

    return run


def _flashinfer(q, k, v, causal: bool):
    try:
        import flashinfer
    except ImportError:
        return None
    import torch

    B, h, L, d_h = q.shape
    operands = [x.transpose(1, 2).reshape(B * L, h, d_h) for x in (q, k, v)]  # sequences one after the other
    ready = []

    def run():
        if not ready:
            space = torch.empty(2**27, dtype=torch.uint8, device=q.device)
            ready.append(flashinfer.BatchPrefillWithRaggedKVCacheWrapper(space, "NHD"))
            starts = torch.arange(B + 1, dtype=torch.int32, device=q.device) * L
            ready[0].plan(starts, starts, h, h, d_h, causal=causal, q_data_type=q.dtype)
        return ready[0].run(*operands).view(B, L, h, d_h).transpose(1, 2)

    return run


_LIBRARIES = {"flex": _flex, "flash_attn_4": _flash_attn_4, "flashinfer": _flashinfer}


# A product draws so much power that the card lowers its clock, some time after the first call.
_PRODUCT = {"cache": "warm", "settle_s": 0.7}
EXPERIMENTS = {
    each.name: each
    for each in (
        Experiment(
            name="bandwidth",
            title="copy, read and write against size",
            versions=("torch", "triton"),
            cases=_stream_cases,
            prepare=_stream,
            demand=_stream_demand,
            cache="warm",
            budget_s=0.05,
        ),
        Experiment(
            name="gemm",
            title="square matrix products by dtype and size",
            versions=("cublas",),
            cases=_gemm_cases,
            prepare=_gemm,
            demand=_gemm_demand,
            needs=_gemm_needs,
            budget_s=0.3,
            **_PRODUCT,
        ),
        Experiment(
            name="gemm_ladder",
            title="a matrix product from single multiplications to warp specialisation, beside the library's",
            versions=("cublas", *LADDER),
            cases=_ladder_cases,
            prepare=_ladder,
            demand=_gemm_demand,
            counted=lambda case: case["M"] == case["N"] == 4096,
            **_PRODUCT,
        ),
        Experiment(
            name="gemm_fp8",
            title="matrix products in FP8 by how they are scaled, with and without quantising",
            versions=(
                *("bf16", "cublas", "cublas_row", "quantising"),
                *("fp8_tensor", "fp8_row", "fp8_block", "fp8_block_specialised", "fp8_block_torch_ptxas"),
            ),
            cases=_fp8_cases,
            prepare=_fp8,
            demand=_fp8_demand,
            needs=_gemm_needs,
            **_PRODUCT,
        ),
        Experiment(
            name="marks",
            title="block-scaled FP8 with the marks of its multiply-adds changed in the machine code",
            versions=(
                *("fp8_block_specialised", "fp8_block_torch_ptxas"),
                *("torch_ptxas_remarked", "specialised_remarked", "specialised_unmarked"),
            ),
            cases=_marks_cases,
            prepare=_marks,
            demand=_fp8_demand,
            needs=_gemm_needs,
            **_PRODUCT,
        ),
        Experiment(
            name="exponential",
            title="exponentials per second",
            versions=("triton",),
            cases=_exp_cases,
            prepare=_exp,
            demand=_exp_demand,
            cache="warm",
        ),
        Experiment(
            name="latency",
            title="the time of one load that waits for the one before it",
            versions=("triton",),
            cases=_latency_cases,
            prepare=_latency,
            demand=_latency_demand,
            cache="warm",
        ),
        Experiment(
            name="launch",
            title="the cost of a launch, from the host and in a graph",
            versions=("eager", "triton", "graph"),
            cases=_launch_cases,
            prepare=_launch,
            demand=_launch_demand,
            cache="warm",
        ),
        Experiment(
            name="chain",
            title="a chain of elementwise operations, fused and not",
            versions=("eager", "unfused", "fused", "compiled"),
            cases=_chain_cases,
            prepare=_chain,
            demand=_chain_demand,
            budget_s=0.06,
        ),
        Experiment(
            name="norm",
            title="residual + relu(layernorm(x)), fused and not",
            versions=("eager", "graph", "compiled", "reduce_overhead", "fused_row", "fused_persistent", "fused_graph"),
            cases=_norm_cases,
            prepare=_norm,
            demand=_norm_demand,
            counted=lambda case: case["rows"] >= 16384,
            budget_s=0.1,
        ),
        Experiment(
            name="softmax",
            title="softmax over rows of every length",
            versions=("eager", "compiled", "three_pass", "online", "on_chip"),
            cases=_softmax_cases,
            prepare=_softmax,
            demand=_softmax_demand,
            counted=lambda case: True,
            budget_s=0.1,
        ),
        Experiment(
            name="epilogue",
            title="relu(a b + bias), as a second kernel and inside the matrix product",
            versions=("apart", "inside"),
            cases=_epilogue_cases,
            prepare=_epilogue,
            demand=_epilogue_demand,
            budget_s=0.2,
        ),
        Experiment(
            name="attention",
            title="attention in three kernels and in one",
            versions=("naive", "eager", "fused"),
            cases=_attention_cases,
            prepare=_attention,
            demand=_attention_demand,
            counted=lambda case: case["L"] >= 2048,
        ),
        Experiment(
            name="decode_linear",
            title="linear layers of one decode step against the batch",
            versions=("eager", "graph", "merged_graph", "gemv_graph", "chained_graph"),
            cases=_decode_linear_cases,
            prepare=_decode_linear,
            demand=_decode_linear_demand,
            budget_s=0.1,
        ),
        Experiment(
            name="decode_attention",
            title="attention of one layer in decode, against batch and context",
            versions=("eager", "graph", "split", "graph_stack", "split_stack"),
            not_quick=("graph_stack", "split_stack"),
            cases=_decode_attention_cases,
            prepare=_decode_attention,
            demand=_decode_attention_demand,
            budget_s=0.1,
        ),
        Experiment(
            name="decode_step",
            title="a whole decode step, by how it is launched",
            versions=("eager", "compiled", "reduce_overhead", "max_autotune", "graph", "triton"),
            cases=_step_cases,
            prepare=_step,
            demand=_step_demand,
            traced=lambda case: (case["B"], case["L"]) == (1, 4096) and "tuned" not in case,
            cache="warm",  # its weights alone are 300 times L2
            budget_s=0.2,
        ),
        Experiment(
            name="first_call",
            title="what is slow the first time: to capture, to compile, to tune",
            versions=("capture", "eager", "static", "dynamic", "autotune"),
            cases=_first_cases,
            prepare=_first,
            demand=_first_demand,
            cache="warm",
            once=True,
        ),
        Experiment(
            name="flash",
            title="attention of 16,384 tokens against length, from three kernels to FlashAttention-3, beside libraries",
            versions=(
                *("gemm", "naive", "fa1", "fa2", "fa3", "fa3_fp8"),
                *("sdpa_flash", "sdpa_cudnn", "flex", "flash_attn_4", "flashinfer"),
            ),
            cases=_flash_cases,
            prepare=_flash,
            demand=_flash_demand,
            dtype=_flash_dtype,
            cache="warm",
            budget_s=0.08,
            settle_s=0.5,
        ),
    )
}
