"""Measures what Allot promises about its speed, on input made from a seed.

`formats` of the figures: names end in their unit, each with median, 99th percentile and range.
"""

import json
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from scheduling.management.benches.cluster import Size
from scheduling.management.benches.figures import FORMAT, machine
from scheduling.management.benches.planner import BENCHES, Report


class Command(BaseCommand):
    """Runs one bench and prints its figures."""

    help = "Measure the planner."
    requires_system_checks: list[str] = []  # noqa: RUF012  # Django's own declaration

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the bench, the size of its input and the way of printing."""
        default = Size()
        parser.add_argument("name", choices=sorted(BENCHES))
        for name in ("nodes", "gpus_per_node", "running", "pending", "projects", "seed"):
            parser.add_argument(
                f"--{name.replace('_', '-')}", type=int, default=getattr(default, name)
            )
        parser.add_argument("--runs", type=int, default=9)
        parser.add_argument("--warmup", type=int, default=2)
        parser.add_argument("--json", action="store_true", help="print one JSON object")

    def handle(self, *_args: Any, **options: Any) -> None:
        """Measure and print (`Any`: Django's signature)."""
        size = Size(
            nodes=options["nodes"],
            gpus_per_node=options["gpus_per_node"],
            running=options["running"],
            pending=options["pending"],
            projects=options["projects"],
            seed=options["seed"],
        )
        name, runs, warmup = options["name"], options["runs"], options["warmup"]
        report = BENCHES[name](size, runs, warmup)
        if options["json"]:
            self.stdout.write(
                json.dumps(
                    {
                        "format": FORMAT,
                        "bench": name,
                        "params": report.params,
                        "runs": runs,
                        "warmup": warmup,
                        "figures": report.figures,
                        "phases": report.phases,
                        "machine": machine(),
                    }
                )
            )
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
