"""The administration speaks the reader's language, and says what the planner's settings do."""

from __future__ import annotations

import re

import pytest
from django.contrib import admin
from django.contrib.admin.utils import label_for_field
from django.core.exceptions import ValidationError
from django.db import models
from django.test import Client, RequestFactory
from django.urls import reverse
from django.utils.translation import override

from projects.models import User
from scheduling.models import PlannerPolicy
from tests.web.test_translations import CYRILLIC

# Both languages write these alike, or Django has no translation of them.
ALIKE = {"UUID", "ID"}

pytestmark = pytest.mark.django_db


@override("ru")
def test_models_and_columns_are_named_in_russian() -> None:
    request = RequestFactory().get("/")
    for model, options in admin.site._registry.items():
        names = [str(model._meta.verbose_name), str(model._meta.verbose_name_plural)]
        for column in options.get_list_display(request):
            if column != "__str__":
                names.append(str(label_for_field(column, model, options)))
        for name in names:
            assert CYRILLIC.search(name) or name.upper() in ALIKE, (model, name)


@override("ru")
def test_whatever_an_admin_fills_in_is_named_in_russian() -> None:
    request = RequestFactory().get("/")
    request.user = User.objects.create_superuser("root")
    for model, options in admin.site._registry.items():
        if not options.has_change_permission(request):
            continue
        forms = [options.get_form(request)]
        forms += [
            inline.get_formset(request).form for inline in options.get_inline_instances(request)
        ]
        for form in forms:
            for name, field in form.base_fields.items():
                assert CYRILLIC.search(str(field.label)), (model, name, field.label)


@pytest.mark.parametrize("language", ["en", "ru"])
def test_the_policy_s_fields_say_what_they_do_and_take(language: str) -> None:
    with override(language):
        for field in PlannerPolicy._meta.get_fields():
            if not isinstance(field, models.Field) or field.primary_key:
                continue
            said = str(field.help_text)
            assert bool(CYRILLIC.search(said)) == (language == "ru"), field
            if isinstance(field, models.IntegerField):
                least, most = re.findall(r"\d+", said)[:2]
                field.clean(int(least), None)
                field.clean(int(most), None)
                with pytest.raises(ValidationError):
                    field.clean(int(most) + 1, None)


def test_a_value_out_of_range_is_refused_with_the_bound(client: Client) -> None:
    client.force_login(User.objects.create_superuser("root"))
    values = {
        "topology": "rack,zone",
        "preemption_delay_s": 86_401,
        "gang_grace_s": 60,
        "aging_period_s": 0,
        "aging_bound": 20,
        "cordon_failures": 3,
        "cordon_window_s": 59,
        "history_factor_milli": 0,
        "history_window_s": 3600,
        "history_half_life_s": 0,
    }
    address = reverse("admin:scheduling_plannerpolicy_add")
    page = client.post(address, values).content.decode()
    assert "less than or equal to 86400" in page
    assert "greater than or equal to 60" in page
    values |= {"preemption_delay_s": 86_400, "cordon_window_s": 60}
    assert client.post(address, values).status_code == 302
    assert PlannerPolicy.objects.get().topology == ["rack", "zone"]
