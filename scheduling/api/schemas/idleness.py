"""How far a workload is with its idleness, and by how much to put its end off."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from scheduling import idle_endings
from scheduling.idle_signals import Says, signals_of
from scheduling.models import Attempt, Phase, Workload


class SignalSchema(serializers.Serializer[Any]):
    """What one signal of idleness says; `left_out` is missing, and the others are enough."""

    name = serializers.CharField()
    says = serializers.ChoiceField(choices=[str(each) for each in Says])
    since = serializers.DateTimeField(allow_null=True, help_text="Quiet since then.")


class IdlenessSchema(serializers.Serializer[dict[str, Any]]):
    """How far it is with its idleness; the rule is its project's (`/projects/{name}/idle-rule`)."""

    signals = SignalSchema(many=True)
    end_at = serializers.DateTimeField(
        allow_null=True, help_text="Its end for idling, once it was warned of that."
    )
    kept_until = serializers.DateTimeField(allow_null=True, help_text="Extended until then.")


class ExtendSchema(serializers.Serializer[Any]):
    """By how much to extend."""

    extend_s = serializers.IntegerField(
        min_value=900, help_text="From now; the project's rule says how much is allowed."
    )


def idleness_of(workload: Workload) -> dict[str, Any] | None:
    """A workload's idleness as the API sends it; None where it does not run."""
    attempt: Attempt | None = workload.current
    if attempt is None or workload.phase != Phase.RUNNING:
        return None
    signals = signals_of(
        attempt.idle_signals,
        may_lack_network=workload.project.idle_may_lack_network,
        is_session=workload.is_session,
    )
    found: dict[str, Any] = IdlenessSchema(
        {
            "signals": signals,
            "end_at": idle_endings.told_end(workload),
            "kept_until": attempt.idle_kept_until,
        }
    ).data
    return found
