"""Addresses of what a person keeps: tokens for the API."""

from django.urls import path

from projects import views

app_name = "projects"

urlpatterns = [
    path("tokens", views.tokens, name="tokens"),
    path("tokens/<int:token_id>/revoke", views.revoke_token, name="revoke-token"),
]
