"""Triton made ready for this machine, and the checks that all wrappers share. It holds no kernel."""

import os
from pathlib import Path

from . import KernelError

try:
    import torch

    # Before Triton is imported: it decides then whether its own functions are compiled or interpreted.
    if not torch.cuda.is_available():
        os.environ.setdefault("TRITON_INTERPRET", "1")
    import triton
    import triton.language as tl
    from triton.experimental import gluon
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.language.nvidia import hopper
    from triton.runtime.interpreter import InterpretedFunction, InterpreterBuilder, TensorHandle
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(f"{missing}; the kernels need torch and triton: pip install 'rooflab[gpu]'") from None

INTERPRETED = triton.knobs.runtime.interpret
if INTERPRETED and not isinstance(tl.sum, InterpretedFunction):
    late = "triton was imported before its interpreter was chosen"
    raise KernelError(f"{late}: import this module before triton and torch._dynamo, or set TRITON_INTERPRET=1")


def _repair_bf16(cast, dot):
    """Make the interpreter's bf16 that of a GPU: Triton 3.7 truncates to bf16, and multiplies bit patterns."""

    def cast_impl(self, src, dst_type):
        if (src.dtype.scalar, dst_type.scalar) == (tl.float32, tl.bfloat16):
            rounded = torch.tensor(src.data).to(torch.bfloat16)
            return TensorHandle(rounded.view(torch.uint16).numpy(), tl.bfloat16)
        return cast(self, src, dst_type)

    def create_dot(self, a, b, d, *options):
        a, b = (cast(self, each, tl.float32) if each.dtype.scalar == tl.bfloat16 else each for each in (a, b))
        return dot(self, a, b, d, *options)

    InterpreterBuilder.cast_impl, InterpreterBuilder.create_dot = cast_impl, create_dot


if INTERPRETED:
    _repair_bf16(InterpreterBuilder.cast_impl, InterpreterBuilder.create_dot)

# The assembler, which makes machine code of PTX. torch.compile points Triton at the one that some of PyTorch's wheels
# bring, and leaves it so: one kernel would have another speed after it than before (section 5). So it is settled here,
# unless you named another; PyTorch's may be torch.compile's choice.
PTXAS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas"
TORCH_PTXAS = Path(torch.__file__).parent / "bin" / "ptxas"
if PTXAS.exists() and Path(os.environ.get("TRITON_PTXAS_PATH", TORCH_PTXAS)).is_relative_to(TORCH_PTXAS.parents[1]):
    os.environ["TRITON_PTXAS_PATH"] = str(PTXAS)

DTYPES = (torch.float32, torch.bfloat16, torch.float16)

__all__ = ["DTYPES", "INTERPRETED", "KernelError", "output", "reachable", "require", "same_shape", "sm_count"]
__all__ += ["gl", "gluon", "hopper", "tl", "torch", "triton"]


def sm_count(device) -> int:
    """Return the number of streaming multiprocessors; the interpreter has 4, so that its programs loop too."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4


def reachable(tensor) -> bool:
    """Return whether a kernel that runs now can read the tensor's memory."""
    return INTERPRETED or (tensor.is_cuda and tensor.device.index == torch.cuda.current_device())


def require(dtypes=DTYPES, dims: int | None = None, **tensors) -> None:
    """Raise KernelError unless all tensors are contiguous, not empty, reachable, and of one dtype among `dtypes`."""
    first, model = next(iter(tensors.items()))
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise KernelError(f"{name} is a {type(tensor).__name__}; give a torch.Tensor")
        if tensor.dtype not in dtypes:
            names = ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
            raise KernelError(f"{name} is {tensor.dtype}; convert it to one of {names}")
        if (tensor.dtype, tensor.device) != (model.dtype, model.device):
            got, want = (f"{each.dtype} on {each.device}" for each in (tensor, model))
            raise KernelError(f"{name} is {got} but {first} is {want}; convert one with .to()")
        if dims is not None and tensor.dim() != dims:
            raise KernelError(f"{name} has shape {tuple(tensor.shape)}; reshape it to {dims} dimensions")
        if tensor.numel() == 0:
            raise KernelError(f"{name} has shape {tuple(tensor.shape)}; give at least one element")
        if not tensor.is_contiguous():
            raise KernelError(f"{name} has strides {tensor.stride()}; pass {name}.contiguous()")
        if not reachable(tensor):
            raise KernelError(f"{name} is on {tensor.device}; move it to the current GPU, or set TRITON_INTERPRET=1")


def same_shape(**tensors) -> None:
    """Raise KernelError unless all tensors have one shape."""
    (first, model), *others = tensors.items()
    for name, tensor in others:
        if tensor.shape != model.shape:
            raise KernelError(f"{name} has shape {tuple(tensor.shape)}; it needs {first}'s, {tuple(model.shape)}")


def output(out, like, shape=None):
    """Return `out`, checked, or a new tensor of `like`'s dtype and device."""
    shape = like.shape if shape is None else torch.Size(shape)
    if out is None:
        return torch.empty(shape, dtype=like.dtype, device=like.device)
    require(dtypes=(like.dtype,), out=out)
    if out.shape != shape or out.device != like.device:
        raise KernelError(f"out is {tuple(out.shape)} on {out.device}; it needs {tuple(shape)} on {like.device}")
    return out
