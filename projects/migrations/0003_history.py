"""History of prices and quotas, written by triggers: whatever path changes them is recorded.

What was there before this migration counts from the beginning (prices) or from the project's
creation (quotas). Rows are only ever added.
"""

import django.db.models.deletion
from django.db import migrations, models

FORWARDS = """
INSERT INTO projects_pricechange (node_type_id, valid_from, gpu_price_per_hour,
    cpu_price_per_hour, memory_price_per_hour)
SELECT id, '2000-01-01 00:00+00', gpu_price_per_hour, cpu_price_per_hour, memory_price_per_hour
FROM projects_nodetype;

INSERT INTO projects_quotachange (project_id, node_type_id, valid_from, gpu_milli)
SELECT project_id, node_type_id, created_at, quota_milli
FROM projects_gpuquota JOIN projects_project ON projects_project.id = project_id;

INSERT INTO projects_quotachange (project_id, valid_from, cpu_milli, memory_mib)
SELECT id, created_at, cpu_quota_milli, memory_quota_mib FROM projects_project
WHERE cpu_quota_milli IS NOT NULL OR memory_quota_mib IS NOT NULL;

CREATE FUNCTION projects_note_price() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO projects_pricechange (node_type_id, valid_from, gpu_price_per_hour,
        cpu_price_per_hour, memory_price_per_hour)
    VALUES (NEW.id, CASE WHEN TG_OP = 'INSERT' THEN '2000-01-01 00:00+00' ELSE clock_timestamp() END,
        NEW.gpu_price_per_hour, NEW.cpu_price_per_hour, NEW.memory_price_per_hour);
    RETURN NULL;
END $$;
CREATE TRIGGER note_first_price AFTER INSERT ON projects_nodetype
    FOR EACH ROW EXECUTE FUNCTION projects_note_price();
CREATE TRIGGER note_price AFTER UPDATE ON projects_nodetype FOR EACH ROW
    WHEN ((OLD.gpu_price_per_hour, OLD.cpu_price_per_hour, OLD.memory_price_per_hour)
        IS DISTINCT FROM
        (NEW.gpu_price_per_hour, NEW.cpu_price_per_hour, NEW.memory_price_per_hour))
    EXECUTE FUNCTION projects_note_price();

CREATE FUNCTION projects_note_gpu_quota() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'INSERT' THEN
        INSERT INTO projects_quotachange (project_id, node_type_id, valid_from, gpu_milli)
        VALUES (OLD.project_id, OLD.node_type_id, clock_timestamp(), 0);
    END IF;
    IF TG_OP <> 'DELETE' THEN
        INSERT INTO projects_quotachange (project_id, node_type_id, valid_from, gpu_milli)
        VALUES (NEW.project_id, NEW.node_type_id, clock_timestamp(), NEW.quota_milli);
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER note_gpu_quota AFTER INSERT OR DELETE ON projects_gpuquota
    FOR EACH ROW EXECUTE FUNCTION projects_note_gpu_quota();
CREATE TRIGGER note_new_gpu_quota AFTER UPDATE ON projects_gpuquota FOR EACH ROW
    WHEN ((OLD.project_id, OLD.node_type_id, OLD.quota_milli)
        IS DISTINCT FROM (NEW.project_id, NEW.node_type_id, NEW.quota_milli))
    EXECUTE FUNCTION projects_note_gpu_quota();

CREATE FUNCTION projects_note_project_quota() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO projects_quotachange (project_id, valid_from, cpu_milli, memory_mib)
    VALUES (NEW.id, clock_timestamp(), NEW.cpu_quota_milli, NEW.memory_quota_mib);
    RETURN NULL;
END $$;
CREATE TRIGGER note_first_project_quota AFTER INSERT ON projects_project FOR EACH ROW
    WHEN (NEW.cpu_quota_milli IS NOT NULL OR NEW.memory_quota_mib IS NOT NULL)
    EXECUTE FUNCTION projects_note_project_quota();
CREATE TRIGGER note_project_quota AFTER UPDATE ON projects_project FOR EACH ROW
    WHEN ((OLD.cpu_quota_milli, OLD.memory_quota_mib)
        IS DISTINCT FROM (NEW.cpu_quota_milli, NEW.memory_quota_mib))
    EXECUTE FUNCTION projects_note_project_quota();
"""

BACKWARDS = """
DROP TRIGGER note_first_price ON projects_nodetype;
DROP TRIGGER note_price ON projects_nodetype;
DROP TRIGGER note_gpu_quota ON projects_gpuquota;
DROP TRIGGER note_new_gpu_quota ON projects_gpuquota;
DROP TRIGGER note_first_project_quota ON projects_project;
DROP TRIGGER note_project_quota ON projects_project;
DROP FUNCTION projects_note_price();
DROP FUNCTION projects_note_gpu_quota();
DROP FUNCTION projects_note_project_quota();
"""


def _plain(to):
    """A reference without a constraint: history outlives what it tells of."""
    return models.ForeignKey(
        db_constraint=False,
        on_delete=django.db.models.deletion.DO_NOTHING,
        related_name="+",
        to=to,
    )


class Migration(migrations.Migration):
    dependencies = [("projects", "0002_audit_append_only")]

    operations = [
        migrations.CreateModel(
            name="PriceChange",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("node_type", _plain("projects.nodetype")),
                ("valid_from", models.DateTimeField()),
                ("gpu_price_per_hour", models.DecimalField(decimal_places=2, max_digits=10)),
                ("cpu_price_per_hour", models.DecimalField(decimal_places=4, max_digits=10)),
                ("memory_price_per_hour", models.DecimalField(decimal_places=4, max_digits=10)),
            ],
            options={
                "ordering": ("valid_from", "id"),
                "verbose_name": "change of price",
                "verbose_name_plural": "changes of price",
            },
        ),
        migrations.CreateModel(
            name="QuotaChange",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("project", _plain("projects.project")),
                (
                    "node_type",
                    models.ForeignKey(
                        db_constraint=False,
                        null=True,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="+",
                        to="projects.nodetype",
                    ),
                ),
                ("valid_from", models.DateTimeField()),
                ("gpu_milli", models.PositiveIntegerField(null=True)),
                ("cpu_milli", models.PositiveIntegerField(null=True)),
                ("memory_mib", models.PositiveIntegerField(null=True)),
            ],
            options={
                "ordering": ("valid_from", "id"),
                "verbose_name": "change of quota",
                "verbose_name_plural": "changes of quota",
            },
        ),
        migrations.RunSQL(FORWARDS, BACKWARDS),
    ]
