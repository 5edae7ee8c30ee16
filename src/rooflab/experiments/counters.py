"""Main-memory bytes of one call, counted by the GPU through Nsight Compute; optional, as many clouds forbid it.

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

METRICS = {"dram__bytes_read.sum": "read_bytes", "dram__bytes_write.sum": "write_bytes"}
_SCALE = {"byte": 1, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9}


def dram_bytes(experiment: str, case: dict, version: str) -> dict:
    """Return {"read_bytes", "write_bytes", "kernels"} of one call, or {"reason"} why nothing was counted."""
    if shutil.which("ncu") is None:
        return {"reason": "no ncu on this machine"}
    command = ["ncu", "--csv", "--metrics", ",".join(METRICS), "--clock-control", "none", "--profile-from-start", "off"]
    command += [sys.executable, "-m", __name__, experiment, json.dumps(case), version]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    except subprocess.TimeoutExpired:
        return {"reason": "ncu took more than 180 s"}
    lines = done.stdout.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        said = [line for line in lines + done.stderr.splitlines() if "ERR" in line or "Error" in line]
        return {"reason": said[0].strip("= ") if said else "ncu printed no counters"}
    return read_csv("\n".join(lines[start:]))


def read_csv(text: str) -> dict:
    """Return the summed counters of ncu's table.

    >>> head = '"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"'
    >>> read_csv(head + '\\n"0","f","dram__bytes_read.sum","Mbyte","1,5.5"'.replace("1,5.5", "15.5"))
    {'read_bytes': 15500000.0, 'write_bytes': 0.0, 'kernels': 1}
    """
    total, kernels = dict.fromkeys(METRICS.values(), 0.0), set()
    for row in csv.DictReader(io.StringIO(text)):
        if name := METRICS.get(row["Metric Name"]):
            total[name] += float(row["Metric Value"].replace(",", "")) * _SCALE[row["Metric Unit"]]
            kernels.add(row["ID"])
    return total | {"kernels": len(kernels)}


def _once(experiment: str, case: dict, version: str) -> None:
    """Run one call between profiler marks."""
    import torch

    from .suite import EXPERIMENTS

    call = EXPERIMENTS[experiment].prepare(case, (version,))[version]
    for _ in range(3):
        call.run()
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    call.run()
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()


if __name__ == "__main__":
    _once(sys.argv[1], json.loads(sys.argv[2]), sys.argv[3])
