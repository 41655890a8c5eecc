"""Runs the Resource Controller of a zone on this machine: `scheduling.agent.controller`."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from scheduling.agent.controller import AgentError, Options, main


def _label(text: str) -> tuple[str, str]:
    """Read a label.

    Raises:
        ArgumentTypeError: It is not KEY=VALUE.
    """
    key, separator, value = text.partition("=")
    if not separator or not key or not value:
        raise ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key, value


class Command(BaseCommand):
    """Its options are the agent's; the environment gives their defaults."""

    help = "Run the agent of a zone: starts, watches and stops workloads on this machine."
    requires_system_checks: list[str] = []  # noqa: RUF012 - Django's own name

    def add_arguments(self, parser: ArgumentParser) -> None:
        env = settings.ALLOT
        host = "127.0.0.1" if env.host in ("0.0.0.0", "::") else env.host
        server = f"http://[{host}]:{env.port}" if ":" in host else f"http://{host}:{env.port}"
        parser.add_argument("--zone", default="local", help="name of the zone (%(default)s)")
        parser.add_argument(
            "--server",
            default=server,
            help="the orchestrator's address, or unix:/path (%(default)s)",
        )
        parser.add_argument("--token-file", type=Path, default=env.agent_token_file)
        parser.add_argument(
            "--workload-env",
            type=Path,
            default=env.workload_python.parent.parent,
            help="virtual environment that sessions and trainings get (%(default)s)",
        )
        parser.add_argument(
            "--simulated",
            choices=("auto", "demo", "off"),
            default="auto",
            help="offer simulated nodes: where there is no GPU, always, or never (%(default)s)",
        )
        parser.add_argument(
            "--relay",
            default="",
            metavar="HOST:PORT",
            help="where the web reaches this agent (a Unix socket in the run folder)",
        )
        parser.add_argument(
            "--label",
            action="append",
            default=[],
            type=_label,
            metavar="KEY=VALUE",
            dest="labels",
            help="a label of its nodes, such as rack=r1; may be given several times",
        )

    # Django passes options of any type.
    def handle(self, *_arguments: Any, **options: Any) -> None:
        env = settings.ALLOT
        try:
            main(
                Options(
                    zone=options["zone"],
                    server=options["server"].rstrip("/"),
                    token_file=options["token_file"],
                    var=env.var,
                    run=env.run,
                    workload_python=options["workload_env"] / "bin" / "python",
                    simulated=options["simulated"],
                    relay=options["relay"],
                    labels=dict(options["labels"]),
                )
            )
        except AgentError as error:
            raise CommandError(str(error)) from error
