"""Scenario files: a small cluster as data, and what a correct scheduler does with it.

`load_scenario` reads and checks one, `export_scenario` writes a captured cycle, `run_scenario` runs
one through `plan` as production would, cycle after cycle. Pure: the command `replay` opens the
files.
"""

from scheduling.core.scenario.following import follow
from scheduling.core.scenario.reading import Expected, Scenario, load_scenario, load_scenarios
from scheduling.core.scenario.running import Outcome, Result, run_scenario
from scheduling.core.scenario.writing import export_scenario

__all__ = [
    "Expected",
    "Outcome",
    "Result",
    "Scenario",
    "export_scenario",
    "follow",
    "load_scenario",
    "load_scenarios",
    "run_scenario",
]
