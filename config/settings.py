"""Django's settings, built from the environment; nothing here asks what environment it is.

Settings are not policy: what an admin may change lives in the database.
"""

import os
import re
from typing import Any
from urllib.parse import unquote, urlsplit

import django_stubs_ext
from csp.constants import NONE, SELF
from django.utils.translation import gettext_lazy as _
from psycopg.conninfo import conninfo_to_dict

from config import env as environment
from config.logs import logging_settings

# Before any app: their classes name their models in brackets.
django_stubs_ext.monkeypatch()

ALLOT = environment.read(os.environ)
BASE_DIR = environment.REPOSITORY

# ---------------------------------------------------------------- the application

SECRET_KEY = ALLOT.secret_key
DEBUG = ALLOT.debug
ALLOWED_HOSTS = list(ALLOT.allowed_hosts)

INSTALLED_APPS = [
    "projects.apps.ProjectsConfig",
    "telemetry.apps.TelemetryConfig",
    "scheduling.apps.SchedulingConfig",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django_htmx",
    "csp",
    "channels",
    "rest_framework",
    "drf_spectacular",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "config.static_files.StaticFilesMiddleware",
    "csp.middleware.CSPMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "scheduling.middleware.NulMiddleware",
    "projects.middleware.ViewerTimeZoneMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
]

ROOT_URLCONF = "config.urls"
ASGI_APPLICATION = "config.asgi.application"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.template.context_processors.i18n",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    }
]

# ---------------------------------------------------------------- people

AUTH_USER_MODEL = "projects.User"
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in (
        "UserAttributeSimilarityValidator",
        "MinimumLengthValidator",
        "CommonPasswordValidator",
        "NumericPasswordValidator",
    )
]
LOGIN_URL = "login"
LOGIN_REDIRECT_URL = "/"
LOGOUT_REDIRECT_URL = "login"

# ---------------------------------------------------------------- database

_database = {name: str(value) for name, value in conninfo_to_dict(ALLOT.database_url).items()}

DATABASES: dict[str, dict[str, Any]] = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": _database.pop("dbname", "allot"),
        "USER": _database.pop("user", ""),
        "PASSWORD": _database.pop("password", ""),
        "HOST": _database.pop("host", ""),
        "PORT": _database.pop("port", ""),
        "CONN_HEALTH_CHECKS": True,
        "OPTIONS": {
            **_database,
            # Under ASGI each request has a thread of its own, so connections live in a pool. Its
            # limits are short: a database that is away shows at once, and is back at once.
            "pool": {"min_size": 1, "max_size": 20, "timeout": 3, "reconnect_timeout": 2},
        },
    }
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# ---------------------------------------------------------------- live pages and periodic work

CHANNEL_LAYERS = {
    "default": {
        "BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer",
        "CONFIG": {"hosts": [ALLOT.redis_url], "prefix": "allot"},
    }
}

# Celery says redis+socket where the Redis client says unix.
CELERY_BROKER_URL = re.sub("^unix:", "redis+socket:", ALLOT.redis_url)
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_CONNECTION_MAX_RETRIES = None
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_ACKS_LATE = True
CELERY_TASK_REJECT_ON_WORKER_LOST = True
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_TIMEZONE = "UTC"
# Publishing is only a hint beside the timer: when the broker is away, give up at once.
CELERY_TASK_PUBLISH_RETRY = False
CELERY_BROKER_TRANSPORT_OPTIONS = {"socket_connect_timeout": 2, "socket_timeout": 30}
CELERY_TASK_DEFAULT_QUEUE = "dispatch"
CELERY_TASK_ROUTES = {
    "scheduling.cycle": {"queue": "cycle"},
    "scheduling.keep_usage": {"queue": "telemetry"},
    # A mail server may be slow: nothing that matters at once waits behind it.
    "scheduling.send_notices": {"queue": "telemetry"},
    # Waits behind nothing, and nothing behind it.
    "scheduling.watch_idle": {"queue": "idle"},
    "scheduling.*": {"queue": "dispatch"},
    "telemetry.*": {"queue": "telemetry"},
}
# Nothing here changes at run time, so beat keeps no file that a SIGKILL could spoil.
CELERY_BEAT_SCHEDULER = "celery.beat:Scheduler"


def _every(task: str, seconds: float) -> dict[str, Any]:
    """Send a task periodically; one that no worker took before the next is due is dropped."""
    return {"task": task, "schedule": seconds, "options": {"expires": seconds}}


CELERY_BEAT_SCHEDULE = {
    task: _every(task, seconds)
    for task, seconds in {
        "scheduling.cycle": 5.0,
        "scheduling.dispatch": 2.0,
        "scheduling.watch_nodes": 5.0,
        "scheduling.watch_idle": 10.0,
        "scheduling.send_notices": 10.0,
        "telemetry.expire": 600.0,
        "telemetry.roll_up": 60.0,
        "scheduling.keep_usage": 120.0,
    }.items()
}

# ---------------------------------------------------------------- mail

_mail = urlsplit(ALLOT.mail_url)
EMAIL_BACKEND = (
    "django.core.mail.backends.smtp.EmailBackend"
    if ALLOT.mail_url
    else "django.core.mail.backends.dummy.EmailBackend"
)
EMAIL_HOST = _mail.hostname or ""
EMAIL_PORT = _mail.port or (465 if _mail.scheme == "smtps" else 25)
EMAIL_HOST_USER = unquote(_mail.username or "")
EMAIL_HOST_PASSWORD = unquote(_mail.password or "")
EMAIL_USE_SSL = _mail.scheme == "smtps"
EMAIL_USE_TLS = _mail.scheme == "smtp+tls"
EMAIL_TIMEOUT = 10
DEFAULT_FROM_EMAIL = ALLOT.mail_from

# ---------------------------------------------------------------- the public API

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": ["rest_framework.authentication.SessionAuthentication"],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    # Data only: the browsable pages would need inline scripts.
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["rest_framework.parsers.JSONParser"],
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Allot",
    "DESCRIPTION": "Shares an organisation's GPU machines.",
    "VERSION": "1",
    "SERVE_INCLUDE_SCHEMA": False,
    # Several fields are called so; each set of values has a name of its own.
    "ENUM_NAME_OVERRIDES": {
        "WorkloadKindEnum": "projects.models.WorkloadKind",
        "WorkloadPhaseEnum": "scheduling.models.Phase",
        "AttemptPhaseEnum": "scheduling.models.AttemptPhase",
    },
}

# ---------------------------------------------------------------- languages and time

LANGUAGE_CODE = "en"
LANGUAGES = [("en", _("English")), ("ru", _("Russian"))]
LOCALE_PATHS = [BASE_DIR / "config" / "locale"]
USE_I18N = True
USE_TZ = True
TIME_ZONE = "Europe/Moscow"

# ---------------------------------------------------------------- static files

STATIC_URL = "/static/"
STATICFILES_DIRS = [BASE_DIR / "static"]
# Served from where they lie: a start needs no copying, an upgrade cannot leave old ones behind.
WHITENOISE_USE_FINDERS = True
WHITENOISE_AUTOREFRESH = DEBUG
WHITENOISE_MAX_AGE = 60

# ---------------------------------------------------------------- security

# Cookies know hosts but not ports: two copies side by side must not log each other out.
SESSION_COOKIE_NAME = f"allot_session_{ALLOT.port}"
CSRF_COOKIE_NAME = f"allot_csrf_{ALLOT.port}"
LANGUAGE_COOKIE_NAME = "allot_language"
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = CSRF_COOKIE_SAMESITE = LANGUAGE_COOKIE_SAMESITE = "Lax"
SESSION_COOKIE_AGE = 14 * 24 * 3600
CSRF_TRUSTED_ORIGINS = [ALLOT.public_url]

# What only makes sense once browsers come by https, through a proxy that says so.
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = LANGUAGE_COOKIE_SECURE = ALLOT.is_https
SECURE_SSL_REDIRECT = ALLOT.is_https
# Probes and agents may come straight to us, inside the cluster.
SECURE_REDIRECT_EXEMPT = [r"^healthz$", r"^readyz$", r"^agent/"]
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if ALLOT.is_https else None
SECURE_HSTS_SECONDS = 365 * 24 * 3600 if ALLOT.is_https else 0
SECURE_HSTS_INCLUDE_SUBDOMAINS = ALLOT.is_https
SECURE_HSTS_PRELOAD = ALLOT.is_https

# An agent's report of a large zone, with samples that waited while we were away.
DATA_UPLOAD_MAX_MEMORY_SIZE = 16 * 1024 * 1024

SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
SECURE_CROSS_ORIGIN_OPENER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"

# No inline script anywhere. Pages with charts widen style-src with csp's decorator.
CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": [NONE],
        "script-src": [SELF],
        "style-src": [SELF],
        "img-src": [SELF, "data:"],
        "font-src": [SELF],
        "connect-src": [SELF],
        "manifest-src": [SELF],
        "form-action": [SELF],
        "frame-ancestors": [NONE],
        "base-uri": [NONE],
        "object-src": [NONE],
    }
}

# ---------------------------------------------------------------- logs

LOGGING = logging_settings(ALLOT.log_level)
