"""Devices under the names of NVIDIA's DCGM exporter, so that its dashboards work unchanged.

What a device cannot say has no series. Values outside what a sensor can mean, DCGM's sentinels
among them, were refused when they came in. Labels are the exporter's as far as Allot knows them;
which workload holds a device changes too often for a label, so that is `/metrics/workloads`.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from scheduling.models import Allocation, Device
from scheduling.prometheus.exposition import Family
from telemetry.metrics import Kind
from telemetry.newest import newest

# Metric of ours: name and kind and meaning there.
_DCGM = {
    "gpu_util_percent": ("GPU_UTIL", "gauge", "GPU utilisation, %"),
    "memory_util_percent": ("MEM_COPY_UTIL", "gauge", "Memory utilisation, %"),
    "encoder_util_percent": ("ENC_UTIL", "gauge", "Encoder utilisation, %"),
    "decoder_util_percent": ("DEC_UTIL", "gauge", "Decoder utilisation, %"),
    "memory_used_mib": ("FB_USED", "gauge", "Framebuffer memory used, MiB"),
    "sm_clock_mhz": ("SM_CLOCK", "gauge", "SM clock, MHz"),
    "memory_clock_mhz": ("MEM_CLOCK", "gauge", "Memory clock, MHz"),
    "temperature_c": ("GPU_TEMP", "gauge", "GPU temperature, C"),
    "memory_temperature_c": ("MEMORY_TEMP", "gauge", "Memory temperature, C"),
    "power_w": ("POWER_USAGE", "gauge", "Power draw, W"),
    "xid": ("XID_ERRORS", "gauge", "Value of the last XID error encountered"),
    "pcie_replays": ("PCIE_REPLAY_COUNTER", "counter", "PCIe retries"),
    "ecc_corrected": ("ECC_SBE_VOL_TOTAL", "counter", "Single-bit volatile ECC errors"),
    "ecc_uncorrected": ("ECC_DBE_VOL_TOTAL", "counter", "Double-bit volatile ECC errors"),
    "remapped_rows_corrected": (
        "CORRECTABLE_REMAPPED_ROWS",
        "counter",
        "Remapped rows for correctable errors",
    ),
    "remapped_rows_uncorrected": (
        "UNCORRECTABLE_REMAPPED_ROWS",
        "counter",
        "Remapped rows for uncorrectable errors",
    ),
}


def families(now: datetime) -> Iterator[Family]:
    """Everything about devices; two queries."""
    found = {
        metric: Family(f"DCGM_FI_DEV_{name}", kind, about)
        for metric, (name, kind, about) in _DCGM.items()
    }
    free = Family("DCGM_FI_DEV_FB_FREE", "gauge", "Framebuffer memory free, MiB")
    ratio = Family(
        "allot_gpu_allocated_ratio", "gauge", "Part of the device that workloads hold, 0 to 1"
    )
    values = newest(Kind.DEVICE, now)
    for device in Device.objects.select_related("node__node_type").order_by("node__name", "index"):
        labels = _labels(device)
        ratio.add(
            device.allocated_milli / 1000,
            {name: labels[name] for name in ("node", "gpu", "node_type")},
        )
        sample = values.get(device.uuid)
        if sample is None:
            continue
        for metric, family in found.items():
            family.add(sample.values[metric], labels)
        used = sample.values["memory_used_mib"]
        free.add(None if used is None else max(device.memory_mib - used, 0.0), labels)
    yield from found.values()
    yield free
    yield ratio


def _labels(device: Device) -> dict[str, str]:
    node = device.node
    return {
        "gpu": str(device.index),
        "UUID": device.uuid,
        "device": f"nvidia{device.index}",
        "modelName": device.model,
        "Hostname": node.name,
        "node": node.name,
        "node_type": node.node_type.name if node.node_type else "",
    }


def workload_families(now: datetime) -> Iterator[Family]:
    """One series per running workload: only for who asks for that address."""
    found = {
        "gpu_util_percent": Family(
            "allot_workload_gpu_util_percent", "gauge", "Use of what was granted, %"
        ),
        "gpu_memory_mib": Family("allot_workload_gpu_memory_mib", "gauge", "GPU memory held, MiB"),
        "cpu_cores": Family("allot_workload_cpu_cores", "gauge", "Cores kept busy"),
        "memory_mib": Family("allot_workload_memory_mib", "gauge", "Main memory held, MiB"),
    }
    values = newest(Kind.WORKLOAD, now)
    rows = Allocation.objects.filter(ended_at__isnull=True).select_related(
        "workload__project", "node__node_type"
    )
    for row in rows.order_by("pk"):
        sample = values.get(str(row.workload_id))
        if sample is None:
            continue
        labels = {
            "project": row.workload.project.name,
            "workload": row.workload.name,
            "workload_id": str(row.workload_id),
            "node": row.node.name,
            "node_type": row.node.node_type.name if row.node.node_type else "",
            "fraction": f"{row.gpu_milli / 1000:g}",
        }
        for metric, family in found.items():
            family.add(sample.values[metric], labels)
    yield from found.values()
