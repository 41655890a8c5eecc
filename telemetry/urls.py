"""Addresses of charts' data."""

from django.urls import path

from telemetry import views

app_name = "telemetry"

urlpatterns = [path("telemetry/series", views.series, name="series")]
