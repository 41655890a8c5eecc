"""Fixtures for all tests. The servers come from tests.servers, before this is read."""

from collections.abc import Iterator
from functools import cache

import pynvml
import pytest
from django.utils import timezone, translation


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs a GPU where there is none, and say so."""
    if item.get_closest_marker("gpu") and not has_gpu():
        pytest.skip("no NVIDIA device answers through NVML on this machine")


@pytest.fixture(autouse=True)
def nobodys_language_stays() -> Iterator[None]:
    """A request leaves its reader's language and zone active in the thread."""
    yield
    translation.deactivate()
    timezone.deactivate()


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
