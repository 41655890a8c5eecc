"""Kept sums have totals now: make them anew."""

from django.db import migrations

FORWARDS = """
DELETE FROM scheduling_usageday;
DELETE FROM scheduling_usagemonth;
DELETE FROM scheduling_usagevector;
DELETE FROM scheduling_usagemonthvector;
"""


class Migration(migrations.Migration):
    dependencies = [("scheduling", "0004_planner_status")]

    operations = [migrations.RunSQL(FORWARDS, migrations.RunSQL.noop)]
