"""The CUDA sources on a CPU: compiled by the C++ compiler of the machine as one thread in one block a sample.

What a GPU adds, threads that share a sample, is not emulated; all arithmetic and control is.
"""

import ctypes
import hashlib
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from wasserball.kernels import cuda
from wasserball.kernels.cuda.nvrtc import Argument, Shape
from wasserball.threat import LocalCost

COMPILER = shutil.which("g++") or shutil.which("clang++")

BEFORE = r"""
#include <algorithm>
#include <cmath>
#include <cstring>
#define THREADS 1
#define __device__
#define __global__
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __shared__ static thread_local
using std::min; using std::exp; using std::log; using std::sqrt; using std::fabs;
struct Index { int x; };
static thread_local Index threadIdx = {0}, blockIdx = {0};
static inline void __syncthreads() {}
static inline void __syncwarp() {}
static inline void __threadfence() {}
static inline void atomicAdd(unsigned* where, unsigned what) { *where += what; }
template <class T> static inline T __shfl_down_sync(unsigned, T value, int) { return value; }
static inline unsigned __ballot_sync(unsigned, bool vote) { return vote; }
static inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
static inline double __longlong_as_double(long long bits) { double x; std::memcpy(&x, &bits, 8); return x; }
static inline long long __double_as_longlong(double x) { long long bits; std::memcpy(&bits, &x, 8); return bits; }
extern "C" void enter_block(int block) { blockIdx.x = block; }
"""


class Emulated:
    """As :class:`wasserball.kernels.cuda.nvrtc.Module`, for tensors on the CPU."""

    def __init__(self, source: str) -> None:
        text = BEFORE + source
        folder = Path(tempfile.gettempdir()) / "wasserball-emulator"
        folder.mkdir(exist_ok=True)
        library = folder / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.so"
        if not library.exists():
            assert COMPILER is not None
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                code, built = Path(scratch) / "kernel.cpp", Path(scratch) / "kernel.so"
                code.write_text(text, encoding="utf-8")
                flags = ["-std=c++17", "-O1", "-ffp-contract=off", "-w", "-shared", "-fPIC"]
                subprocess.run([COMPILER, *flags, str(code), "-o", str(built)], check=True)
                built.replace(library)
        self.library = ctypes.CDLL(str(library))

    def resident(self, name: str) -> int:
        return 1

    def launch(self, name: str, blocks: int, arguments: list[Argument], *, together: bool = False) -> None:
        assert not together
        if name.startswith("blend"):  # a thread for each row, so that blocks of one thread are as many
            shape = arguments[0]
            assert isinstance(shape, Shape)
            blocks = shape.batch * shape.channels * shape.height * shape.width
        for block in range(blocks):
            self.library.enter_block(block)
            getattr(self.library, name)(*(_as_c(argument) for argument in arguments))


def _as_c(value: Argument) -> object:
    if isinstance(value, Tensor):
        assert value.is_contiguous()
        return ctypes.c_void_p(value.data_ptr())
    if isinstance(value, Shape):
        return value
    return ctypes.c_int(value) if isinstance(value, int) else ctypes.c_double(value)


@cache
def emulated_module(source: str, cost: LocalCost, dtype: torch.dtype, device: torch.device) -> Emulated:
    """Stands in for ``wasserball.kernels.cuda._module``."""
    return Emulated(cuda.specialised(source, cost, dtype))
