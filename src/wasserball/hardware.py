"""What a figure was measured on, in words."""

import os
import platform
from pathlib import Path

import torch


def hardware_name(device: torch.device) -> str:
    """The GPU; or the CPU, as far as the system tells its name, and how many cores of it this process may use."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    name = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        name = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{name} ({cores} core{'' if cores == 1 else 's'})"
