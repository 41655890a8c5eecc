"""A department's own bounds are what a plan depends on, too."""

from typing import ClassVar

from django.db import migrations

FORWARDS = """
CREATE TRIGGER note_department_quota AFTER INSERT OR UPDATE OR DELETE ON projects_departmentquota
    FOR EACH ROW EXECUTE FUNCTION scheduling_note_change('department_quota');
"""
BACKWARDS = "DROP TRIGGER note_department_quota ON projects_departmentquota;"


class Migration(migrations.Migration):
    dependencies: ClassVar = [
        ("scheduling", "0018_idle_ending"),
        ("projects", "0008_department_tree"),
    ]

    operations: ClassVar = [migrations.RunSQL(FORWARDS, BACKWARDS)]
