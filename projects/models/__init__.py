"""Who owns what: departments, projects, people, quotas, node types, templates, tokens and the audit
trail.

Amounts are integers (`_gpu_milli` are thousandths of a GPU). The schema refuses what a row alone
can show to be wrong; sums over rows (quotas against capacity) are refused by `projects.quotas`,
under a lock.
"""

from __future__ import annotations

from projects.models.history import PriceChange, QuotaChange
from projects.models.memberships import DepartmentMembership, Membership
from projects.models.names import DEFAULT_LABEL_KEY, SLUG_PATTERN, one_line, validate_slug
from projects.models.node_types import AllowedNodeType, NodeType, WorkloadKind
from projects.models.owners import Department, Project
from projects.models.people import Role, User, validate_time_zone
from projects.models.quotas import DepartmentQuota, GpuQuota
from projects.models.records import AuditEntry, Template, TemplateScope, Token

__all__ = [
    "DEFAULT_LABEL_KEY",
    "SLUG_PATTERN",
    "AllowedNodeType",
    "AuditEntry",
    "Department",
    "DepartmentMembership",
    "DepartmentQuota",
    "GpuQuota",
    "Membership",
    "NodeType",
    "PriceChange",
    "Project",
    "QuotaChange",
    "Role",
    "Template",
    "TemplateScope",
    "Token",
    "User",
    "WorkloadKind",
    "one_line",
    "validate_slug",
    "validate_time_zone",
]
