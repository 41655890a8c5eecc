"""What ended on a day is found without reading everything that ever ended."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("scheduling", "0005_usage_anew")]

    operations = [
        migrations.AddIndex("attempt", models.Index(fields=["ended_at"], name="attempt_end")),
        migrations.AddIndex("wait", models.Index(fields=["ended_at"], name="wait_end")),
        migrations.AddIndex("workload", models.Index(fields=["ended_at"], name="workload_end")),
        # Kept days lack what ended in them: they are made anew.
        migrations.RunSQL(
            "DELETE FROM scheduling_usageday; DELETE FROM scheduling_usagemonth;"
            " DELETE FROM scheduling_usagevector; DELETE FROM scheduling_usagemonthvector",
            migrations.RunSQL.noop,
        ),
    ]
