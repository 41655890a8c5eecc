"""Parts of a scenario file that stand for themselves: shares, requests, policy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from scheduling.core.scenario.json_object import JsonObject
from scheduling.core.types import (
    CPU,
    MEMORY,
    WHOLE_GPU_MILLI,
    EvictionCost,
    FailedStart,
    GpuRequest,
    Idleness,
    Loan,
    NodeTypeName,
    Policy,
    Project,
    ProjectId,
    ReplicaId,
    ResourceKey,
    Share,
    WorkloadId,
)


def read_project(entry: JsonObject) -> Project:
    parent = entry.get("parent")
    shares = {
        ResourceKey("gpu"): _share(entry.child("gpu_milli")),
        CPU: _share(entry.child("cpu_milli")),
        MEMORY: _share(entry.child("memory_mib")),
    }
    if entry.has("gpu_milli_by_key"):
        del shares[ResourceKey("gpu")]
        by_key = entry.child("gpu_milli_by_key")
        for key, value in by_key.entries():
            shares[ResourceKey(key)] = _share(JsonObject(value, by_key.at(key)))
    project = Project(
        id=ProjectId(entry.text("name")),
        parent=None if parent is None else ProjectId(entry.text("parent")),
        priority=entry.integer("priority"),
        created=entry.integer("created"),
        shares=shares,
        past_use_ppm=_past_use(entry.child("past_use_ppm")) if entry.has("past_use_ppm") else {},
    )
    entry.close()
    return project


def _past_use(entry: JsonObject) -> dict[ResourceKey, int]:
    return {ResourceKey(key): entry.integer(key, 0) for key, _ in entry.entries()}


def failed_starts(entry: JsonObject) -> tuple[FailedStart, ...]:
    if not entry.has("failed_starts"):
        return ()
    found = []
    for value, path in entry.items("failed_starts"):
        failed = JsonObject(value, path)
        found.append(FailedStart(WorkloadId(failed.text("workload")), failed.number("at_s")))
        failed.close()
    return tuple(found)


def _share(entry: JsonObject) -> Share:
    share = Share(
        quota=entry.optional_integer("quota", 0),
        limit=entry.optional_integer("limit", 0),
        weight=entry.integer("weight", 0),
    )
    entry.close()
    return share


def check_ancestors(entry: JsonObject, project: Project, projects: Mapping[str, Project]) -> None:
    seen = {project.id}
    parent = project.parent
    while parent is not None:
        if parent not in projects:
            raise entry.fail("parent", f"there is no project {parent!r}")
        if parent in seen:
            raise entry.fail("parent", f"{project.id!r} would be its own ancestor")
        seen.add(parent)
        parent = projects[parent].parent


def gpu_request(entry: JsonObject) -> GpuRequest:
    milli = entry.optional_integer("gpu_milli", 0)
    memory = entry.optional_integer("gpu_memory_mib", 1) if entry.has("gpu_memory_mib") else None
    count = entry.integer("num_devices", 1) if entry.has("num_devices") else 1
    if (milli is None) == (memory is None):
        raise entry.fail(
            "gpu_milli", "either thousandths or memory of a GPU must be given, and not both"
        )
    if memory is not None:
        return GpuRequest(count, None, memory)
    assert milli is not None
    if milli == 0:
        return GpuRequest()
    if milli > WHOLE_GPU_MILLI:
        if milli % WHOLE_GPU_MILLI:
            raise entry.fail(
                "gpu_milli", f"{milli} is neither a part of a GPU nor a number of whole ones"
            )
        if count != 1:
            raise entry.fail("num_devices", "several whole GPUs are given by gpu_milli alone")
        return GpuRequest(milli // WHOLE_GPU_MILLI, WHOLE_GPU_MILLI, None)
    return GpuRequest(count, milli, None)


def node_types(entry: JsonObject) -> tuple[NodeTypeName, ...] | None:
    if not entry.has("node_types") or entry.get("node_types") is None:
        return None
    names = entry.texts("node_types")
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise entry.fail("node_types", f"{twice[0]!r} is there twice")
    return tuple(NodeTypeName(name) for name in names)


def optional_type(entry: JsonObject) -> NodeTypeName | None:
    if not entry.has("node_type") or entry.get("node_type") is None:
        return None
    return NodeTypeName(entry.text("node_type"))


def optional_number(entry: JsonObject, name: str) -> float | None:
    return entry.number(name) if entry.has(name) and entry.get(name) is not None else None


def optional_text(entry: JsonObject, name: str) -> str:
    return entry.text(name) if entry.has(name) and entry.get(name) else ""


def labels(entry: JsonObject) -> dict[str, str]:
    return {name: entry.text(name) for name, _ in entry.entries()}


def eviction_cost(entry: JsonObject) -> EvictionCost:
    cost = EvictionCost(
        save_s=entry.number("save_s", 0),
        restore_s=entry.number("restore_s", 0),
        lost_progress_s=entry.number("lost_progress_s", 0),
    )
    entry.close()
    return cost


def idleness(entry: JsonObject) -> Idleness:
    default = Idleness(None)
    idle = Idleness(
        since_s=optional_number(entry, "since_s"),
        window_s=entry.number("window_s", 0) if entry.has("window_s") else default.window_s,
        expected_left_s=optional_number(entry, "expected_left_s"),
        memory_mib=entry.integer("memory_mib", 0) if entry.has("memory_mib") else 0,
        obstacle=optional_text(entry, "obstacle"),
        woke_s=optional_number(entry, "woke_s"),
    )
    entry.close()
    return idle


def loan(entry: JsonObject) -> Loan:
    made = Loan(
        lender=ReplicaId(entry.text("lender")),
        borrower=ReplicaId(entry.text("borrower")),
        since_s=entry.number("since_s") if entry.has("since_s") else 0.0,
    )
    entry.close()
    return made


def read_policy(entry: JsonObject) -> Policy:
    default = Policy()

    def whole(name: str, otherwise: int) -> int:
        return entry.integer(name, 0) if entry.has(name) else otherwise

    def amount(name: str, otherwise: float) -> float:
        return entry.number(name, 0) if entry.has(name) else otherwise

    min_runtime: dict[NodeTypeName, float] = {}
    if entry.has("min_runtime_s"):
        table = entry.child("min_runtime_s")
        min_runtime = {NodeTypeName(name): table.number(name, 0) for name, _ in table.entries()}
    placement: dict[NodeTypeName, str] = {}
    if entry.has("placement"):
        table = entry.child("placement")
        placement = {
            NodeTypeName(name): table.choice(name, ("bin_pack", "spread"))
            for name, _ in table.entries()
        }
    swap_rates: dict[NodeTypeName, float] = {}
    if entry.has("swap_mib_per_s"):
        table = entry.child("swap_mib_per_s")
        swap_rates = {NodeTypeName(name): table.number(name, 1) for name, _ in table.entries()}
    policy = Policy(
        min_runtime_s=min_runtime,
        placement=placement,
        topology=tuple(entry.texts("topology")) if entry.has("topology") else (),
        max_victims=whole("max_victims", default.max_victims),
        preemption_delay_s=amount("preemption_delay_s", default.preemption_delay_s),
        gang_grace_s=amount("gang_grace_s", default.gang_grace_s),
        aging_period_s=amount("aging_period_s", default.aging_period_s),
        aging_bound=whole("aging_bound", default.aging_bound),
        consolidation_max_moves=whole("consolidation_max_moves", default.consolidation_max_moves),
        consolidation_wait_s=amount("consolidation_wait_s", default.consolidation_wait_s),
        consolidation_margin=amount("consolidation_margin", default.consolidation_margin),
        hold_deadline_s=amount("hold_deadline_s", default.hold_deadline_s),
        cordon_failures=whole("cordon_failures", default.cordon_failures),
        cordon_window_s=amount("cordon_window_s", default.cordon_window_s),
        history_factor_milli=whole("history_factor_milli", default.history_factor_milli),
        history_window_s=amount("history_window_s", default.history_window_s),
        history_half_life_s=amount("history_half_life_s", default.history_half_life_s),
        lends=entry.truth("lends") if entry.has("lends") else default.lends,
        min_resident_s=amount("min_resident_s", default.min_resident_s),
        lending_margin_s=amount("lending_margin_s", default.lending_margin_s),
        swap_mib_per_s=swap_rates,
    )
    entry.close()
    return policy
