"""Fixtures for all tests. The servers come from tests.servers, before this is read."""

from functools import cache

import pynvml
import pytest


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs a GPU where there is none, and say so."""
    if item.get_closest_marker("gpu") and not has_gpu():
        pytest.skip("no NVIDIA device answers through NVML on this machine")


@cache
def has_gpu() -> bool:
    """Ask NVML for devices."""
    try:
        pynvml.nvmlInit()
        has_devices = bool(pynvml.nvmlDeviceGetCount() > 0)
        pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return False
    return has_devices
