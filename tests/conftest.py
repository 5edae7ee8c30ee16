"""Shared by all tests."""

import os

import torch

# Before any test imports Triton, which decides then whether its kernels are compiled or interpreted.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# Answers that the exercise checks must reject: read by their tests, never imported as modules.
collect_ignore_glob = ["wrong/*"]
