"""The audit trail is append-only in the database itself, whatever code tries."""

from django.db import migrations

FORWARDS = """
CREATE FUNCTION projects_audit_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the audit trail is append-only';
END $$;
CREATE TRIGGER audit_append_only BEFORE UPDATE OR DELETE ON projects_auditentry
    FOR EACH ROW EXECUTE FUNCTION projects_audit_append_only();
"""
BACKWARDS = """
DROP TRIGGER audit_append_only ON projects_auditentry;
DROP FUNCTION projects_audit_append_only();
"""


class Migration(migrations.Migration):
    dependencies = [("projects", "0001_initial")]

    operations = [migrations.RunSQL(FORWARDS, BACKWARDS)]
