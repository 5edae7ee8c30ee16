"""The book's scenarios, one function a slider page."""

from __future__ import annotations

from .. import ledger, records
from ..units import DTYPE_BYTES
from .scenario import Dot, Point, Scenario, Slider, powers_of_two


def roofline_scenario() -> Scenario:
    """Return section 1's page: six workloads, a size n, and a batch B that moves a weight matrix to the right."""
    tile = {"b": "dtype", "B_M": 128, "B_N": 128}
    return Scenario(
        id="roofline",
        title="Workloads on a roofline",
        sliders=(
            Slider("n", "size n", powers_of_two(64, 32768), 4096),
            Slider("B", "batch B", powers_of_two(1, 4096), 1),
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
    names = {"torch": "PyTorch", "triton": "Triton", "cuda": "CUDA"}
    versions = ", ".join(f"{names[name]} {version}" for name, version in record["versions"].items())
    intensity = ledger.WORKLOADS["gemm"].intensity()
    return tuple(
        Point(
            label=f"{row['dtype']} GEMM {row['M']} × {row['N']} × {row['K']}",
            device=device,
            dtype=row["dtype"],
            intensity=intensity(M=row["M"], N=row["N"], K=row["K"], b=DTYPE_BYTES[row["dtype"]]),
            flop_per_s=row["flop_per_s"],
            source=f"cuBLAS, random operands, {record['date']}, {versions}",
        )
        for row in record["rows"]
    )
