"""Django's admin for the organisation; it serves until these things have pages of their own.

Quotas go through `projects.quotas`, so that no admin can promise more than there is, and what
changes is audited. Amounts are the integers of the database: thousandths of a GPU.
"""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.contrib.auth.admin import UserAdmin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from projects import tokens
from projects.admin.audited import AuditedAdmin, NamedAdmin, ReadOnlyAdmin, actor_of
from projects.admin.owners import DepartmentAdmin, OwnerAdmin, ProjectAdmin
from projects.models import AuditEntry, NodeType, Token, User

__all__ = ["AuditedAdmin", "DepartmentAdmin", "OwnerAdmin", "ProjectAdmin", "ReadOnlyAdmin"]


@admin.register(NodeType)
class NodeTypeAdmin(NamedAdmin):
    list_display = (
        "name",
        "title",
        "gpu_model",
        "capacity_gpu_milli",
        "gpu_price_per_hour",
        "rank",
    )
    readonly_fields = ("capacity_gpu_milli",)


@admin.register(User)
class PersonAdmin(UserAdmin, AuditedAdmin):  # type: ignore[type-arg]  # generic at check time only
    identity = "username"
    list_display = ("username", "first_name", "last_name", "email", "is_active", "is_superuser")
    fieldsets = (*(UserAdmin.fieldsets or ()), (_("Display"), {"fields": ("time_zone",)}))

    def user_change_password(
        self, request: HttpRequest, id: str, form_url: str = ""
    ) -> Any:  # page
        """Django's page, which saves by itself; that it did is recorded, the password is not."""
        person = self.get_object(request, id)
        before = person.password if isinstance(person, User) else ""
        answer = super().user_change_password(request, id, form_url)
        if isinstance(person, User):
            person.refresh_from_db(fields=["password"])
            if person.password != before:
                self.record(request, person, "password_set", (None, None))
        return answer


@admin.register(Token)
class TokenAdmin(ReadOnlyAdmin):
    list_display = (
        "name",
        "user",
        "prefix",
        "created_at",
        "last_used_at",
        "expires_at",
        "revoked_at",
    )
    search_fields = ("name", "user__username")
    exclude = ("secret_hash",)
    actions = ("revoke",)

    @admin.action(description=_("Revoke the chosen tokens"), permissions=["view"])
    def revoke(self, request: HttpRequest, queryset: QuerySet[Token]) -> None:
        """End tokens of any person."""
        actor = actor_of(request)
        if actor is None or not actor.is_superuser:
            messages.error(request, _("Only an admin revokes another person's token."))
            return
        for token in queryset:
            tokens.revoke(token, actor=actor)


@admin.register(AuditEntry)
class AuditEntryAdmin(ReadOnlyAdmin):
    list_display = ("at", "actor", "channel", "action", "entity", "entity_id")
    list_filter = ("action", "entity", "channel")
    search_fields = ("entity_id", "actor__username")
    list_select_related = ("actor",)
    date_hierarchy = "at"
