"""The ledger of batches, to see what nodes sent and what was refused; nothing to change."""

from __future__ import annotations

from django.contrib import admin
from django.http import HttpRequest

from telemetry.models import Batch


@admin.register(Batch)
class BatchAdmin(admin.ModelAdmin[Batch]):
    list_display = (
        "received_at",
        "node",
        "num_samples",
        "num_stored",
        "num_refused",
        "num_dropped",
    )
    list_filter = ("node",)
    show_full_result_count = False

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Batch | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Batch | None = None) -> bool:
        return False
