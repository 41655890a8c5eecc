"""Workloads: list, look at, submit, stop, start again, save."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from django.db.models import Q, QuerySet
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.decorators import action
from rest_framework.generics import get_object_or_404
from rest_framework.request import Request
from rest_framework.response import Response

from projects.models import User, WorkloadKind
from scheduling import services, time_limits
from scheduling.api import requests
from scheduling.api.base import FIELDS, ApiViewSet
from scheduling.api.idle_rules import extension_of
from scheduling.api.problems import FieldError, Problem, ProblemError, wrong_fields
from scheduling.api.schemas.history import (
    AttemptSchema,
    CheckpointSchema,
    EventSchema,
    WaitSchema,
)
from scheduling.api.schemas.idleness import ExtendSchema
from scheduling.api.schemas.problems import BODY_PROBLEMS, problems_of
from scheduling.api.schemas.workloads import NewWorkloadSchema, Rights, WorkloadSchema
from scheduling.forms import WorkloadForm
from scheduling.forms.values import fingerprint
from scheduling.models import Phase, Workload
from scheduling.selectors import PHASE_GROUPS, visible_workloads, waited
from scheduling.services import SubmissionRefusedError, WorkloadSpec

# Keys of programs become UUIDs inside this namespace, each person's apart.
KEY_NAMESPACE = uuid.UUID("8f4c6a52-57a2-4d0c-9e0e-6a2a5d0a7f10")
MAX_KEY_CHARS = 200
MAX_SEARCH_CHARS = 80
RELATED = ("project", "owner", "node", "node_type", "claimant__project", "current")
ORDERINGS = ("-submitted_at", "submitted_at", "name", "-name")

FILTER = OpenApiParameter(
    "filter",
    OpenApiTypes.STR,
    many=True,
    description="`phase:queued,running` (also `waiting`, `active`), `kind:`, `project:`, `owner:` "
    "(a user name, or `me`), `node_type:`. May be given several times.",
)
SEARCH = OpenApiParameter("search", OpenApiTypes.STR, description="Part of the name or owner.")
SORT = OpenApiParameter("sort", OpenApiTypes.STR, enum=ORDERINGS)
KEY = OpenApiParameter(
    "Idempotency-Key",
    OpenApiTypes.STR,
    OpenApiParameter.HEADER,
    description="The same key and body again give the same workload; another body gives 409.",
)
ERRORS = problems_of(401, 403, 404, 422)
CONFLICTS = {**ERRORS, **problems_of(409)}


class WorkloadViewSet(ApiViewSet):
    """Sessions and trainings of the person's projects."""

    serializer_class = WorkloadSchema
    lookup_value_converter = "uuid"

    def get_queryset(self) -> QuerySet[Workload]:
        """All that the person may see by name."""
        rows = visible_workloads(self.person)
        return rows.select_related(*RELATED)

    def get_serializer_context(self) -> dict[str, Any]:
        """Who asks, and when."""
        return _context(super().get_serializer_context(), self.person)

    # ------------------------------------------------------------ looking

    @extend_schema(
        parameters=[FILTER, SEARCH, SORT, FIELDS],
        responses={200: WorkloadSchema(many=True), **ERRORS},
    )
    def list(self, request: Request) -> Response:
        """Workloads, newest first."""
        rows = _searched(_filtered(self.get_queryset(), request, self.person), request)
        return self.items(rows, WorkloadSchema, ordering=_ordering(request), context=_clocks)

    @extend_schema(responses={200: WorkloadSchema, **ERRORS})
    def retrieve(self, request: Request, pk: uuid.UUID) -> Response:
        """One workload."""
        return Response(self._data(self._workload(pk)))

    @extend_schema(responses={200: EventSchema(many=True), **ERRORS}, parameters=[FIELDS])
    @action(detail=True)
    def events(self, request: Request, pk: uuid.UUID) -> Response:
        """What happened to it, oldest first."""
        rows = self._workload(pk).events.select_related("attempt", "actor")
        return self.items(rows, EventSchema, ordering=("at", "id"))

    @extend_schema(responses={200: AttemptSchema(many=True), **ERRORS}, parameters=[FIELDS])
    @action(detail=True)
    def attempts(self, request: Request, pk: uuid.UUID) -> Response:
        """The starts of its replicas, first to last."""
        rows = self._workload(pk).attempts.select_related("node", "resumed_from", "allocation")
        rows = rows.prefetch_related("allocation__devices")
        return self.items(rows, AttemptSchema, ordering=("placed_at", "replica", "id"))

    @extend_schema(responses={200: CheckpointSchema(many=True), **ERRORS}, parameters=[FIELDS])
    @action(detail=True)
    def checkpoints(self, request: Request, pk: uuid.UUID) -> Response:
        """Its complete checkpoints, newest first."""
        rows = self._workload(pk).checkpoints.select_related("attempt")
        return self.items(rows, CheckpointSchema, ordering=("-saved_at", "-id"))

    @extend_schema(responses={200: WaitSchema(many=True), **ERRORS}, parameters=[FIELDS])
    @action(detail=True)
    def waits(self, request: Request, pk: uuid.UUID) -> Response:
        """Its intervals in the queue, with cause and length."""
        rows = self._workload(pk).waits.select_related("claimant__project", "workload__project")
        return self.items(rows, WaitSchema, ordering=("started_at", "id"))

    # ------------------------------------------------------------ changing

    @extend_schema(
        parameters=[KEY],
        request=NewWorkloadSchema,
        responses={201: WorkloadSchema, **CONFLICTS, **BODY_PROBLEMS},
    )
    def create(self, request: Request) -> Response:
        """Submit a workload; the page's form checks it."""
        key = _request_id(request, self.person)
        earlier = Workload.objects.filter(request_id=key, owner=self.person).first()
        wanted = requests.read(request.data)
        form = wanted.form(self.person, is_repeat=earlier is not None)
        if not form.is_valid() or form.spec is None or wanted.errors:
            raise _refused(form, wanted)
        if earlier is not None:
            return self._replayed(earlier, form.spec)
        if not form.check_on_node():
            raise _refused(form, wanted)
        workload = _submitted(form.spec, self.person, key)
        if fingerprint(workload) != fingerprint(form.spec):
            # The same key came twice at the same instant, with two bodies.
            return self._replayed(workload, form.spec)
        return self._created(workload, {})

    @extend_schema(request=None, responses={200: WorkloadSchema, **CONFLICTS})
    @action(detail=True, methods=["post"])
    def stop(self, request: Request, pk: uuid.UUID) -> Response:
        """End it; a training saves first. Harmless when it has ended."""
        return self._act(pk, services.stop)

    @extend_schema(request=None, responses={200: WorkloadSchema, **CONFLICTS})
    @action(detail=True, methods=["post"])
    def retry(self, request: Request, pk: uuid.UUID) -> Response:
        """Put it back into the queue after its end."""
        return self._act(pk, services.retry)

    @extend_schema(request=None, responses={200: WorkloadSchema, **CONFLICTS})
    @action(detail=True, methods=["post"])
    def checkpoint(self, request: Request, pk: uuid.UUID) -> Response:
        """Have it save now and go on."""
        return self._act(pk, services.checkpoint_now)

    @extend_schema(request=None, responses={200: WorkloadSchema, **CONFLICTS})
    @action(detail=True, methods=["post"], url_path="swap-out")
    def swap_out(self, request: Request, pk: uuid.UUID) -> Response:
        """Let an idle session's GPU be lent without waiting for its window."""
        return self._act(pk, services.swap_out)

    @extend_schema(request=None, responses={200: WorkloadSchema, **CONFLICTS})
    @action(detail=True, methods=["post"])
    def wake(self, request: Request, pk: uuid.UUID) -> Response:
        """Bring a swapped-out session's GPU back now. Harmless when it is there."""
        return self._act(pk, services.wake)

    @extend_schema(
        request=ExtendSchema, responses={200: WorkloadSchema, **CONFLICTS, **BODY_PROBLEMS}
    )
    @action(detail=True, methods=["post"])
    def extend(self, request: Request, pk: uuid.UUID) -> Response:
        """Keep it for so long from now at least, though it idles or its time limit is over; a time
        limit is put off ten times by those who are no managers."""
        for_s = extension_of(self._workload(pk), request.data)
        return self._act(pk, partial(services.extend, for_s=for_s, channel="api"))

    @extend_schema(request=None, responses={200: WorkloadSchema, **CONFLICTS})
    @action(detail=True, methods=["post"], url_path="notify")
    def notify_owner(self, request: Request, pk: uuid.UUID) -> Response:
        """Ask its owner, on the page and by mail, whether it is still needed; once an hour."""
        return self._act(pk, services.notify_owner)

    def _workload(self, pk: uuid.UUID) -> Workload:
        workload: Workload = get_object_or_404(self.get_queryset(), pk=pk)
        return workload

    def _data(self, workload: Workload) -> Any:  # JSON
        context = {**self.get_serializer_context(), **_clocks([workload])}
        return WorkloadSchema(workload, context=context).data

    def _act(self, pk: uuid.UUID, change: Callable[..., Workload]) -> Response:
        change(self._workload(pk), actor=self.person)
        return Response(self._data(self._workload(pk)))

    def _replayed(self, earlier: Workload, spec: WorkloadSpec) -> Response:
        """The answer to a key that was used before.

        Raises:
            ProblemError: 409, it was used for another body.
        """
        if fingerprint(earlier) != fingerprint(spec):
            detail = _("The Idempotency-Key was used for another body: workload “%(name)s”.")
            words = detail % {"name": earlier.name}
            raise ProblemError(Problem(409, "idempotency_key_reused", words))
        return self._created(earlier, {"Idempotent-Replayed": "true"})

    def _created(self, workload: Workload, headers: Mapping[str, str]) -> Response:
        address = reverse("api:workload-detail", args=[workload.pk])
        data = self._data(self._workload(workload.pk))
        return Response(data, status=201, headers={"Location": address, **headers})


def _context(context: Mapping[str, Any], person: User) -> dict[str, Any]:  # a serialiser's context
    return {**context, "rights": Rights(person), "now": timezone.now(), "waits": {}, "limits": {}}


def _clocks(rows: list[Workload]) -> dict[str, object]:
    """How long they waited, and how far they are with their time limits."""
    now = timezone.now()
    limits = time_limits.standings(rows, now)
    return {"waits": waited([row.pk for row in rows], now), "limits": limits}


def _submitted(spec: WorkloadSpec, owner: User, key: uuid.UUID) -> Workload:
    try:
        return services.submit(spec, owner=owner, request_id=key)
    except SubmissionRefusedError as refusal:
        error = FieldError(refusal.field, refusal.code, refusal.message)
        raise wrong_fields([error]) from refusal


def _refused(form: WorkloadForm, wanted: requests.WorkloadRequest) -> ProblemError:
    return wrong_fields(requests.errors_of(form, wanted))


def _request_id(request: Request, person: User) -> uuid.UUID:
    """The workload's request id: made from person and key, or new without a key.

    Raises:
        ProblemError: 422, the key is empty or too long.
    """
    key = request.headers.get("Idempotency-Key")
    if key is None:
        return uuid.uuid4()
    if not key.strip() or len(key) > MAX_KEY_CHARS:
        message = _("“%(value)s” has %(length)s characters: a key has 1 to %(limit)s.")
        values = {"value": key[:40], "length": len(key), "limit": MAX_KEY_CHARS}
        error = FieldError("Idempotency-Key", "invalid_key", message % values, str(MAX_KEY_CHARS))
        raise wrong_fields([error])
    return uuid.uuid5(KEY_NAMESPACE, f"{person.pk}:{key}")


# ---------------------------------------------------------------- filters


def _phases(value: str, _person: User) -> Q:
    wanted = Q(pk__in=[])
    for word in value.split(","):
        if word in PHASE_GROUPS:
            wanted |= PHASE_GROUPS[word]
        elif word in Phase.values:
            wanted |= Q(phase=word)
        else:
            raise _unknown_value("phase", word, [*PHASE_GROUPS, *Phase.values])
    return wanted


def _kind(value: str, _person: User) -> Q:
    if value not in WorkloadKind.values:
        raise _unknown_value("kind", value, WorkloadKind.values)
    return Q(kind=value)


def _owner(value: str, person: User) -> Q:
    return Q(owner=person) if value == "me" else Q(owner__username=value)


FILTERS: Mapping[str, Callable[[str, User], Q]] = {
    "phase": _phases,
    "kind": _kind,
    "project": lambda value, _person: Q(project__name__in=value.split(",")),
    "owner": _owner,
    "node_type": lambda value, _person: Q(node_type__name__in=value.split(",")),
}


def _filtered(rows: QuerySet[Workload], request: Request, person: User) -> QuerySet[Workload]:
    for text in request.query_params.getlist("filter"):
        name, _colon, value = text.replace("\0", "").partition(":")
        if name not in FILTERS:
            raise _unknown_value("filter", name, FILTERS)
        rows = rows.filter(FILTERS[name](value, person))
    return rows


def _searched(rows: QuerySet[Workload], request: Request) -> QuerySet[Workload]:
    text = request.query_params.get("search", "").replace("\0", "").strip()[:MAX_SEARCH_CHARS]
    if not text:
        return rows
    return rows.filter(Q(name__icontains=text) | Q(owner__username__icontains=text))


def _ordering(request: Request) -> tuple[str, ...]:
    first = request.query_params.get("sort", ORDERINGS[0])
    if first not in ORDERINGS:
        raise _unknown_value("sort", first, ORDERINGS)
    return (first, "-id" if first.startswith("-") else "id")


def _unknown_value(name: str, value: str, known: Any) -> ProblemError:  # any iterable of text
    limit = ", ".join(known)
    message = _("“%(value)s” is none of: %(limit)s.") % {"value": value[:40], "limit": limit}
    return wrong_fields([FieldError(name, "invalid_choice", message, limit)])


class QueueViewSet(ApiViewSet):
    """Who waits, in the planner's order."""

    serializer_class = WorkloadSchema

    def get_queryset(self) -> QuerySet[Workload]:
        """Waiting workloads of the person's projects."""
        rows = visible_workloads(self.person).filter(PHASE_GROUPS["waiting"])
        return rows.select_related(*RELATED)

    def get_serializer_context(self) -> dict[str, Any]:
        """Who asks, and when."""
        return _context(super().get_serializer_context(), self.person)

    @extend_schema(
        parameters=[FILTER, FIELDS], responses={200: WorkloadSchema(many=True), **ERRORS}
    )
    def list(self, request: Request) -> Response:
        """Waiting workloads, longest in the queue first; `queue` says each one's place."""
        rows = _filtered(self.get_queryset(), request, self.person)
        ordering = ("submitted_at", "id")
        return self.items(rows, WorkloadSchema, ordering=ordering, context=_clocks)
