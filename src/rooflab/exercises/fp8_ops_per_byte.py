"""Exercise 7: what FP8 changes for prefill and for decode.

Right answers come from the ledger where it has the workload.
Each known wrong formula stands beside the reason that a reader gets for it; `g` holds the arguments of the question.
"""

from ..ledger import COMPUTE_TIME, INTENSITY, MEMORY_TIME, RIDGE, WORKLOADS
from ..lesson import Question, TrueFalse

_PEAKS = (121e12, 312e12, 989.4e12, 1978.9e12, 2250e12, 4500e12)
_BANDWIDTHS = (0.3e12, 1.555e12, 2.039e12, 3.35e12, 4.8e12, 7.7e12)
_LENGTHS = range(4096, 100_001)
_BATCHES = range(2, 2049)


def _machine(pick) -> dict:
    return {"peak_flop_per_s": pick(_PEAKS), "bytes_per_s": pick(_BANDWIDTHS)}


def _heads(pick) -> dict:
    kv_heads = pick((1, 2, 5, 8))
    return {"query_heads": kv_heads * pick((1, 4, 7, 8)), "kv_heads": kv_heads}


# (a) ridge -----------------------------------------------------------------------------------------------------------


def _ridge(peak_flop_per_s, bytes_per_s):
    return RIDGE(P=peak_flop_per_s, beta=bytes_per_s)


ridge = Question(
    "ridge",
    "FLOP/byte",
    {"peak_flop_per_s": 1978.9e12, "bytes_per_s": 3.35e12},
    _machine,
    _ridge,
    {
        "you divided the wrong way round: that is bytes per FLOP": lambda **g: 1 / _ridge(**g),
        "you divided by bits; the bandwidth is in bytes already": lambda **g: _ridge(**g) / 8,
        "the argument is the dense peak already; do not scale it for sparsity": lambda **g: _ridge(**g) * 2,
    },
)


# (b) fused prefill attention -----------------------------------------------------------------------------------------


def _prefill(L, query_heads, kv_heads, head_dim, bytes_per_element, causal):
    intensity = WORKLOADS["attention_prefill"].intensity()
    return intensity(L=L, h=query_heads, h_kv=kv_heads, d_h=head_dim, b=bytes_per_element, c=0.5 if causal else 1)


def _prefill_without_output(L, query_heads, kv_heads, head_dim, bytes_per_element, causal):
    flop = 4 * query_heads * L**2 * head_dim * (0.5 if causal else 1)
    return flop / (bytes_per_element * L * head_dim * (query_heads + 2 * kv_heads))


def _prefill_unfused(L, query_heads, kv_heads, head_dim, bytes_per_element, causal):
    flop = 4 * query_heads * L**2 * head_dim * (0.5 if causal else 1)
    return flop / (bytes_per_element * (2 * L * head_dim * (query_heads + kv_heads) + 4 * query_heads * L**2))


def _draw_prefill(pick) -> dict:
    rest = {"head_dim": pick((64, 80, 128, 256)), "bytes_per_element": pick((1, 2, 4)), "causal": pick((False, True))}
    return {"L": pick(_LENGTHS), **_heads(pick), **rest}


prefill_attention = Question(
    "fused prefill attention",
    "FLOP/byte",
    {"L": 4096, "query_heads": 32, "kv_heads": 32, "head_dim": 128, "bytes_per_element": 2, "causal": False},
    _draw_prefill,
    _prefill,
    {
        "you counted elements, not bytes, and left out writing O: 4L/3 is FLOP per element read": (
            lambda **g: _prefill_without_output(**g | {"bytes_per_element": 1})
        ),
        "you counted elements, not bytes: divide by the bytes per element": (
            lambda **g: _prefill(**g | {"bytes_per_element": 1})
        ),
        "you left out writing O, which is as large as Q": lambda **g: _prefill_without_output(**g),
        "L/2 holds only for multi-head attention, 2 bytes per element and no mask; use the arguments": (
            lambda **g: g["L"] / 2
        ),
        "that holds for 2 bytes per element only; use bytes_per_element": (
            lambda **g: _prefill(**g | {"bytes_per_element": 2})
        ),
        "you ignored the causal mask: half of the scores are never computed": (
            lambda **g: _prefill(**g | {"causal": False})
        ),
        "K and V have kv_heads heads, not query_heads": lambda **g: _prefill(**g | {"kv_heads": g["query_heads"]}),
        "you ignored both the causal mask and the number of KV heads": (
            lambda **g: _prefill(**g | {"kv_heads": g["query_heads"], "causal": False})
        ),
        "a factor 2 is missing: a multiply-add is 2 FLOP, and there are two matrix products": (
            lambda **g: _prefill(**g) / 2
        ),
        "the causal mask halves the FLOP once; Q, K, V and O are still moved whole": (
            lambda **g: _prefill(**g) / (2 if g["causal"] else 1)
        ),
        "you wrote the score matrix to memory: that is the unfused version": lambda **g: _prefill_unfused(**g),
        "you used the model width where the head dimension belongs": lambda **g: _prefill(**g) * g["query_heads"],
        "you divided the FLOP of one head by the bytes of all heads": lambda **g: _prefill(**g) / g["query_heads"],
    },
)


# (c) decode ----------------------------------------------------------------------------------------------------------


def _linear(batch, bytes_per_weight):
    return 2 * batch / bytes_per_weight


decode_linear = Question(
    "linear layer in decode",
    "FLOP/byte",
    {"batch": 1, "bytes_per_weight": 2},
    lambda pick: {"batch": pick(_BATCHES), "bytes_per_weight": pick((0.5, 1, 2, 4))},
    _linear,
    {
        "the batch is missing: one read of a weight serves every sequence": lambda **g: _linear(**g | {"batch": 1}),
        "that holds for 2 bytes per weight only; use bytes_per_weight": (
            lambda **g: _linear(**g | {"bytes_per_weight": 2})
        ),
        "you counted elements, not bytes: divide by the bytes per weight": (
            lambda **g: _linear(**g | {"bytes_per_weight": 1})
        ),
        "a factor 2 is missing: a multiply-add is 2 FLOP": lambda **g: _linear(**g) / 2,
        "you multiplied by the bytes per weight instead of dividing": (
            lambda **g: _linear(**g) * g["bytes_per_weight"] ** 2
        ),
    },
)


def _attention(query_heads, kv_heads, bytes_per_element, L, batch):
    return WORKLOADS["attention_decode"].intensity()(h=query_heads, h_kv=kv_heads, b=bytes_per_element, L=L)


decode_attention = Question(
    "attention in decode",
    "FLOP/byte",
    {"query_heads": 32, "kv_heads": 32, "bytes_per_element": 2, "L": 4096, "batch": 1},
    lambda pick: {**_heads(pick), "bytes_per_element": pick((1, 2, 4)), "L": pick(_LENGTHS), "batch": pick(_BATCHES)},
    _attention,
    {
        "it does not grow with the batch: every sequence reads its own cache": lambda **g: _attention(**g) * g["batch"],
        "it does not fall with the batch: the FLOP grow with it as the bytes do": (
            lambda **g: _attention(**g) / g["batch"]
        ),
        "query heads that share a KV head share its bytes; their ratio is missing": (
            lambda **g: _attention(**g | {"kv_heads": g["query_heads"]})
        ),
        "that holds for 2 bytes per cached element only; use bytes_per_element": (
            lambda **g: _attention(**g | {"bytes_per_element": 2})
        ),
        "you counted elements, not bytes: divide by the bytes per element": (
            lambda **g: _attention(**g | {"bytes_per_element": 1})
        ),
        "a factor 2 is missing: each cached element takes part in a multiply-add, which is 2 FLOP": (
            lambda **g: _attention(**g) / 2
        ),
        "a factor 2 is too much: each cached element, of K or of V, takes part in one multiply-add per query head": (
            lambda **g: _attention(**g) * 2
        ),
        "that is prefill: here one new token uses the cache once, not L times": (
            lambda batch, **g: _prefill(**g, head_dim=128, causal=False)
        ),
    },
    # Counting Q and O or not changes the result by query_heads / (kv_heads * L), at most 8 / 4096; both are accepted.
    tolerance=0.005,
)


def _step(batch, L, d_model, kv_dim, mlp_dim, bytes_per_weight, bytes_per_kv, **changed):
    """Return the intensity; `changed` replaces a count by a wrong one."""
    projections, mlp = 2 * d_model * (d_model + kv_dim), 3 * d_model * mlp_dim
    scores_flop = changed.get("scores_flop", 4 * batch * L * d_model)
    flop = 2 * batch * (projections + mlp * changed.get("mlp_flop", 1)) + scores_flop
    caches = changed.get("caches", batch)
    weights = projections + mlp * changed.get("mlp_bytes", 1)
    return INTENSITY(F=flop, Q=bytes_per_weight * weights + bytes_per_kv * caches * 2 * L * kv_dim)


def _draw_step(pick) -> dict:
    d_model = pick((2048, 4096, 5120, 8192))
    widths = {"d_model": d_model, "kv_dim": d_model // pick((1, 4, 8)), "mlp_dim": pick((5504, 11008, 14336, 28672))}
    return {
        "batch": pick(_BATCHES),
        "L": pick(_LENGTHS),
        **widths,
        "bytes_per_weight": pick((0.5, 1, 2)),
        "bytes_per_kv": pick((1, 2)),
    }


decode_step = Question(
    "layer of a decode step",
    "FLOP/byte",
    {
        "batch": 1,
        "L": 4096,
        "d_model": 4096,
        "kv_dim": 4096,
        "mlp_dim": 11008,
        "bytes_per_weight": 2,
        "bytes_per_kv": 2,
    },
    _draw_step,
    _step,
    {
        "the MLP is missing from the FLOP, although its weights are in the bytes": (lambda **g: _step(**g, mlp_flop=0)),
        "the MLP is missing, from the FLOP and from the bytes": lambda **g: _step(**g, mlp_flop=0, mlp_bytes=0),
        "the products with the cached K and V are missing from the FLOP": lambda **g: _step(**g, scores_flop=0),
        "each query head multiplies with a cached head, so those products take 4 L d_model FLOP, not 4 L kv_dim": (
            lambda **g: _step(**g, scores_flop=4 * g["batch"] * g["L"] * g["kv_dim"])
        ),
        "each sequence has its own cache; its bytes must grow with the batch": lambda **g: _step(**g, caches=1),
        "K and V have kv_dim columns, not d_model": lambda **g: _step(**g | {"kv_dim": g["d_model"]}),
        "the batch is missing, or each sequence reads the weights again; one read serves them all": (
            lambda **g: _step(**g | {"batch": 1})
        ),
        "you counted elements, not bytes": lambda **g: _step(**g | {"bytes_per_weight": 1, "bytes_per_kv": 1}),
        "weights have bytes_per_weight and the cache has bytes_per_kv; you used one for both": (
            lambda **g: _step(**g | {"bytes_per_kv": g["bytes_per_weight"]})
        ),
        "a factor 2 is missing: a multiply-add is 2 FLOP": lambda **g: _step(**g) / 2,
    },
)


# (d) bounds and speed-ups --------------------------------------------------------------------------------------------


def _times_s(flop, moved_bytes, peak_flop_per_s, bytes_per_s, peak_factor=1, byte_factor=1) -> tuple:
    compute = COMPUTE_TIME(F=flop, P=peak_flop_per_s * peak_factor)
    return compute, MEMORY_TIME(Q=moved_bytes / byte_factor, beta=bytes_per_s)


def _speedup(total=max, **g):
    before = total(_times_s(**g | {"peak_factor": 1, "byte_factor": 1}))
    return before / total(_times_s(**g))


def _uncapped_speedup(**g):
    compute, memory = _times_s(**g | {"peak_factor": 1, "byte_factor": 1})
    return g["peak_factor"] if compute > memory else g["byte_factor"]


def _draw_speedup(pick) -> dict:
    machine, moved_bytes = _machine(pick), pick((1e6, 134.2e6, 13.2e9))
    # From far below the ridge to far above it, and near it, where a change of roof caps the gain.
    flop = moved_bytes * _ridge(**machine) * pick((0.01, 0.7, 0.9, 1.2, 1.6, 30))
    factors = {"peak_factor": pick((1, 2, 4)), "byte_factor": pick((1, 1.75, 2, 4))}
    return {"flop": flop, "moved_bytes": moved_bytes, **machine, **factors}


speedup = Question(
    "speed-up of the bound",
    "x",
    {
        "flop": 13.2e9,
        "moved_bytes": 13.2e9,
        "peak_flop_per_s": 989.4e12,
        "bytes_per_s": 3.35e12,
        "peak_factor": 2,
        "byte_factor": 1,
    },
    _draw_speedup,
    _speedup,
    {
        "the factors do not multiply, because only the slower roof counts": (
            lambda **g: g["peak_factor"] * g["byte_factor"]
        ),
        "a faster peak helps only what is compute-bound": lambda **g: g["peak_factor"],
        "fewer bytes help only what is bandwidth-bound": lambda **g: g["byte_factor"],
        "the larger factor counts only when it belongs to the roof that binds": (
            lambda **g: max(g["peak_factor"], g["byte_factor"])
        ),
        "the smaller factor is not always what is left: only the roof that binds, before and after, counts": (
            lambda **g: min(g["peak_factor"], g["byte_factor"])
        ),
        "the other roof caps the gain: it binds once the first has moved far enough": _uncapped_speedup,
        "you added compute time and memory time; they overlap, so the bound is the larger": (
            lambda **g: _speedup(total=sum, **g)
        ),
        "you took the faster roof; the bound is the larger time": lambda **g: _speedup(total=min, **g),
        "that is the time after over the time before; a speed-up is the inverse": lambda **g: 1 / _speedup(**g),
    },
)


def _crossing(peak_flop_per_s, bytes_per_s, bytes_per_weight):
    return _ridge(peak_flop_per_s, bytes_per_s) * bytes_per_weight / 2


crossing_batch = Question(
    "crossing batch",
    "sequences",
    {"peak_flop_per_s": 989.4e12, "bytes_per_s": 3.35e12, "bytes_per_weight": 2},
    lambda pick: {**_machine(pick), "bytes_per_weight": pick((0.5, 1, 2, 4))},
    _crossing,
    {
        "that is the ridge; the batch equals it only for 2 bytes per weight": (
            lambda **g: _crossing(**g | {"bytes_per_weight": 2})
        ),
        "smaller weights reach the ridge at a smaller batch; you divided by the bytes per weight": (
            lambda **g: _crossing(**g | {"bytes_per_weight": 4 / g["bytes_per_weight"]})
        ),
        "a factor 2 is missing: a multiply-add is 2 FLOP": lambda **g: _crossing(**g) * 2,
    },
)


# (e) the exponential -------------------------------------------------------------------------------------------------


def _exp_ratio(head_dim, mma_flop_per_clock, exp_per_clock):
    return (1 / exp_per_clock) / (4 * head_dim / mma_flop_per_clock)


exp_to_mma = Question(
    "exponential time over MMA time",
    "",
    {"head_dim": 128, "mma_flop_per_clock": 4096, "exp_per_clock": 16},
    lambda pick: {
        "head_dim": pick((64, 96, 128, 256)),
        "mma_flop_per_clock": pick((1024, 2048, 4096, 8192, 16384)),
        "exp_per_clock": pick((4, 16, 32)),
    },
    _exp_ratio,
    {
        "that is MMA time over exponential time; turn it over": lambda **g: 1 / _exp_ratio(**g),
        "a factor 2 is missing in the MMA: a multiply-add is 2 FLOP, and there are two products": (
            lambda **g: _exp_ratio(**g) * 2
        ),
        "each score takes head_dim multiply-adds in each of two products": lambda **g: _exp_ratio(**g) * 4,
        "the head dimension is missing": lambda **g: _exp_ratio(**g | {"head_dim": 1}),
    },
)


def _serial(exp_to_mma_ratio, mma_factor):
    return (1 + exp_to_mma_ratio) / (1 / mma_factor + exp_to_mma_ratio)


serial_speedup = Question(
    "speed-up without overlap",
    "x",
    {"exp_to_mma_ratio": 0.5, "mma_factor": 2},
    lambda pick: {"exp_to_mma_ratio": pick((0.0625, 0.1, 0.25, 0.5, 1.0, 2.0)), "mma_factor": pick((2, 3, 4))},
    _serial,
    {
        "the exponential does not get faster with FP8": lambda **g: g["mma_factor"],
        "you overlapped the two; here they run one after the other": (
            lambda exp_to_mma_ratio, mma_factor: max(1, exp_to_mma_ratio) / max(1 / mma_factor, exp_to_mma_ratio)
        ),
        "that is the time after over the time before; a speed-up is the inverse": lambda **g: 1 / _serial(**g),
    },
)


# (f) verdict ---------------------------------------------------------------------------------------------------------

verdict = TrueFalse(
    "verdict",
    {
        "a": (
            "Fused prefill attention at L = 4096 in bf16, multi-head, is compute-bound on an H100 SXM.",
            True,
            "its intensity is above the ridge, with and without a causal mask",
        ),
        "b": (
            "Unfused prefill attention becomes compute-bound too, when L is long enough.",
            False,
            "the score matrix grows with L^2 as the FLOP do, so the intensity stays below d_h / 2",
        ),
        "c": (
            "Storing Q, K, V and O in FP8 and multiplying in FP8 moves fused prefill attention away from the ridge.",
            False,
            "the intensity doubles and so does the ridge, so their ratio stays",
        ),
        "d": (
            "With one sequence, FP8 multiplication on 16-bit weights and cache lowers the time bound of decode.",
            False,
            "the bytes bind at batch 1, and they have not changed",
        ),
        "e": (
            "With one sequence, an FP8 KV cache lowers the time bound of decode attention even with bf16 products.",
            True,
            "the bytes bind, and half as many are read",
        ),
        "f": (
            "At no batch size does the FP8 rate itself help a decode step.",
            False,
            "above the crossing batch the linear layers are compute-bound, and there the rate helps",
        ),
        "g": (
            "A batch of 512 makes multi-head decode attention compute-bound on an H100 SXM.",
            False,
            "every sequence reads its own cache, so the intensity does not depend on the batch",
        ),
        "h": (
            "FP8 attention is twice as fast as 16-bit attention on an H100, because its matrix rate is twice as high.",
            False,
            "the exponential does not get faster, and the published gain is 1.55x to 1.62x",
        ),
        "i": (
            "In the prefill of a 7B model at L = 4096, FP8 saves more time in the linear layers than in attention.",
            True,
            "attention is only 14 % of the FLOP, or 7.5 % with a causal mask",
        ),
    },
)
