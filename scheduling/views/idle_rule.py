"""A project's idle rule: the form in which those who may administer the project change it."""

from __future__ import annotations

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied
from django.http import HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods

from projects import access
from scheduling.forms.idle_rule import IdleRuleForm, save_rule
from scheduling.views.pages import PageRequest, page
from scheduling.views.projects import find_project


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def idle_rule(request: PageRequest, name: str) -> HttpResponse:
    """Show the rule, or change it."""
    project = find_project(request.user, name)
    if not access.may_administer_project(request.user, project.pk):
        raise PermissionDenied(_("Only managers of the project and administrators change this."))
    if request.method != "POST":
        form = IdleRuleForm(project=project)
        return page(request, "scheduling/idle_rule.html", {"project": project, "form": form})
    form = save_rule(project, request.POST, actor=request.user)
    if form.is_valid():
        done = _("The idle rule and the time limits of project %(project)s are saved.")
        messages.success(request, done % {"project": project})
        return redirect("scheduling:project", name=project.name)
    context = {"project": project, "form": form}
    return page(request, "scheduling/idle_rule.html", context, status=422)
