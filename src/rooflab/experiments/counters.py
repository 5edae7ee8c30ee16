"""What the GPU itself counts of a call, through Nsight Compute; optional, as many clouds forbid it.

The profiler empties the caches before each kernel. So what a kernel leaves in L2 for the next is not seen, and what it
has written but not yet sent to memory when it ends is not counted.
"""

from __future__ import annotations

import csv
import io
import json
import shutil
import subprocess
import sys
from collections.abc import Iterable

from ..records import RecordError

_TIME = {"nsecond": 1e-9, "usecond": 1e-6, "msecond": 1e-3, "second": 1.0, "ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
_BYTES = {"byte": 1.0, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9}
_SHARE = {"%": 0.01}
_SECTORS = {"sector": 32.0}
METRICS = {
    "gpu__time_duration.sum": ("time_s", _TIME),
    "dram__bytes_read.sum": ("read_bytes", _BYTES),
    "dram__bytes_write.sum": ("write_bytes", _BYTES),
    # Of the issue slots: each of an SM's four schedulers can start one warp instruction per clock.
    "sm__issue_active.avg.pct_of_peak_sustained_elapsed": ("issue_share", _SHARE),
    # Of the warps that an SM can hold.
    "sm__warps_active.avg.pct_of_peak_sustained_active": ("warp_share", _SHARE),
    "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_elapsed": ("tensor_share", _SHARE),
    # What L2 is read, and what arrives at the SMs: more, where one read of L2 serves several.
    "lts__t_sectors_op_read.sum": ("l2_read_bytes", _SECTORS),
    "l1tex__m_xbar2l1tex_read_sectors.sum": ("sm_read_bytes", _SECTORS),
}
MARK = "add_one_kernel"  # runs before each version, so that the table can be cut


def count(experiment: str, case: dict, versions: Iterable[str]) -> dict[str, list[dict] | dict]:
    """Return for each version its kernels in order, with METRICS each, or {"reason"} why nothing was counted."""
    versions = list(versions)
    if shutil.which("ncu") is None:
        return dict.fromkeys(versions, {"reason": "no ncu on this machine"})
    command = ["ncu", "--csv", "--metrics", ",".join(METRICS), "--clock-control", "none", "--profile-from-start", "off"]
    command += [sys.executable, "-m", __name__, experiment, json.dumps(case), *versions]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    except subprocess.TimeoutExpired:
        return dict.fromkeys(versions, {"reason": "ncu took more than 180 s"})
    lines = done.stdout.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        said = [line for line in lines + done.stderr.splitlines() if "ERR" in line or "Error" in line]
        return dict.fromkeys(versions, {"reason": said[0].strip("= ") if said else "ncu printed no counters"})
    try:
        found = read_csv("\n".join(lines[start:]))
    except (ValueError, KeyError, IndexError) as odd:  # a metric that this card does not have reads "n/a"
        return dict.fromkeys(versions, {"reason": f"ncu printed what is not a counter: {odd}"})
    if len(found) != len(versions):
        return dict.fromkeys(versions, {"reason": f"ncu saw {len(found)} of {len(versions)} versions"})
    return dict(zip(versions, found, strict=True))


def read_csv(text: str) -> list[list[dict]]:
    """Return the kernels of each version in ncu's table, a version after each mark.

    >>> head = '"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"'
    >>> read_csv(head + '\\n"0","add_one_kernel","x","byte","1"\\n"1","f","dram__bytes_read.sum","Mbyte","1,015.5"')
    [[{'kernel': 'f', 'read_bytes': 1015500000.0}]]
    """
    versions: list[list[dict]] = []
    last = None
    for row in csv.DictReader(io.StringIO(text)):
        if row["ID"] != last:
            last = row["ID"]
            if MARK in row["Kernel Name"]:
                versions.append([])
            else:
                versions[-1].append({"kernel": row["Kernel Name"].split("(")[0].split("<")[0].removeprefix("void ")})
        if MARK not in row["Kernel Name"] and row["Metric Name"] in METRICS:
            name, scale = METRICS[row["Metric Name"]]
            value = float(row["Metric Value"].replace(",", "")) * scale[row["Metric Unit"]]
            versions[-1][-1][name] = float(f"{value:.6g}")
    return versions


def dram_bytes(row: dict) -> float:
    """Return the main-memory bytes that were counted for a row; raise RecordError where nothing was counted."""
    return sum(kernel["read_bytes"] + kernel["write_bytes"] for kernel in _kernels(row))


def _kernels(row: dict) -> list[dict]:
    counted = row.get("counted", {"reason": "nobody asked for counters"})
    if not isinstance(counted, list):
        raise RecordError(f"{row['case']} {row['version']} has no counters: {counted['reason']}")
    return counted


MEMORY, ISSUE, BOTH, TENSOR = "memory", "instruction issue", "memory and Tensor Cores", "Tensor Cores"
LATENCY, UNKNOWN = "latency", "not explained"


def causes(row: dict, copy_bytes_per_s: float) -> list[tuple[dict, float, str]]:
    """Return (kernel, its share of a copy's bandwidth, what holds it) for each kernel that was counted.

    memory: within 15 % of a copy's bandwidth.
    instruction issue: the schedulers are busy for at least 0.6 of the time; the busiest kernels here reach 0.9.
    Tensor Cores: busy for at least 0.7 of the time.
    memory and Tensor Cores: both are needed, and their shares add up to 0.9 or more: they overlap in part, or not.
    latency: at most half of the warps, and no unit busy for 0.6 of the time.
    """
    found = []
    for kernel in _kernels(row):
        memory = (kernel["read_bytes"] + kernel["write_bytes"]) / kernel["time_s"] / copy_bytes_per_s
        issue, tensor = kernel["issue_share"], kernel["tensor_share"]
        if memory >= 1 / 1.15:
            cause = MEMORY
        elif issue >= 0.6:
            cause = ISSUE
        elif tensor >= 0.7:
            cause = TENSOR
        elif tensor >= 0.2 and memory + tensor >= 0.9:
            cause = BOTH
        elif kernel["warp_share"] <= 0.5 and max(memory, issue, tensor) < 0.6:
            cause = LATENCY
        else:
            cause = UNKNOWN
        found.append((kernel, memory, cause))
    return found


def _once(experiment: str, case: dict, versions: list[str]) -> None:
    """Run one call of each version between profiler marks."""
    import torch

    from ..kernels import streams
    from .suite import EXPERIMENTS

    mark = torch.zeros(1, device="cuda")
    for version in versions:
        call = EXPERIMENTS[experiment].prepare(case, (version,))[version]
        for _ in range(3):
            call.run()
        streams.add_one(mark)
        torch.cuda.synchronize()
        torch.cuda.profiler.start()
        streams.add_one(mark)
        call.run()
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()


if __name__ == "__main__":
    _once(sys.argv[1], json.loads(sys.argv[2]), sys.argv[3:])
