"""Drawing form controls: Django's widgets, with a placeholder where an example helps."""

from __future__ import annotations

from django import forms, template
from django.forms import BoundField
from django.utils.safestring import SafeString

register = template.Library()

TEXT_ROWS = "3"


@register.simple_tag
def control(field: BoundField, placeholder: str = "") -> SafeString:
    """The field's widget; errors and help are tied to it by Django's `aria-describedby`."""
    attrs: dict[str, str | bool] = {"placeholder": placeholder} if placeholder else {}
    if isinstance(field.field.widget, forms.Textarea):
        attrs["rows"] = TEXT_ROWS
    return field.as_widget(attrs=attrs)
