"""The table: what a node's driver, architecture, cgroups and MIG make of fractions and Swap."""

from __future__ import annotations

import pytest
from django.utils import translation

from scheduling.agent.fraction.mechanism import Choice, Facts, choose
from scheduling.texts.mechanisms import describe_fraction, describe_swap

K80, P100, V100, T4, A100, H100 = (3, 7), (6, 0), (7, 0), (7, 5), (8, 0), (9, 0)

TABLE = [
    ("K80 at 470", Facts(470, K80),
     Choice("proxy", "before_turing", True, "none", "old_driver")),
    ("P100 at 535", Facts(535, P100),
     Choice("proxy", "before_turing", True, "none", "old_driver")),
    ("P100 at 570", Facts(570, P100),
     Choice("proxy", "before_turing", True, "checkpoint", "unproven_before_turing")),
    ("P100 at 580", Facts(580, P100),
     Choice("proxy", "before_turing", True, "checkpoint", "unproven_before_turing")),
    ("V100 at 535", Facts(535, V100),
     Choice("proxy", "before_turing", True, "none", "old_driver")),
    ("V100 at 570", Facts(570, V100),
     Choice("proxy", "before_turing", True, "checkpoint", "unproven_before_turing")),
    ("V100 at 580", Facts(580, V100),
     Choice("proxy", "before_turing", True, "checkpoint", "unproven_before_turing")),
    ("T4 at 535", Facts(535, T4),
     Choice("proxy", "old_driver", True, "none", "old_driver")),
    ("T4 at 570", Facts(570, T4),
     Choice("proxy", "old_driver", True, "checkpoint", "checkpoint")),
    ("T4 at 615", Facts(615, T4),
     Choice("driver", "driver_limits", True, "storage", "custom_storage")),
    ("T4 at 615 with cgroups of version 1", Facts(615, T4, has_cgroup_v2=False),
     Choice("proxy", "no_cgroup_v2", True, "storage", "custom_storage")),
    ("T4 at 615 without a compiler", Facts(615, T4, why_not_built="no_compiler"),
     Choice("driver", "driver_limits", False, "storage", "custom_storage")),
    ("T4 at 570 whose compiler fails", Facts(570, T4, why_not_built="compiler_failed"),
     Choice("none", "compiler_failed", False, "checkpoint", "checkpoint")),
    ("T4 at 570 with libraries of another version", Facts(570, T4, why_not_built="unfit_prebuilt"),
     Choice("none", "unfit_prebuilt", False, "checkpoint", "checkpoint")),
    ("T4 at 570 without a compiler", Facts(570, T4, why_not_built="no_compiler"),
     Choice("none", "no_compiler", False, "checkpoint", "checkpoint")),
    ("T4 at 570 without mounts", Facts(570, T4, can_mount=False),
     Choice("preload", "no_mounts", False, "checkpoint", "checkpoint")),
    ("A100 at 580", Facts(580, A100),
     Choice("proxy", "old_driver", True, "checkpoint", "checkpoint")),
    ("A100 at 615", Facts(615, A100),
     Choice("driver", "driver_limits", True, "storage", "custom_storage")),
    ("A100 at 580 with MIG", Facts(580, A100, has_mig=True),
     Choice("mig", "mig", False, "none", "mig")),
    ("A100 at 615 with MIG", Facts(615, A100, has_mig=True),
     Choice("mig", "mig", False, "none", "mig")),
    ("H100 at 580", Facts(580, H100),
     Choice("proxy", "old_driver", True, "checkpoint", "checkpoint")),
    ("H100 at 620", Facts(620, H100),
     Choice("driver", "driver_limits", True, "storage", "custom_storage")),
    ("GH200 at 580", Facts(580, H100, is_x86=False),
     Choice("proxy", "old_driver", True, "none", "not_x86")),
]  # fmt: skip

SENTENCES = {
    "T4 at 535": (
        "A library between the program and the driver holds each session to its share: this "
        "driver is older than 615 and cannot itself. Time on the device is shared in proportion.",
        "Not possible: the driver is older than 570.",
    ),
    "T4 at 615": (
        "The driver itself holds each session to its share of memory. Time on the device is "
        "shared in proportion.",
        "The driver moves device memory to the host and back. It could copy into memory that the "
        "agent keeps ready, which is faster; that is not built yet.",
    ),
    "T4 at 570 without mounts": (
        "A preloaded library holds programs to their share; some can avoid it, since this node "
        "allows no mounts for workloads. Memory only: time on the device is not shared out.",
        "The driver moves device memory to the host and back.",
    ),
    "A100 at 580 with MIG": (
        "MIG: the hardware divides the device into instances, each a device of its own.",
        "Not possible: the driver cannot move the memory of a MIG instance.",
    ),
}


@pytest.mark.parametrize(("name", "facts", "choice"), TABLE, ids=[row[0] for row in TABLE])
def test_a_node_uses(name: str, facts: Facts, choice: Choice) -> None:
    assert choose(facts) == choice


@pytest.mark.parametrize("name", SENTENCES)
def test_the_sentence_shown(name: str) -> None:
    choice = choose(next(facts for each, facts, _ in TABLE if each == name))
    shown = (
        describe_fraction(choice.fraction, choice.fraction_note, shares_time=choice.shares_time),
        describe_swap(choice.swap, choice.swap_note),
    )
    assert shown == SENTENCES[name]


@pytest.mark.parametrize(("name", "facts", "choice"), TABLE, ids=[row[0] for row in TABLE])
def test_every_choice_has_a_sentence_in_both_languages(
    name: str, facts: Facts, choice: Choice
) -> None:
    for language in ("en", "ru"):
        with translation.override(language):
            fraction = describe_fraction(
                choice.fraction, choice.fraction_note, shares_time=choice.shares_time
            )
            swap = describe_swap(choice.swap, choice.swap_note)
        assert choice.fraction_note not in fraction.split()
        assert fraction.endswith(".")
        assert swap.endswith(".")
        assert ("а" in fraction) == (language == "ru")
        assert ("а" in swap) == (language == "ru")


def test_a_word_of_a_newer_agent_is_shown_as_it_is() -> None:
    assert describe_fraction("quantum", "entangled", shares_time=False) == "quantum: entangled"
    assert describe_fraction("", "", shares_time=False) == ""
