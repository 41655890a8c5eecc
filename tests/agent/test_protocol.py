"""Messages of one version are read by the other: what an older side leaves out has a meaning."""

from __future__ import annotations

import json

import msgspec
import pytest

from scheduling.agent.protocol import (
    Acknowledged,
    AttemptPhase,
    AttemptReport,
    Desired,
    IdleReport,
    Loan,
    LoanEnd,
    LoanReport,
    LoanState,
    NodeReport,
    ProtocolError,
    Report,
    SwapReport,
    SwapState,
    decode,
    encode,
)
from tests.agent.driver import spec

NODE = NodeReport("sim-t4-1", 1000, 1024, {}, [], is_simulated=True, is_isolated=True)


def report() -> Report:
    """A report with a swapped-out session and its loan."""
    session = AttemptReport(
        "session",
        AttemptPhase.RUNNING,
        swap=SwapReport(SwapState.SWAPPED_OUT, bytes_on_host=5 << 30),
        idle=IdleReport(gpu_idle_since=5.5, missing=["kernels"]),
    )
    loan = LoanReport("loan", LoanState.LENT, swapped_out_bytes=5 << 30, out_s=0.45, lent_at=7.5)
    return Report("local", 8.0, "unix:/r", "secret", [NODE], [session], loans=[loan])


def test_what_is_said_of_loans_arrives_as_it_was() -> None:
    loan = Loan("loan", "session", "training", ["GPU-1"], idle_s=120.0)
    desired = Desired("local", [spec("true")], loans=[loan], swap_host_mib={"sim-t4-1": 1024})
    assert decode(encode(desired), Desired) == desired
    assert decode(encode(report()), Report) == report()
    settled = Acknowledged([], ["loan"])
    assert decode(encode(settled), Acknowledged) == settled


def test_an_older_orchestrators_desired_state_lends_nothing() -> None:
    old = json.loads(encode(Desired("local", [spec("true")])))
    for name in ("loans", "swap_host_mib"):
        del old[name]
    for name in ("is_swappable", "idle", "language"):
        del old["attempts"][0][name]
    read = decode(json.dumps(old).encode(), Desired)
    assert read.loans == []
    assert read.attempts[0].is_swappable
    assert read.attempts[0].idle.cpu_fraction == 0.1
    assert decode(b'{"settled": ["a"]}', Acknowledged).settled_loans == []


def test_an_older_agents_report_knows_nothing_of_swap() -> None:
    old = msgspec.to_builtins(report())
    del old["loans"]
    for name in ("swap", "idle"):
        del old["attempts"][0][name]
    for name in ("swap_mechanism", "swap_note", "fraction_note"):
        del old["nodes"][0][name]
    read = decode(json.dumps(old).encode(), Report)
    assert (read.loans, read.attempts[0].swap, read.attempts[0].idle) == ([], None, None)
    assert read.nodes[0].swap_mechanism == ""


def test_a_state_that_nobody_defined_is_refused_by_its_field() -> None:
    broken = encode(report()).replace(b'"lent"', b'"borrowed"')
    with pytest.raises(ProtocolError, match=r"borrowed.*loans"):
        decode(broken, Report)


def test_ends_of_loans_are_the_words_of_the_contract() -> None:
    assert {end.value for end in LoanEnd} >= {
        "cell", "cuda_call", "button", "borrower_ended", "orchestrator", "failed"
    }  # fmt: skip
