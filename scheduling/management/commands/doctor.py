"""Says what this machine offers Allot and lacks, a line each, with the remedy."""

import json
import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand

from scheduling.management.doctor import Finding, Installation, examine


class Command(BaseCommand):
    """Prints the findings; the exit code is 1 when something required is lacking."""

    help = "Say what this machine offers Allot and lacks, with remedies."
    requires_system_checks: list[str] = []  # noqa: RUF012  # Django's own declaration

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare what may be left out."""
        parser.add_argument("--json", action="store_true", help="print findings as JSON")

    def handle(self, *_args: Any, **options: Any) -> None:
        """Examine and print (`Any`: Django's signature)."""
        findings = examine(_installation())
        found = self._print_json(findings) if options["json"] else self._print_lines(findings)
        if any(finding.is_required and not finding.is_ok for finding in found):
            sys.exit(1)

    def _print_lines(self, findings: Iterator[Finding]) -> list[Finding]:
        """Print each as soon as it is known."""
        found = []
        for finding in findings:
            found.append(finding)
            remedy = f" → {finding.remedy}" if not finding.is_ok else ""
            self.stdout.write(f"{finding.verdict:<8} {finding.name}: {finding.text}{remedy}")
        return found

    def _print_json(self, findings: Iterator[Finding]) -> list[Finding]:
        found = list(findings)
        rows = [
            {**asdict(finding), "remedy": "" if finding.is_ok else finding.remedy}
            for finding in found
        ]
        self.stdout.write(json.dumps(rows, ensure_ascii=False, indent=2))
        return found


def _installation() -> Installation:
    env = settings.ALLOT
    return Installation(
        var=env.var,
        run=env.run,
        workload_python=env.workload_python,
        database_url=env.database_url,
        redis_url=env.redis_url,
        has_embedded_database=env.has_embedded_database,
        has_embedded_redis=env.has_embedded_redis,
    )
