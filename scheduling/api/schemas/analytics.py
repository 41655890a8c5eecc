"""Answers of analytics, and who is idle now."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from rest_framework import serializers

from scheduling.analytics.answer import Answer, Series
from scheduling.analytics.idle import Holding


class MetricSchema(serializers.Serializer[Any]):
    """What is measured, in words."""

    name = serializers.CharField()
    title = serializers.CharField()
    sentence = serializers.CharField()
    unit = serializers.CharField()


class BucketSchema(serializers.Serializer[Any]):
    """One step of time; partial where the period or the present cuts it."""

    start = serializers.DateTimeField()
    end = serializers.DateTimeField()
    is_partial = serializers.BooleanField()


class SeriesSchema(serializers.Serializer[Any]):
    """One group: a value per bucket; null is no data. Coverage is 0 to 1."""

    key = serializers.CharField()
    name = serializers.CharField()
    values = serializers.ListField(child=serializers.FloatField(allow_null=True))
    total = serializers.FloatField(allow_null=True)
    coverage = serializers.ListField(child=serializers.FloatField(allow_null=True), allow_null=True)
    total_coverage = serializers.FloatField(allow_null=True)


class AnswerSchema(serializers.Serializer[Any]):
    """A question as it was understood, and its answer."""

    metric = MetricSchema()
    group_by = serializers.CharField()
    project = serializers.CharField(allow_null=True)
    start = serializers.DateTimeField()
    end = serializers.DateTimeField()
    step = serializers.CharField()
    time_zone = serializers.CharField()
    is_restricted = serializers.BooleanField()
    buckets = BucketSchema(many=True)
    series = SeriesSchema(many=True)
    whole = SeriesSchema()
    capacity = SeriesSchema(allow_null=True)


def answer_json(answer: Answer) -> dict[str, Any]:
    """An answer as `AnswerSchema` says."""
    asked, zone = answer.query, answer.query.zone
    return {
        "metric": {
            "name": asked.metric.name,
            "title": str(asked.metric.title),
            "sentence": str(asked.metric.sentence),
            "unit": str(asked.metric.unit),
        },
        "group_by": str(asked.group_by),
        "project": asked.project.name if asked.project else None,
        "start": _local(asked.since, zone),
        "end": _local(asked.until, zone),
        "step": asked.step,
        "time_zone": zone.key,
        "is_restricted": answer.is_restricted,
        "buckets": [
            {
                "start": _local(bucket.start, zone),
                "end": _local(bucket.end, zone),
                "is_partial": bucket.is_partial,
            }
            for bucket in answer.buckets
        ],
        "series": [_series(one) for one in answer.series],
        "whole": _series(answer.whole),
        "capacity": _series(answer.capacity) if answer.capacity else None,
    }


def _local(at: datetime, zone: ZoneInfo) -> str:
    return at.astimezone(zone).isoformat()


def _series(one: Series) -> dict[str, Any]:
    return {
        "key": one.key,
        "name": one.label,
        "values": one.values,
        "total": one.total,
        "coverage": one.coverage,
        "total_coverage": one.total_coverage,
    }


class HoldingSchema(serializers.Serializer[Any]):
    """Somebody who holds a GPU and does nothing. Without names outside one's own projects."""

    workload = serializers.UUIDField(allow_null=True)
    name = serializers.CharField(allow_null=True)
    project = serializers.CharField(allow_null=True)
    owner = serializers.CharField(allow_null=True)
    node = serializers.CharField()
    node_type = serializers.CharField()
    gpu_milli = serializers.IntegerField()
    idle_s = serializers.FloatField()
    gpu_memory_mib = serializers.FloatField(allow_null=True)
    cost = serializers.CharField(allow_null=True)


def holdings_json(holdings: Sequence[Holding], now: datetime) -> list[dict[str, Any]]:
    """Holdings as `HoldingSchema` says."""
    return [_holding(one, now) for one in holdings]


def _holding(one: Holding, now: datetime) -> dict[str, Any]:
    work = one.workload
    return {
        "workload": str(work.pk) if work else None,
        "name": work.name if work else None,
        "project": work.project.name if work else None,
        "owner": work.owner.username if work else None,
        "node": one.node,
        "node_type": one.node_type,
        "gpu_milli": one.gpu_milli,
        "idle_s": one.idle_s(now),
        "gpu_memory_mib": one.memory_mib,
        "cost": None if one.cost is None else str(one.cost),
    }
