"""Which address leads to which app."""

from django.contrib import admin
from django.contrib.auth import views as auth_views
from django.templatetags.static import static
from django.urls import URLPattern, URLResolver, include, path, re_path
from django.utils.functional import lazy
from django.views.generic import RedirectView
from django.views.i18n import JavaScriptCatalog

from config import health
from scheduling.api.urls import unknown_address

urlpatterns: list[URLPattern | URLResolver] = [
    path("healthz", health.healthz, name="healthz"),
    path("readyz", health.readyz, name="readyz"),
    path(
        "accounts/login/",
        auth_views.LoginView.as_view(redirect_authenticated_user=True),
        name="login",
    ),
    # Browsers ask for it by themselves on pages that name no icon: those of the admin.
    path(
        "favicon.ico",
        RedirectView.as_view(url=lazy(static, str)("img/favicon.svg")),
        name="favicon",
    ),
    path("accounts/logout/", auth_views.LogoutView.as_view(), name="logout"),
    path("i18n/", include("django.conf.urls.i18n")),
    path("jsi18n/", JavaScriptCatalog.as_view(), name="javascript-catalog"),
    path("admin/", admin.site.urls),
    path("api/v1/", include("scheduling.api.urls")),
    re_path(r"^api(/|$)", unknown_address),
    path("", include("scheduling.prometheus.urls")),
    path("", include("projects.urls")),
    path("", include("telemetry.urls")),
    path("", include("scheduling.urls")),
]

# What fails because the database is away says so, with 503.
handler500 = "scheduling.failures.server_error"
