"""CUDA C compiled at run time, with what a CUDA build of torch brings along: NVRTC, and the driver's own library.

No toolkit, no compiler and no header is needed on the user's machine.
"""

import ctypes
import hashlib
import os
import sys
from contextlib import nullcontext
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

THREADS = 128
"""In a block; the sources have the same number."""
WARPS = THREADS // 32


class Shape(ctypes.Structure):
    """The batch as the kernels see it: ``members`` blocks work on one sample, ``groups`` of them at a time."""

    _fields_ = [(name, ctypes.c_int) for name in ("batch", "channels", "height", "width", "chunk", "groups", "members")]


Argument = Tensor | int | float | Shape


def missing() -> str | None:
    """What there is not, in words; None where kernels can be compiled and run."""
    try:
        _compiler(), _driver()
    except OSError as error:
        return f"its libraries could not be loaded ({error})"
    return None


class Module:
    """One compiled source on one device."""

    def __init__(self, source: str, device: torch.device) -> None:
        self.device = device
        with torch.cuda.device(device):
            torch.cuda.current_stream()  # makes the context of this device
            code, self._module = _cached(source, torch.cuda.get_device_capability(device)), ctypes.c_void_p()
            _check(_driver().cuModuleLoadData(ctypes.byref(self._module), code))
        self.processors = torch.cuda.get_device_properties(device).multi_processor_count

    @cache  # noqa: B019 (modules live as long as the process)
    def _function(self, name: str) -> tuple[ctypes.c_void_p, int]:
        """A kernel, and how many of its blocks fit onto the device at once."""
        function, blocks = ctypes.c_void_p(), ctypes.c_int()
        _check(_driver().cuModuleGetFunction(ctypes.byref(function), self._module, name.encode()))
        _check(_driver().cuOccupancyMaxActiveBlocksPerMultiprocessor(ctypes.byref(blocks), function, THREADS, 0))
        return function, blocks.value * self.processors

    def resident(self, name: str) -> int:
        """How many blocks of a kernel fit onto the device at once."""
        return self._function(name)[1]

    def launch(self, name: str, blocks: int, arguments: list[Argument], *, together: bool = False) -> None:
        """Run a kernel on the current stream; ``together``: all of its blocks at once, as those that wait for others
        must."""
        values = [_as_c(argument) for argument in arguments]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        function, _ = self._function(name)
        stream = ctypes.c_void_p(torch.cuda.current_stream(self.device).cuda_stream)
        grid = (blocks, 1, 1, THREADS, 1, 1, 0, stream, pointers)
        with nullcontext() if torch.cuda.current_device() == self.device.index else torch.cuda.device(self.device):
            if together:
                _check(_driver().cuLaunchCooperativeKernel(function, *grid))
            else:
                _check(_driver().cuLaunchKernel(function, *grid, None))


def _as_c(value: Argument) -> ctypes.c_void_p | ctypes.c_int | ctypes.c_double | Shape:
    if isinstance(value, Tensor):
        assert value.is_cuda
        assert value.is_contiguous()
        return ctypes.c_void_p(value.data_ptr())
    if isinstance(value, Shape):
        return value
    return ctypes.c_int(value) if isinstance(value, int) else ctypes.c_double(value)


def _cached(source: str, capability: tuple[int, int]) -> bytes:
    """The machine code of a source, from the disk where it was compiled before."""
    key = hashlib.sha256(repr((source, capability, _version())).encode()).hexdigest()[:32]
    file = _cache_folder() / f"{key}.cubin"
    try:
        return file.read_bytes()
    except OSError:
        code = compile_source(source, capability)
    try:  # whole or not at all, whoever else is writing; a disk that cannot be written to is no reason to stop
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(f".{os.getpid()}")
        part.write_bytes(code)
        part.replace(file)
    except OSError:
        pass
    return code


def _cache_folder() -> Path:
    chosen = os.environ.get("WASSERBALL_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME")
    return Path(chosen) / "wasserball" if chosen else Path.home() / ".cache" / "wasserball"


def compile_source(source: str, capability: tuple[int, int]) -> bytes:
    """Machine code for a device of this capability; for one that is newer than the compiler, PTX for its driver."""
    nvrtc = _compiler()
    count = ctypes.c_int()
    _checked(nvrtc.nvrtcGetNumSupportedArchs(ctypes.byref(count)))
    known = (ctypes.c_int * count.value)()
    _checked(nvrtc.nvrtcGetSupportedArchs(known))
    number = 10 * capability[0] + capability[1]
    native = number in list(known)
    architecture = f"sm_{number}" if native else f"compute_{max(arch for arch in known if arch <= number)}"
    # Without contraction a·b + c has the bits that it has on a CPU.
    options = [b"--std=c++17", b"--fmad=false", f"--gpu-architecture={architecture}".encode()]
    program = ctypes.c_void_p()
    _checked(nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"wasserball.cu", 0, None, None))
    status = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    if status:
        log = _read(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program)
        raise RuntimeError(f"NVRTC could not compile a kernel for {architecture}:\n{log.decode(errors='replace')}")
    if native:
        code = _read(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program)
    else:
        code = _read(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX, program)
    _checked(nvrtc.nvrtcDestroyProgram(ctypes.byref(program)))
    return code


def _read(size: "ctypes._NamedFuncPointer", get: "ctypes._NamedFuncPointer", program: ctypes.c_void_p) -> bytes:
    length = ctypes.c_size_t()
    _checked(size(program, ctypes.byref(length)))
    buffer = ctypes.create_string_buffer(length.value)
    _checked(get(program, buffer))
    return buffer.raw


@cache
def _compiler() -> ctypes.CDLL:
    major = (torch.version.cuda or "").split(".")[0]
    windows = sys.platform == "win32"
    return _load([f"nvrtc64_{major}0_0.dll"] if windows else [f"libnvrtc.so.{major}", "libnvrtc.so"])


@cache
def _driver() -> ctypes.CDLL:
    return _load(["nvcuda.dll"] if sys.platform == "win32" else ["libcuda.so.1", "libcuda.so"])


def _load(names: list[str]) -> ctypes.CDLL:
    for name in names[:-1]:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return ctypes.CDLL(names[-1])


@cache
def _version() -> tuple[int, int]:
    major, minor = ctypes.c_int(), ctypes.c_int()
    _checked(_compiler().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
    return major.value, minor.value


def _checked(status: int) -> None:
    if status:
        raise RuntimeError(f"NVRTC failed with status {status}")


def _check(status: int) -> None:
    if status:
        text = ctypes.c_char_p()
        _driver().cuGetErrorString(status, ctypes.byref(text))
        raise RuntimeError(f"the CUDA driver failed with status {status}: {(text.value or b'unknown').decode()}")
