"""On what something was measured: GPU, clocks, power, versions, source; never a host, a user or a serial number."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

PACKAGE = Path(__file__).parent


@functools.cache
def _nvml():
    """Return pynvml, or None where NVML cannot be used."""
    try:
        import pynvml

        pynvml.nvmlInit()
        return pynvml
    except Exception:  # no driver, no library, no permission: the record then says null
        return None


def _handle(nvml):
    """Return NVML's handle of the first GPU that CUDA sees: NVML itself numbers all of them, in an order of its own."""
    torch = sys.modules.get("torch")
    if torch and torch.cuda.is_initialized():
        with contextlib.suppress(nvml.NVMLError):  # a part of a GPU, by MIG, has no such name
            return nvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(0).uuid}")
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip()
    if first.startswith("GPU-"):
        return nvml.nvmlDeviceGetHandleByUUID(first)
    return nvml.nvmlDeviceGetHandleByIndex(int(first) if first.isdigit() else 0)


def _read(function) -> float | str | None:
    if nvml := _nvml():
        with contextlib.suppress(nvml.NVMLError):
            return function(nvml, _handle(nvml))
    return None


def observe() -> dict:
    """Return the SM and memory clock (Hz), the power (W) and the temperature (°C) of this moment, None where hidden."""
    return {
        "sm_clock_hz": _read(lambda nvml, gpu: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM) * 1e6),
        "memory_clock_hz": _read(lambda nvml, gpu: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM) * 1e6),
        "power_w": _read(lambda nvml, gpu: nvml.nvmlDeviceGetPowerUsage(gpu) / 1e3),
        "temperature_c": _read(lambda nvml, gpu: nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU)),
    }


def collect() -> dict:
    """Return what identifies a run: GPU, driver, power limit, versions, source, time; needs torch and a GPU."""
    import torch

    gpu = torch.cuda.get_device_properties(0)
    return {
        "gpu": gpu.name,
        "compute_capability": f"{gpu.major}.{gpu.minor}",
        "sms": gpu.multi_processor_count,
        "memory_bytes": gpu.total_memory,
        "l2_bytes": gpu.L2_cache_size,
        "driver": _read(lambda nvml, _: nvml.nvmlSystemGetDriverVersion()),
        "power_limit_w": _read(lambda nvml, handle: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1e3),
        "max_sm_clock_hz": _read(lambda nvml, h: nvml.nvmlDeviceGetMaxClockInfo(h, nvml.NVML_CLOCK_SM) * 1e6),
        "versions": versions(),
        "commit": commit(),
        "source": source_hash(),
        "measured": datetime.now(UTC).strftime("%Y-%m-%dT%H:%MZ"),
    }


def gpu_here() -> str:
    """Return one sentence that names the first GPU that CUDA sees, or says that there is none; needs no torch.

    >>> gpu_here().startswith(("GPU here: ", "No GPU here: "))
    True
    """
    name = _read(lambda nvml, gpu: nvml.nvmlDeviceGetName(gpu))
    if name is None:  # the library may be missing where the driver, with its command, is not
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=20)
            name = done.stdout.partition("\n")[0].strip() if done.returncode == 0 else None
    return f"GPU here: {name}." if name else "No GPU here: measurements are replayed from the book's records."


def versions() -> dict[str, str]:
    """Return the versions of Python, torch, CUDA, cuDNN, Triton, its assembler and this package."""
    import torch

    cudnn = torch.backends.cudnn.version()
    found = {"python": platform.python_version(), "torch": torch.__version__.split("+")[0], "cuda": torch.version.cuda}
    found["cudnn"] = f"{cudnn // 10000}.{cudnn // 100 % 100}.{cudnn % 100}" if cudnn else None
    for name in ("triton", "rooflab"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    with contextlib.suppress(ImportError, RuntimeError):  # no Triton, or none that can assemble
        from .kernels._triton import triton

        found["ptxas"] = triton.knobs.nvidia.ptxas.version
    return found


def commit() -> str | None:
    """Return ROOFLAB_COMMIT from the environment, else the commit of the checkout that this package runs from.

    A "+" says that the checkout had uncommitted changes; without a checkout it is None.
    """
    if named := os.environ.get("ROOFLAB_COMMIT"):
        return named

    def git(*words):
        return subprocess.run(["git", "-C", str(PACKAGE), *words], capture_output=True, text=True, timeout=10)

    try:
        found = git("rev-parse", "--short=12", "HEAD")
        if found.returncode == 0:
            return found.stdout.strip() + ("+" if git("status", "--porcelain").stdout else "")
    except (OSError, subprocess.TimeoutExpired):
        pass
    return None


def source_hash() -> str:
    """Return a hash of the package's Python files, which names the code where no git is at hand."""
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        digest.update(path.relative_to(PACKAGE).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]
