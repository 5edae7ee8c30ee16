"""The book's scenarios, one function a slider page."""

from __future__ import annotations

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
        points=gemm_points("h200-sxm"),
        x_range=(0.1, 3e4),
    )


def gemm_points(device: str) -> tuple[Point, ...]:
    """Return the recorded matrix products of `device` at the intensities that the ledger gives their shapes."""
    record = records.load(device, "gemm")
    gemm = ledger.WORKLOADS["gemm"]
    points = []
    for row in record.rows:
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
