"""How far a workload is with its idleness and its time limit, and by how much to put that off."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from scheduling import endings
from scheduling.idle_signals import Says, signals_of
from scheduling.models import Attempt, Phase, Workload
from scheduling.rules import rule_for
from scheduling.time_limits import Standing


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


class TimeLimitSchema(serializers.Serializer[Standing]):
    """How far it is with its time limit."""

    limit_s = serializers.IntegerField(
        source="limit.seconds", help_text="With what it was extended by."
    )
    is_own = serializers.BooleanField(
        source="limit.is_own", help_text="It was submitted with it; else it is its project's."
    )
    ran_s = serializers.FloatField(help_text="It has run for so long, all starts together.")
    left_s = serializers.FloatField()
    end_at = serializers.DateTimeField(
        allow_null=True, help_text="When it is ended if nobody extends it; null unless it runs."
    )
    warned_end_at = serializers.DateTimeField(
        allow_null=True, help_text="The end that it was warned of."
    )
    extensions_left = serializers.IntegerField(
        help_text="So often may those who are no managers still extend it."
    )


def time_limit_of(standing: Standing | None) -> dict[str, Any] | None:
    """As the API sends it; None without a limit."""
    return None if standing is None else dict(TimeLimitSchema(standing).data)


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
        may_lack_network=rule_for(workload).idle_may_lack_network,
        is_session=workload.is_session,
    )
    found: dict[str, Any] = IdlenessSchema(
        {
            "signals": signals,
            "end_at": endings.told_end(workload),
            "kept_until": attempt.idle_kept_until,
        }
    ).data
    return found
