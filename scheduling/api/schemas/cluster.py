"""Node types and nodes."""

from __future__ import annotations

from collections.abc import Mapping

from rest_framework import serializers

from projects.models import NodeType
from scheduling.capacity import Supply
from scheduling.models import Device, Node


class NodeTypeSchema(serializers.ModelSerializer[NodeType]):
    """A kind of node: what there is, what is free now, what it costs. Prices are per hour."""

    num_nodes = serializers.SerializerMethodField()
    is_simulated = serializers.SerializerMethodField()
    total_gpu_milli = serializers.SerializerMethodField()
    free_gpu_milli = serializers.SerializerMethodField()
    most_free_fraction_gpu_milli = serializers.SerializerMethodField()
    most_free_devices = serializers.SerializerMethodField()
    total_cpu_milli = serializers.SerializerMethodField()
    free_cpu_milli = serializers.SerializerMethodField()
    free_memory_mib = serializers.SerializerMethodField()

    class Meta:
        model = NodeType
        fields = (
            "name",
            "title",
            "gpu_model",
            "gpu_memory_mib",
            "num_nodes",
            "is_simulated",
            "total_gpu_milli",
            "free_gpu_milli",
            "most_free_fraction_gpu_milli",
            "most_free_devices",
            "total_cpu_milli",
            "free_cpu_milli",
            "free_memory_mib",
            "min_runtime_s",
            "gpu_price_per_hour",
            "cpu_price_per_hour",
            "memory_price_per_hour",
        )

    def _supply(self, node_type: NodeType) -> Supply:
        found: Mapping[int, Supply] = self.context["supplies"]
        return found[node_type.pk]

    def get_num_nodes(self, node_type: NodeType) -> int:
        """Registered ones."""
        return len(self._supply(node_type).nodes)

    def get_is_simulated(self, node_type: NodeType) -> bool:
        """Whether devices are declared, not found."""
        return self._supply(node_type).is_simulated

    def get_total_gpu_milli(self, node_type: NodeType) -> int:
        """Of all its nodes."""
        return self._supply(node_type).total_gpu_milli

    def get_free_gpu_milli(self, node_type: NodeType) -> int:
        """Of ready nodes."""
        return self._supply(node_type).free_gpu_milli

    def get_most_free_fraction_gpu_milli(self, node_type: NodeType) -> int:
        """The largest free part of one GPU."""
        return self._supply(node_type).most_free_fraction_milli

    def get_most_free_devices(self, node_type: NodeType) -> int:
        """The most wholly free GPUs on one node."""
        return self._supply(node_type).most_free_devices

    def get_total_cpu_milli(self, node_type: NodeType) -> int:
        """Of all its nodes."""
        return self._supply(node_type).total_cpu_milli

    def get_free_cpu_milli(self, node_type: NodeType) -> int:
        """Of ready nodes."""
        return self._supply(node_type).free_cpu_milli

    def get_free_memory_mib(self, node_type: NodeType) -> int:
        """Of ready nodes."""
        return self._supply(node_type).free_memory_mib


class DeviceSchema(serializers.ModelSerializer[Device]):
    """One GPU."""

    allocated_gpu_milli = serializers.IntegerField(source="allocated_milli")

    class Meta:
        model = Device
        fields = ("uuid", "index", "model", "memory_mib", "allocated_gpu_milli", "is_healthy")


class NodeSchema(serializers.ModelSerializer[Node]):
    """A machine, real or simulated."""

    zone = serializers.CharField(source="zone.name")
    node_type = serializers.CharField(source="node_type.name", allow_null=True, default=None)
    devices = DeviceSchema(many=True)

    class Meta:
        model = Node
        fields = (
            "name",
            "zone",
            "node_type",
            "state",
            "cordon",
            "cordoned_at",
            "cpu_milli",
            "memory_mib",
            "devices",
            "is_simulated",
            "is_isolated",
            "isolation_note",
            "fraction_mechanism",
            "fraction_note",
            "shares_gpu_time",
            "swap_mechanism",
            "swap_note",
            "driver",
            "last_report_at",
        )
