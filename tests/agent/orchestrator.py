"""A small real orchestrator for tests of the agent: it speaks the protocol and remembers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from scheduling.agent.protocol import (
    Acknowledged,
    AttemptReport,
    AttemptSpec,
    Desired,
    Loan,
    LoanReport,
    Report,
    SampleBatch,
    decode,
    encode,
)

TOKEN = "a-token-for-tests"
PATIENCE_S = 60.0


class _Server(ThreadingHTTPServer):
    def handle_error(self, *_arguments: object) -> None:
        """An agent that is killed breaks off its requests."""


class Orchestrator:
    """Serves desired state at 127.0.0.1, keeps reports and samples."""

    def __init__(self) -> None:
        self.wanted: dict[str, AttemptSpec] = {}
        self.settled: list[str] = []
        self.loans: dict[str, Loan] = {}
        self.settled_loans: list[str] = []
        self.reports: list[Report] = []
        self.batches: list[SampleBatch] = []
        self.is_away = False
        self._heard = threading.Condition()
        self._server = _Server(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def want(self, *specs: AttemptSpec) -> None:
        self.wanted |= {each.attempt_id: each for each in specs}

    def until(self, is_true: Callable[[], object]) -> None:
        """Wait for reports until something holds."""
        deadline = time.monotonic() + PATIENCE_S
        with self._heard:
            while not is_true():
                self._heard.wait(1.0)
                if time.monotonic() > deadline:
                    raise AssertionError(f"never reported; last: {self.reports[-1:]}")

    def seen(self, wanted: AttemptSpec) -> AttemptReport | None:
        """The last report of an attempt."""
        attempts = self.reports[-1].attempts if self.reports else []
        return next((each for each in attempts if each.attempt_id == wanted.attempt_id), None)

    def lend(self, *loans: Loan) -> None:
        self.loans |= {each.loan_id: each for each in loans}

    def seen_loan(self, loan: Loan) -> LoanReport | None:
        """The last report of a loan."""
        loans = self.reports[-1].loans if self.reports else []
        return next((each for each in loans if each.loan_id == loan.loan_id), None)

    def answer(self, method: str, path: str, body: bytes) -> bytes | None:
        with self._heard:
            self._heard.notify_all()
            if (method, path) == ("POST", "/agent/v1/report"):
                self.reports.append(decode(body, Report))
                return encode(Acknowledged(list(self.settled), list(self.settled_loans)))
            if (method, path) == ("POST", "/agent/v1/samples"):
                self.batches.append(decode(body, SampleBatch))
                return b""
            if (method, path) == ("GET", "/agent/v1/desired?zone=local"):
                loans = list(self.loans.values())
                return encode(Desired("local", list(self.wanted.values()), loans=loans))
        return None

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _do(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                is_known = self.headers["Authorization"] == f"Bearer {TOKEN}"
                answer = owner.answer(self.command, self.path, body) if is_known else None
                if owner.is_away or answer is None:
                    self.send_error(503 if owner.is_away else 401)
                    return
                self.send_response(200)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            do_GET = do_POST = _do

            def log_message(self, *_arguments: object) -> None:
                pass

        return Handler
