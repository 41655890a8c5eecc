"""Measures what Allot promises about its speed, on input made from a seed.

Figures' names end in their unit; each has median, 99th percentile and range. A bench lives in
`scheduling.management.benches`, in a module that offers it in `BENCHES`.
"""

import json
from argparse import ArgumentParser
from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from django.core.management.base import BaseCommand

from scheduling.management import benches
from scheduling.management.benches.figures import FORMAT, Bench, Report, at_least, machine


class Command(BaseCommand):
    """Runs one bench and prints its figures."""

    help = "Measure one of the figures that Allot promises."
    requires_system_checks: list[str] = []  # noqa: RUF012  # Django's own declaration

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the benches, each with its own options."""
        names = parser.add_subparsers(dest="name", required=True, metavar="NAME")
        for name, bench in sorted(all_benches().items()):
            chosen = names.add_parser(name, help=bench.about)
            bench.add_arguments(chosen)
            chosen.add_argument("--runs", type=at_least(1), default=bench.runs)
            chosen.add_argument("--warmup", type=at_least(0), default=bench.warmup)
            chosen.add_argument("--json", action="store_true", help="print one JSON object")

    def handle(self, *_args: Any, **options: Any) -> None:
        """Measure and print (`Any`: Django's signature)."""
        report = all_benches()[options["name"]].measure(options)
        if options["json"]:
            self.stdout.write(json.dumps(as_json(options, report)))
        else:
            self._print_table(report)

    def _print_table(self, report: Report) -> None:
        for name, figure in report.figures.items():
            target = f", target {figure['target']}" if "target" in figure else ""
            self.stdout.write(
                f"{name:<18} {figure['median']:>10} {figure['unit']}"
                f" (p99 {figure['p99']}, {figure['min']} to {figure['max']}{target})"
            )
        for name, seconds in report.phases.items():
            self.stdout.write(f"  {name:<16} {seconds:>10} s")
        if report.note:
            self.stdout.write(report.note)


def all_benches() -> dict[str, Bench]:
    """Every bench by its name."""
    found: dict[str, Bench] = {}
    for module in iter_modules(benches.__path__, f"{benches.__name__}."):
        found.update(getattr(import_module(module.name), "BENCHES", {}))
    return found


def as_json(options: Mapping[str, Any], report: Report) -> dict[str, object]:
    """A report in the form `bench/1`."""
    return {
        "format": FORMAT,
        "bench": options["name"],
        "params": report.params,
        "runs": options["runs"],
        "warmup": options["warmup"],
        "figures": report.figures,
        "phases": report.phases,
        "machine": machine(),
    }
