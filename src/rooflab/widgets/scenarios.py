"""The book's scenarios, one function a slider page."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from .. import ledger, records
from ..units import DTYPE_BYTES
from .scenario import Dot, Point, Scenario, Slider, powers_of_two


def roofline_scenario() -> Scenario:
    """Return section 1's page: six workloads, a size n, and a batch B that moves a weight matrix to the right."""
    # Two SMs share the panels of neighbouring 128 × 256 tiles, so L2 sees tiles of twice the height.
    tile = {"b": "dtype", "B_M": 256, "B_N": 256}
    return Scenario(
        id="roofline",
        title="Workloads on a roofline",
        sliders=(
            Slider("n", "size n", powers_of_two(64, 32768), 4096),
            Slider("B", "batch B", powers_of_two(1, 4096), 8),
        ),
        dots=(
            Dot("weights n × n, batch B", "gemm", {"M": "B", "N": "n", "K": "n"} | tile),
            Dot("GEMM, n × n × n", "gemm", {"M": "n", "N": "n", "K": "n"} | tile),
            Dot("GEMV, n × n", "gemv", {"M": "n", "K": "n", "b": "dtype"}),
            Dot("softmax, n × n", "softmax", {"R": "n", "C": "n", "b": "dtype"}),
            Dot("layer norm, n × n", "layernorm", {"R": "n", "C": "n", "b": "dtype"}),
            Dot("dot product, 2²⁴ elements", "dot", {"n": 2**24, "b": "dtype"}),
        ),
        points=_all_points(gemm_points),
        x_range=(0.1, 3e4),
    )


def fusion_scenario() -> Scenario:
    """Return section 3's page: a chain, the end of a layer, and attention, each apart and fused."""
    attention = {"B": 1, "h": 32, "L": "L", "d_h": 128, "b": "dtype"}
    return Scenario(
        id="fusion",
        title="Fusion as a ledger",
        sliders=(
            Slider("k", "chain length k", tuple(range(1, 9)), 4),
            Slider("n", "chain size n", powers_of_two(2**14, 2**28), 2**26),
            Slider("R", "rows R of 4096", (1, 16, 256, 1024, 4096, 16384, 65536), 65536),
            Slider("L", "context L", powers_of_two(256, 16384), 4096),
        ),
        dots=(
            Dot("chain, k kernels", "elementwise_unfused", {"n": "n", "k": "k", "b": "dtype"}),
            Dot("chain, one kernel", "elementwise_fused", {"n": "n", "k": "k", "b": "dtype"}),
            Dot("norm, relu, add: three kernels", "norm_relu_add_unfused", {"R": "R", "C": 4096, "b": "dtype"}),
            Dot("norm, relu, add: one kernel", "norm_relu_add_fused", {"R": "R", "C": 4096, "b": "dtype"}),
            Dot("attention, three kernels", "attention_naive", attention),
            Dot("attention, one kernel", "attention_prefill", attention | {"h_kv": 32, "c": 1}),
        ),
        pairs=((0, 1), (2, 3), (4, 5)),
        points=_all_points(fusion_points),
        device="h200-sxm",
        x_range=(0.05, 1e4),
    )


_FUSION_DOTS = [f"elementwise_{how}" for how in ("unfused", "fused")]
_FUSION_DOTS += [f"norm_relu_add_{how}" for how in ("unfused", "fused")] + ["attention_naive", "attention_prefill"]
# Which recorded version stands for which dot's workload, and which of its case's values the sliders must show.
_FUSION = {
    "chain": ({"unfused": "elementwise_unfused", "fused": "elementwise_fused"}, {"n": "n", "k": "k"}),
    "norm": ({"eager": "norm_relu_add_unfused", "fused_row": "norm_relu_add_fused"}, {"rows": "R"}),
    "attention": ({"naive": "attention_naive", "fused": "attention_prefill"}, {"L": "L"}),
}


def _all_points(points_of) -> tuple[Point, ...]:
    """Return the points of every device with records: the book's, and the reader's own marked as such."""
    return tuple(
        dataclasses.replace(point, label=f"{whose}: {point.label}", source=f"yours, {point.source}") if whose else point
        for whose, root in records.shown_roots()
        for device in records.devices_with_records(root)
        for point in points_of(device, root)
    )


def fusion_points(device: str, root: Path = records.BOOK) -> tuple[Point, ...]:
    """Return the recorded versions of section 3's workloads at the ledger's intensities."""
    points = []
    for experiment, (versions, sliders) in _FUSION.items():
        record = records.find(device, experiment, root)
        for row in record.rows if record else ():
            if (workload := versions.get(row["version"])) is None:
                continue
            values = {"b": DTYPE_BYTES[row["case"]["dtype"]], "c": 1, "h_kv": row["case"].get("h")}
            values |= {"C": row["case"].get("columns"), "R": row["case"].get("rows")}
            values |= {name: row["case"][name] for name in row["case"] if name in ledger.SYMBOLS}
            demand = ledger.WORKLOADS[workload].demand(**{k: v for k, v in values.items() if v is not None})
            run = record.runs[row["run"]]
            points.append(
                Point(
                    label=f"{experiment}, {row['version']}",
                    device=device,
                    dtype=row["case"]["dtype"],
                    intensity=demand.intensity_flop_per_byte(),
                    flop_per_s=demand.flop / row["time_s"],
                    source=f"GPU time, {run['measured'][:10]}, PyTorch {run['versions']['torch']}",
                    when={slider: row["case"][name] for name, slider in sliders.items()},
                    dot=_FUSION_DOTS.index(workload),
                )
            )
    return tuple(points)


def gemm_points(device: str, root: Path = records.BOOK) -> tuple[Point, ...]:
    """Return the recorded matrix products of `device` at the intensities that the ledger gives their shapes."""
    record = records.find(device, "gemm", root)
    gemm = ledger.WORKLOADS["gemm"]
    points = []
    for row in record.rows if record else ():
        shape = {name: row["case"][name] for name in "MNK"}
        dtype, run = row["case"]["dtype"], record.runs[row["run"]]
        versions = run["versions"]
        points.append(
            Point(
                label=f"{dtype} GEMM, n = {shape['M']}",
                device=device,
                dtype=dtype,
                intensity=gemm.intensity()(**shape, b=DTYPE_BYTES[dtype]),
                flop_per_s=gemm.flop(**shape) / row["time_s"],
                source=f"cuBLAS, {run['measured'][:10]}, PyTorch {versions['torch']}, CUDA {versions['cuda']}",
            )
        )
    return tuple(points)
