"""Addresses of pages, for people; programs use `/api/v1`."""

from django.urls import include, path

from scheduling import agent_api, form_views
from scheduling.views import (
    analytics,
    cost,
    cycles,
    idle,
    idle_rule,
    live,
    logs,
    nodes,
    overview,
    preferences,
    projects,
    queue,
    sessions,
    sum_charts,
    swap,
    why,
)
from scheduling.views import workload as workload_views
from scheduling.views import workloads as list_views

app_name = "scheduling"

urlpatterns = [
    path("", overview.overview, name="overview"),
    path("banners", overview.banners, name="banners"),
    path("sessions", sessions.sessions, name="sessions"),
    path("sessions/new", form_views.new_session, name="new-session"),
    path("workloads", list_views.workloads, name="workloads"),
    path("workloads/new", form_views.new_training, name="new-training"),
    path("workloads/preview", form_views.preview, name="preview"),
    path("workloads/<uuid:workload_id>", workload_views.workload, name="workload"),
    path("workloads/<uuid:workload_id>/why", why.why_workload, name="why-workload"),
    path("workloads/<uuid:workload_id>/what-if", why.what_if, name="what-if"),
    path("workloads/<uuid:workload_id>/series", workload_views.series, name="workload-series"),
    path(
        "workloads/<uuid:workload_id>/cost/series",
        sum_charts.workload_cost_series,
        name="workload-cost-series",
    ),
    path("workloads/<uuid:workload_id>/stop", workload_views.stop, name="stop"),
    path("workloads/<uuid:workload_id>/retry", workload_views.retry, name="retry"),
    path("workloads/<uuid:workload_id>/extend", workload_views.extend, name="extend"),
    path("workloads/<uuid:workload_id>/checkpoint", workload_views.checkpoint, name="checkpoint"),
    path("workloads/<uuid:workload_id>/wake", workload_views.wake, name="wake"),
    path("workloads/<uuid:workload_id>/swap-out", workload_views.swap_out, name="swap-out"),
    path("workloads/<uuid:workload_id>/log", logs.log, name="log"),
    path("workloads/<uuid:workload_id>/log/stream", logs.stream, name="log-stream"),
    path("queue", queue.queue, name="queue"),
    path("projects", projects.projects, name="projects"),
    path("projects/<slug:name>", projects.project, name="project"),
    path("projects/<slug:name>/idle-rule", idle_rule.idle_rule, name="idle-rule"),
    path("projects/<slug:name>/why", why.why_project, name="why-project"),
    path("nodes", nodes.nodes, name="nodes"),
    path("nodes/<str:name>", nodes.node, name="node"),
    path("nodes/<str:name>/cordon", nodes.cordon, name="cordon"),
    path("nodes/<str:name>/uncordon", nodes.uncordon, name="uncordon"),
    path("nodes/<str:name>/cost/series", sum_charts.node_cost_series, name="node-cost-series"),
    path("cluster/series", sum_charts.cluster_series, name="cluster-series"),
    path("analytics", analytics.analytics, name="analytics"),
    path("analytics/csv", analytics.analytics_csv, name="analytics-csv"),
    path("cost", cost.cost, name="cost"),
    path("cost/csv", cost.cost_csv, name="cost-csv"),
    path("live", live.live, name="live"),
    path("idle", idle.idle, name="idle"),
    path("swap", swap.swap, name="swap"),
    path("idle/csv", idle.idle_csv, name="idle-csv"),
    path("cycles", cycles.cycles, name="cycles"),
    path("cycles/<int:cycle_id>", cycles.cycle, name="cycle"),
    path("cycles/<int:cycle_id>/scenario.json", cycles.scenario, name="scenario"),
    path("preferences", preferences.preferences, name="preferences"),
    path("preferences/theme", preferences.theme, name="theme"),
    path("agent/v1/", include(agent_api)),
]
