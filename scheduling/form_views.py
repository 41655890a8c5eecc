"""The pages that ask for a session or a training, and the pane that says what would happen.

One form page serves both kinds. Buttons that only help to fill it in (*Check*, a fraction, an order
of node types, another project) post the same form and show it again with everything typed, so the
page works without scripts; with them the pane is asked for by htmx at each change.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods, require_POST

from projects.access import may_change_workload, visible_projects
from projects.models import User, WorkloadKind
from projects.templates import find_template, save_private, templates_for
from scheduling.forms import GpuMode, SessionForm, TrainingForm, WorkloadForm
from scheduling.forms.amounts import shown
from scheduling.forms.offer import Offer, fraction_parts, offer_for
from scheduling.forms.outlook import Outlook, outlook_of
from scheduling.forms.values import (
    clone_values,
    defaults,
    fingerprint,
    linked_problems,
    linked_values,
    template_spec,
    template_values,
)
from scheduling.models import Workload
from scheduling.services import SubmissionRefusedError, WorkloadSpec, submit
from scheduling.views.pages import PageRequest


@dataclass(frozen=True, slots=True)
class FormPage:
    """What differs between the two pages."""

    form_class: type[WorkloadForm]
    template: str
    url_name: str

    @property
    def kind(self) -> WorkloadKind:
        return self.form_class.kind


SESSION = FormPage(SessionForm, "scheduling/new_session.html", "scheduling:new-session")
TRAINING = FormPage(TrainingForm, "scheduling/new_training.html", "scheduling:new-training")
PAGES: Mapping[str, FormPage] = {page.kind.value: page for page in (SESSION, TRAINING)}


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def new_session(request: PageRequest) -> HttpResponse:
    """Ask for a session."""
    return _serve(request, SESSION)


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def new_training(request: PageRequest) -> HttpResponse:
    """Ask for a training."""
    return _serve(request, TRAINING)


@login_required
@require_POST
def preview(request: PageRequest) -> HttpResponse:
    """The pane beside the form: what is free, what is left, what would happen to what is typed."""
    page = PAGES.get(request.POST.get("kind", ""), SESSION)
    form = page.form_class(request.POST, user=request.user)
    context = _pane(form, offer_for(form), outlook_of(form))
    return render(request, "scheduling/_form_pane.html", context)


def _serve(request: PageRequest, page: FormPage) -> HttpResponse:
    if request.method != "POST":
        form = page.form_class(user=request.user, initial=_first_values(request, page))
        for problem in linked_problems(request.GET, form):
            messages.error(request, problem)
        return _show(request, page, form)
    action = request.POST.get("action", "submit")
    if action == "submit":
        return _submit(request, page)
    if action == "check":
        return _check(request, page)
    if action == "save_template":
        return _save_template(request, page)
    form = page.form_class(user=request.user, initial=_edited(request.POST, page.form_class))
    return _show(request, page, form)


# ---------------------------------------------------------------- what the form begins with


def _first_values(request: PageRequest, page: FormPage) -> dict[str, object]:
    values = defaults(page.kind)
    template_id, clone_id = request.GET.get("template", ""), request.GET.get("clone", "")
    template = find_template(request.user, template_id, page.kind)
    source = _workload_to_clone(request, page)
    if template_id and template is None:
        _say_unknown(
            request, _("There is no template “%(value)s” that you may use here."), template_id
        )
    if clone_id and source is None:
        _say_unknown(
            request, _("There is no workload “%(value)s” that you may clone here."), clone_id
        )
    if source is not None:
        values.update(clone_values(source))
        if not may_change_workload(request.user, source):
            # A colleague's variables may hold what is not for everybody's eyes.
            values["env"] = {}
    elif template is not None:
        values.update(template_values(template, page.form_class))
    values.update(linked_values(request.GET, page.form_class))
    values.setdefault("project", _last_project(request.user))
    return values


def _say_unknown(request: PageRequest, message: str, value: str) -> None:
    messages.error(request, message % {"value": shown(value)})


def _last_project(user: User) -> str | None:
    """The project of the person's latest workload: the likeliest of the next."""
    latest = Workload.objects.filter(owner=user).order_by("-submitted_at")
    return latest.values_list("project__name", flat=True).first()


def _workload_to_clone(request: PageRequest, page: FormPage) -> Workload | None:
    try:
        key = uuid.UUID(request.GET.get("clone", ""))
    except ValueError:
        return None
    visible = Workload.objects.filter(project__in=visible_projects(request.user))
    return visible.filter(pk=key, kind=page.kind).first()


def _typed(data: QueryDict, form_class: type[WorkloadForm]) -> dict[str, object]:
    """Everything typed, as initial values: shown again without being judged."""
    return {
        name: field.widget.value_from_datadict(data, {}, name)
        for name, field in form_class.base_fields.items()
    }


def _edited(data: QueryDict, form_class: type[WorkloadForm]) -> dict[str, object]:
    """What was typed, after the helping button that was pressed."""
    values = _typed(data, form_class)
    direction, _colon, name = data.get("action", "").partition(":")
    if direction == "fraction":
        values |= {"gpu_mode": GpuMode.FRACTION.value, "gpu_fraction": name}
    if direction in ("up", "down"):
        order = data.getlist("node_type_order")
        values["node_type_order"] = _moved(order, name, -1 if direction == "up" else 1)
    return values


def _moved(order: list[str], name: str, step: int) -> list[str]:
    """The order after one row went up or down."""
    if name not in order:
        return order
    rest = [item for item in order if item != name]
    rest.insert(max(order.index(name) + step, 0), name)
    return rest


# ---------------------------------------------------------------- answers


def _submit(request: PageRequest, page: FormPage) -> HttpResponse:
    form = page.form_class(
        request.POST, user=request.user, is_repeat=_is_repeat(request, page.form_class)
    )
    if not form.is_valid() or form.spec is None:
        return _show(request, page, form, status=422)
    request_id = _request_id(request, form.spec)
    if not form.is_repeat and not form.check_on_node():
        return _show(request, page, form, status=422)
    try:
        workload = submit(form.spec, owner=request.user, request_id=request_id)
    except SubmissionRefusedError as refusal:
        form.add_refusal(refusal)
        return _show(request, page, form, status=422)
    messages.success(request, _("“%(name)s” is submitted.") % {"name": workload.name})
    if workload.is_session:
        return redirect("scheduling:sessions")
    return redirect("scheduling:workload", workload.pk)


def _request_id(request: HttpRequest, spec: WorkloadSpec) -> uuid.UUID:
    """One per form and content: the same form twice is one workload, a changed one is another."""
    try:
        form_id = uuid.UUID(request.POST.get("request_id", ""))
    except ValueError:
        form_id = uuid.uuid4()
    return uuid.uuid5(form_id, fingerprint(spec))


def _is_repeat(request: PageRequest, form_class: type[WorkloadForm]) -> bool:
    """Whether this very form was accepted before.

    So that it is answered alike and not judged anew.
    """
    form = form_class(request.POST, user=request.user, is_repeat=True)
    if not form.is_valid() or form.spec is None:
        return False
    request_id = _request_id(request, form.spec)
    return Workload.objects.filter(request_id=request_id, owner=request.user).exists()


def _check(request: PageRequest, page: FormPage) -> HttpResponse:
    """Judge without submitting; what would happen is said beside the form."""
    form = page.form_class(request.POST, user=request.user)
    is_good = form.is_valid() and form.check_on_node()
    return _show(request, page, form, status=200 if is_good else 422, outlook=outlook_of(form))


def _save_template(request: PageRequest, page: FormPage) -> HttpResponse:
    form = page.form_class(request.POST, user=request.user)
    if not form.is_valid() or form.spec is None:
        return _show(request, page, form, status=422)
    name = request.POST.get("new_template_name", "")
    try:
        template = save_private(
            request.user, name=name, kind=page.kind, spec=template_spec(form.spec, form)
        )
    except ValidationError as error:
        return _show(request, page, form, status=422, template_error=error.messages[0])
    messages.success(request, _("Saved as your template “%(name)s”.") % {"name": template.name})
    return redirect(f"{reverse(page.url_name)}?template={template.pk}")


def _show(
    request: PageRequest,
    page: FormPage,
    form: WorkloadForm,
    *,
    status: int = 200,
    outlook: Outlook | None = None,
    template_error: str = "",
) -> HttpResponse:
    offer = offer_for(form)
    context = {
        **_pane(form, offer, outlook),
        "request_id": request.POST.get("request_id") or str(uuid.uuid4()),
        "fraction_parts": fraction_parts(),
        "templates": templates_for(request.user, page.kind),
        "action_url": reverse(page.url_name),
        "template_error": template_error,
        "new_template_name": request.POST.get("new_template_name", ""),
        "is_checked": outlook is not None,
    }
    response = render(request, page.template, context, status=status)
    response["Cache-Control"] = "private, no-cache"
    return response


def _pane(form: WorkloadForm, offer: Offer, outlook: Outlook | None) -> dict[str, object]:
    return {"form": form, "offer": offer, "outlook": outlook, "kind": form.kind.value}
