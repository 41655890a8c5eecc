"""Months' sums stay in their rows: to fetch each from elsewhere took longer than all the rest."""

from typing import ClassVar

from django.db import migrations

# Up to a page; what a month has of events is longer and goes on lying elsewhere.
_IN_PLACE = "ALTER TABLE scheduling_usagemonthvector SET (toast_tuple_target = 8160)"
_ELSEWHERE = "ALTER TABLE scheduling_usagemonthvector RESET (toast_tuple_target)"
_WRITE_AGAIN = """
CREATE TEMPORARY TABLE usage_months_before ON COMMIT DROP AS
    SELECT * FROM scheduling_usagemonthvector;
TRUNCATE scheduling_usagemonthvector;
INSERT INTO scheduling_usagemonthvector (scope, measure, month, project_id, key, values)
    SELECT scope, measure, month, project_id, key, values FROM usage_months_before
    ORDER BY scope, measure, month, project_id, key;
DROP TABLE usage_months_before;
"""


class Migration(migrations.Migration):
    dependencies: ClassVar = [("scheduling", "0014_packed_cycles")]

    operations: ClassVar = [
        migrations.RunSQL(_IN_PLACE, _ELSEWHERE),
        migrations.RunSQL(_WRITE_AGAIN, migrations.RunSQL.noop),
    ]
