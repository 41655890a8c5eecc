"""Runs scenario files through production's own planning function and says what it decided.

Needs neither database nor clock, so that a bad decision can be sent on as a file and looked at
anywhere. `--export` is the other half: a recorded cycle, printed as such a file.
"""

import dataclasses
import json
import sys
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from scheduling.core.errors import ScenarioError, SnapshotError
from scheduling.core.scenario import Result, Scenario, load_scenarios, run_scenario

UNREADABLE = 2
FAILED = 1


class Command(BaseCommand):
    """Prints a line a scenario; exit code 1 when one failed, 2 when a file could not be read."""

    help = "Run scenario files through the planner and compare with what they expect."
    requires_system_checks: list[str] = []  # noqa: RUF012  # Django's own declaration

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare files and the two ways of printing."""
        parser.add_argument("files", nargs="*", metavar="FILE", help="scenario/1 files")
        parser.add_argument("--json", action="store_true", help="print a JSON object a line")
        parser.add_argument("--export", metavar="CYCLE", help="print a recorded cycle as a file")

    def handle(self, *_args: Any, **options: Any) -> None:
        """Replay all files, whatever becomes of one of them (`Any`: Django's signature)."""
        if options["export"] is not None:
            self._export(options["export"])
            return
        if not options["files"]:
            raise CommandError("name at least one scenario file", returncode=UNREADABLE)
        status = 0
        for name in options["files"]:
            status = max(status, self._replay(name, as_json=options["json"]))
        if status:
            sys.exit(status)

    def _replay(self, name: str, *, as_json: bool) -> int:
        """Run one file; its exit status."""
        try:
            results = [run_scenario(scenario) for scenario in _read(name)]
        except (OSError, ValueError, RecursionError) as error:
            self.stderr.write(f"{name}: $: {_problem(error)}")
            return UNREADABLE
        except (ScenarioError, SnapshotError) as error:
            self.stderr.write(f"{name}: {error}")
            return UNREADABLE
        for result in results:
            line = json.dumps(_as_json(result), ensure_ascii=False) if as_json else _line(result)
            self.stdout.write(line)
        return FAILED if any(result.passed is False for result in results) else 0

    def _export(self, number: str) -> None:
        # Only this half needs the database, so only it loads the models.
        from scheduling.models import CycleRecord

        record = CycleRecord.objects.filter(pk=number).first() if number.isdecimal() else None
        if record is None:
            raise CommandError(f"there is no recorded cycle {number!r}", returncode=UNREADABLE)
        self.stdout.write(json.dumps(record.scenario, ensure_ascii=False, indent=1))


def _read(name: str) -> list[Scenario]:
    # Editors of another system may begin a file with a byte order mark.
    with Path(name).open(encoding="utf-8-sig") as file:
        return load_scenarios(json.load(file, object_pairs_hook=_named_once))


def _named_once(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    """An object whose fields are named once each; JSON itself would keep the last."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        ((twice, _count),) = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"the field {twice!r} is named twice in one object")
    return fields


def _problem(error: Exception) -> str:
    match error:
        case json.JSONDecodeError():
            return f"not JSON: {error}"
        case UnicodeDecodeError():
            return f"not UTF-8: {error}"
        case RecursionError():
            return "nested too deeply"
        case OSError():
            return error.strerror or str(error)
        case _:
            return str(error)


def _line(result: Result) -> str:
    if result.differences:
        return f"{result.id}: {'; '.join(result.differences)}"
    return f"{result.id}: {'nothing expected' if result.passed is None else 'pass'}"


def _as_json(result: Result) -> dict[str, object]:
    loans = [dataclasses.asdict(loan) for loan in result.loans]
    return {
        "id": result.id,
        "passed": result.passed,
        "stable": result.is_stable,
        "replicas": {
            name: {
                "outcome": outcome.outcome,
                "node": outcome.placement.node if outcome.placement else None,
                "devices": list(outcome.placement.devices) if outcome.placement else [],
            }
            for name, outcome in result.replicas.items()
        },
        "reasons": {
            name: {"code": reason.code, "message": reason.message}
            for name, reason in result.reasons.items()
        },
        "fair_share_milli": dict(result.fair_share_milli),
        **({"loans": loans} if loans else {}),
    }
