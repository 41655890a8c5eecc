"""The real pynvml over a fake `libnvidia-ml`: what a device lacks costs no other value."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings

SOURCE = Path(__file__).parent / "nvml" / "fake.c"

PROGRAM = """
import json, pathlib, os, sys
from dataclasses import asdict
from telemetry.nvml import NvmlReader
reader = NvmlReader()
def look():
    found = {}
    for uuid in ("GPU-0", "GPU-1", "GPU-2"):
        reading = reader.read(uuid)
        found[uuid] = asdict(reading) if reading else None
    return found
before = look()
pathlib.Path(os.environ["FAKE_NVML_FAILED"]).touch()
after = look()
pathlib.Path(os.environ["FAKE_NVML_FAILED"]).unlink()
json.dump([before, after, look()], sys.stdout)
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    assert compiler, "a C compiler builds the fake library: install gcc"
    folder = tmp_path_factory.mktemp("nvml")
    command = [compiler, "-shared", "-fPIC", "-Wall", "-Werror", "-o"]
    subprocess.run([*command, folder / "libnvidia-ml.so.1", SOURCE], check=True)
    return folder


@pytest.fixture(scope="module")
def looks(library: Path) -> list[dict[str, Any]]:
    """Before, while and after the first device is lost."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=settings.BASE_DIR,
        env={
            **os.environ,
            "LD_LIBRARY_PATH": str(library),
            "FAKE_NVML_FAILED": str(library / "failed"),
        },
        check=True,
        capture_output=True,
        text=True,
    )
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def test_a_device_that_answers_everything(looks: list[dict[str, Any]]) -> None:
    assert looks[0]["GPU-0"] == {
        "values": {
            "gpu_util_percent": 70.0,
            "memory_util_percent": 30.0,
            "memory_used_mib": 4096.0,
            "power_w": 61.5,
            "temperature_c": 55.0,
            "sm_clock_mhz": 1590.0,
            "memory_clock_mhz": 5000.0,
            "encoder_util_percent": 5.0,
            "decoder_util_percent": 6.0,
            "memory_temperature_c": 66.0,
            "throttled_percent": 100.0,
            "pcie_rx_bytes_per_s": 204_800.0,
            "pcie_tx_bytes_per_s": 102_400.0,
            "pcie_replays": 3.0,
            "ecc_corrected": 12.0,
            "ecc_uncorrected": 1.0,
            "remapped_rows_corrected": 2.0,
            "remapped_rows_uncorrected": 1.0,
            "xid": 79.0,
        },
        "processes": [{"pid": 4711, "memory_mib": 1024.0}],
        "util_percent_by_pid": {"4711": 35.0},
    }


def test_what_a_device_lacks_is_no_data_and_the_rest_is_there(
    looks: list[dict[str, Any]],
) -> None:
    reading = looks[0]["GPU-1"]
    lacking = {name for name, value in reading["values"].items() if value is None}
    assert lacking == {
        "memory_temperature_c",
        "pcie_rx_bytes_per_s",
        "pcie_tx_bytes_per_s",
        "pcie_replays",
        "remapped_rows_corrected",
        "remapped_rows_uncorrected",
        "xid",
    }
    assert reading["values"]["gpu_util_percent"] == 71.0
    assert reading["values"]["throttled_percent"] == 0.0, "a power limit reached is no throttling"
    assert reading["processes"] is None
    assert reading["util_percent_by_pid"] is None


def test_a_device_that_fails_has_no_data_and_no_zero(looks: list[dict[str, Any]]) -> None:
    failed = looks[1]["GPU-0"]
    assert {name for name, value in failed["values"].items() if value is not None} == {"xid"}
    assert failed["processes"] is None
    assert looks[1]["GPU-1"]["values"]["gpu_util_percent"] == 71.0


def test_it_is_read_again_when_it_is_back(looks: list[dict[str, Any]]) -> None:
    assert looks[2]["GPU-0"]["values"]["gpu_util_percent"] == 70.0
    assert looks[2]["GPU-0"]["values"]["xid"] == 79.0, "the last one stays until another comes"


def test_an_unknown_device_has_no_reading(looks: list[dict[str, Any]]) -> None:
    assert looks[0]["GPU-2"] is None
