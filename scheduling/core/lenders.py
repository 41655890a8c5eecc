"""Which sessions may lend their devices, and which of them to ask."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scheduling.core.demand import Item, Placed
from scheduling.core.rooms import Room
from scheduling.core.state import State
from scheduling.core.types import Idleness, NodeTypeName, Policy

DEFAULT_SWAP_MIB_PER_S = 6000.0
"""Half of a PCIe 3 link's pinned rate (gpu-fractions-and-swap.md §7.5): what drivers reach with
memory that is not pinned."""

LENDING_OFF = "lending_off"
"""The one obstacle that also ends a loan: the project lends no longer."""


@dataclass(frozen=True, slots=True)
class Lender:
    """An idle session's place.

    Attributes:
        copy_s: For copying its memory to the host and back.
    """

    item: Item
    placed: Placed
    idle: Idleness
    copy_s: float

    @property
    def device(self) -> int:
        """Number of the one device that it is on."""
        (device,) = self.placed.spot.devices
        return device

    @property
    def units(self) -> int:
        """What it holds of that device."""
        return self.placed.spot.units

    @property
    def left_s(self) -> float:
        """How long it is expected to stay idle."""
        return self.idle.expected_left_s or 0.0


def why_no_lender(state: State, item: Item, idle: Idleness) -> tuple[str, dict[str, object]]:
    """Why an idle session may not lend, and the numbers; nothing if it may."""
    now_s, policy = state.now_s, state.policy
    spot = item.running[0].spot
    if idle.obstacle:
        return idle.obstacle, {}
    if len(spot.devices) > 1:
        return "several_devices", {"devices": len(spot.devices)}
    if not spot.room.node.is_ready:
        return "node_not_ready", {"node": spot.room.node.name}
    assert idle.since_s is not None
    if idle.since_s + idle.window_s > now_s:
        return "within_window", {"until_s": idle.since_s + idle.window_s}
    if idle.woke_s is not None and idle.woke_s + policy.min_resident_s > now_s:
        return "just_woken", {"until_s": idle.woke_s + policy.min_resident_s}
    needed_s = copy_s(policy, spot.room, idle) + policy.lending_margin_s
    if idle.expected_left_s is None or idle.expected_left_s < needed_s:
        return "short_idleness", {
            "expected_left_s": idle.expected_left_s,
            "needed_s": round(needed_s, 1),
        }
    return "", {}


def copy_s(policy: Policy, room: Room, idle: Idleness) -> float:
    """For copying a session's memory to the host and back."""
    return 2 * idle.memory_mib / swap_rate(policy, room.node.node_type)


def swap_rate(policy: Policy, node_type: NodeTypeName | None) -> float:
    """MiB of device memory copied per second, one way."""
    if node_type is None:
        return DEFAULT_SWAP_MIB_PER_S
    return max(1.0, policy.swap_mib_per_s.get(node_type, DEFAULT_SWAP_MIB_PER_S))


def fewest(lenders: Sequence[Lender], units: int) -> tuple[Lender, ...] | None:
    """Lenders who together hold so much and none of whom could be spared: one if one is enough,
    those who stay idle longest.

    None if all together do not; none where nothing is needed of them.
    """
    if units <= 0:
        return ()
    single = [lender for lender in lenders if lender.units >= units]
    if single:
        return (min(single, key=lambda one: (-one.left_s, one.units, one.item.id)),)
    chosen: list[Lender] = []
    for lender in sorted(lenders, key=lambda one: (-one.left_s, -one.units, one.item.id)):
        chosen.append(lender)
        units -= lender.units
        if units <= 0:
            break
    if units > 0:
        return None
    for lender in reversed(chosen[:-1]):
        if units + lender.units <= 0:
            chosen.remove(lender)
            units += lender.units
    return tuple(chosen)


def joint_left_s(lenders: Sequence[Lender]) -> float:
    """How long all stay idle together: rates of waking add up, as for lives that end at random."""
    rate = sum(1.0 / max(lender.left_s, 1e-9) for lender in lenders)
    return 1.0 / rate if rate else float("inf")
