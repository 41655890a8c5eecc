"""Recorded cycles keep their scenario compressed: on a large cluster it is tens of MiB."""

from __future__ import annotations

import json
import zlib
from typing import Any, ClassVar

from django.db import migrations, models


def pack(apps: Any, schema_editor: Any) -> None:
    records = apps.get_model("scheduling", "CycleRecord")
    for pk in list(records.objects.values_list("pk", flat=True)):
        row = records.objects.only("scenario").get(pk=pk)
        packed = zlib.compress(json.dumps(row.scenario).encode(), level=1)
        records.objects.filter(pk=pk).update(packed_scenario=packed)


def unpack(apps: Any, schema_editor: Any) -> None:
    records = apps.get_model("scheduling", "CycleRecord")
    for pk in list(records.objects.values_list("pk", flat=True)):
        row = records.objects.only("packed_scenario").get(pk=pk)
        scenario = json.loads(zlib.decompress(row.packed_scenario))
        records.objects.filter(pk=pk).update(scenario=scenario)


class Migration(migrations.Migration):
    dependencies: ClassVar = [("scheduling", "0013_changes")]

    operations: ClassVar = [
        migrations.AddField("cyclerecord", "packed_scenario", models.BinaryField(default=b"")),
        migrations.AlterField("cyclerecord", "scenario", models.JSONField(default=dict)),
        migrations.RunPython(pack, unpack),
        migrations.RemoveField("cyclerecord", "scenario"),
        migrations.AlterField("cyclerecord", "packed_scenario", models.BinaryField()),
    ]
