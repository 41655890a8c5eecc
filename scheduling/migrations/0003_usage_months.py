"""Sums of past months by hour, for charts over long periods."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("scheduling", "0002_history")]

    operations = [
        migrations.CreateModel(
            name="UsageMonth",
            fields=[
                ("month", models.DateField(primary_key=True, serialize=False)),
                ("computed_at", models.DateTimeField()),
            ],
        ),
        migrations.CreateModel(
            name="UsageMonthVector",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "scope",
                        "measure",
                        "month",
                        "project_id",
                        "key",
                        blank=True,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("scope", models.SmallIntegerField()),
                ("measure", models.SmallIntegerField()),
                ("month", models.DateField()),
                ("project_id", models.IntegerField()),
                ("key", models.CharField(max_length=100)),
                ("values", models.BinaryField()),
            ],
        ),
        # Compressing numbers that hardly repeat costs more time than it saves room.
        migrations.RunSQL(
            "ALTER TABLE scheduling_usagemonthvector ALTER COLUMN values SET STORAGE EXTERNAL",
            migrations.RunSQL.noop,
        ),
    ]
