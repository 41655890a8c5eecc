"""How soon a hundred open *Live* pages have a new picture of a thousand GPUs, and what that costs.

A whole Allot of the bench's own; a few agents, each of a zone and in a process of its own, report
the nodes and send their samples as agents do: a batch per node, one after another, spread over each
interval. Pages are real WebSockets with a login, each with every node on its screen.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import multiprocessing
import os
import secrets
import time
from argparse import ArgumentParser
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from pathlib import Path
from random import Random
from typing import Any

import httpx
from websockets.asyncio.client import ClientConnection, connect
from websockets.typing import Origin

from scheduling.agent.protocol import DeviceReport, NodeReport, Report, SampleBatch, encode
from scheduling.management.benches import figures
from scheduling.management.benches.figures import Bench, at_least, figure
from scheduling.management.stack import Stack, running
from telemetry.messages import Sample

GPUS_PER_NODE = 8
MEMORY_MIB = 15_360
WARMUP_S = 8.0
MAX_MESSAGE_BYTES = 16 * 1024 * 1024
LATENCY_TARGET_S = 0.5
CPU_TARGET = 1.0


@dataclass(slots=True)
class Heard:
    """What one page received while it was measured: when, and what.

    Read only afterwards: a hundred browsers read at the same time, this process one after another.
    """

    messages: list[tuple[float, str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Moment:
    """When measuring began or ended, and what the web process had used by then."""

    at: float
    web_cpu_s: float


@dataclass(frozen=True, slots=True)
class Post:
    """A batch that was taken in: when that was, and how long it took."""

    at: float
    seconds: float


def stream(options: Mapping[str, Any]) -> figures.Report:
    """Start, let it settle, measure."""
    num_nodes = -(-options["gpus"] // GPUS_PER_NODE)
    nodes = [f"bench-{number:04}" for number in range(num_nodes)]
    with running(Stack) as stack:
        agents = [
            _Agent(stack.url, f"bench-{number}", tuple(nodes[number :: options["agents"]]))
            for number in range(options["agents"])
        ]
        for agent in agents:
            _register(stack, agent)
        posts: list[Post] = []
        with _sending(agents, options["every"], posts):
            web = web_process(stack)
            marks: list[Moment] = []
            mark = partial(_mark, marks, web)
            heard = asyncio.run(_visits(stack, options, mark))
    measured = [post for post in posts if marks[0].at <= post.at < marks[1].at]
    return _report(options, heard, marks, measured)


def _mark(marks: list[Moment], web: int) -> None:
    marks.append(Moment(time.time(), used_cpu_s(web)))


def _report(
    options: Mapping[str, Any],
    heard: Sequence[Heard],
    marks: Sequence[Moment],
    posts: Sequence[Post],
) -> figures.Report:
    seconds = marks[1].at - marks[0].at
    for page in heard:
        if len(page.messages) < seconds / 3:
            raise AssertionError(f"a page got {len(page.messages)} messages in {seconds:.0f} s")
    latencies, ages = _delays(heard)
    sizes = [sum(len(text) for _, text in page.messages) for page in heard]
    asked = -(-options["gpus"] // GPUS_PER_NODE) / options["every"]
    cpu_s = marks[1].web_cpu_s - marks[0].web_cpu_s
    return figures.Report(
        params={name: options[name] for name in ("gpus", "clients", "seconds", "every", "agents")},
        figures={
            "latency_s": figure(latencies, "s", LATENCY_TARGET_S),
            "sample_to_page_s": figure(ages, "s"),
            "web_cpu_fraction": figure([cpu_s / seconds], "cores", CPU_TARGET),
            "bytes_per_client_s": figure([size / seconds for size in sizes], "B/s"),
            "messages_per_client_s": figure(
                [len(page.messages) / seconds for page in heard], "1/s"
            ),
            "batches_per_s": figure([len(posts) / seconds], "1/s", asked),
            "batch_post_s": figure([post.seconds for post in posts], "s"),
        },
        phases={},
    )


def _delays(heard: Sequence[Heard]) -> tuple[list[float], list[float]]:
    """Seconds until each picture was here: from its moment, and from each node's sample."""
    latencies, ages = [], []
    for page in heard:
        for at, text in page.messages:
            content = json.loads(text)
            latencies.append(at - content["at"])
            ages += [at - sampled_at for sampled_at in content["heard"].values()]
    return latencies, ages


# ---------------------------------------------------------------- pages


async def _visits(stack: Stack, options: Mapping[str, Any], mark: Any) -> list[Heard]:
    """Open all pages, let them settle, listen for as long as is measured."""
    names = stack.rows("SELECT id FROM scheduling_node WHERE name LIKE 'bench-%%'")
    nodes = [int(str(pk)) for (pk,) in names]
    with stack.client("admin") as client:
        cookie = "; ".join(f"{name}={value}" for name, value in client.cookies.items())
    address = stack.url.replace("http", "ws") + "/ws/squares"
    sockets = [
        await connect(
            address,
            origin=Origin(stack.url),
            additional_headers={"Cookie": cookie},
            max_size=MAX_MESSAGE_BYTES,
        )
        for _ in range(options["clients"])
    ]
    heard = [Heard() for _ in sockets]
    listening = [
        asyncio.create_task(_listen(socket, page, nodes))
        for socket, page in zip(sockets, heard, strict=True)
    ]
    await asyncio.sleep(WARMUP_S)
    for page in heard:
        page.messages.clear()
    mark()
    await asyncio.sleep(options["seconds"])
    mark()
    for task in listening:
        task.cancel()
    await asyncio.gather(*listening, return_exceptions=True)
    await asyncio.gather(*(socket.close() for socket in sockets))
    return heard


async def _listen(socket: ClientConnection, page: Heard, nodes: Sequence[int]) -> None:
    await socket.send(json.dumps({"watch": list(nodes)}))
    async for text in socket:
        page.messages.append((time.time(), str(text)))


# ---------------------------------------------------------------- nodes


@dataclass(frozen=True, slots=True)
class _Agent:
    """Who reports some nodes, in a zone of its own, and sends what they measure."""

    url: str
    zone: str
    nodes: tuple[str, ...]
    token: str = field(default_factory=secrets.token_urlsafe)

    def client(self) -> httpx.Client:
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=30)


def _register(stack: Stack, agent: _Agent) -> None:
    """A zone, and in it the nodes."""
    stack.rows(
        "INSERT INTO scheduling_zone (name, token_hash, relay_url, relay_secret, clock_skew_s,"
        " is_stopping) VALUES (%s, %s, '', '', 0, false) RETURNING id",
        agent.zone,
        hashlib.sha256(agent.token.encode()).hexdigest(),
    )
    report = Report(
        zone=agent.zone,
        sent_at=time.time(),
        relay_url="",
        relay_secret="",
        nodes=[_node(name) for name in agent.nodes],
        attempts=[],
    )
    with agent.client() as client:
        client.post("/agent/v1/report", content=encode(report)).raise_for_status()


@contextmanager
def _sending(agents: Sequence[_Agent], every_s: float, posts: list[Post]) -> Iterator[None]:
    """Samples come while this is open; then `posts` has them all.

    In processes of their own, so that what they do does not hold up the pages' messages here.
    """
    context = multiprocessing.get_context("spawn")
    is_over = context.Event()
    senders = []
    for number, agent in enumerate(agents):
        here, there = context.Pipe(duplex=False)
        # Evenly spread over all agents too.
        delay_s = every_s * number / sum(len(one.nodes) for one in agents)
        work = (agent, every_s, delay_s, is_over, there)
        process = context.Process(target=_send, args=work, daemon=True)
        process.start()
        there.close()
        senders.append((process, here))
    try:
        yield
    finally:
        is_over.set()
        for process, here in senders:
            with suppress(EOFError):
                posts += here.recv()
            process.join()
    if any(process.exitcode for process, _ in senders):
        raise AssertionError("an agent's samples were refused, see above")


def _send(
    agent: _Agent, every_s: float, delay_s: float, is_over: Event, result: Connection
) -> None:
    """A batch per node and interval, one after another; what is late is not left out."""
    random, gap_s = Random(agent.zone), every_s / len(agent.nodes)
    due, number = time.monotonic() + delay_s, 0
    posts: list[Post] = []
    with agent.client() as client:
        while not is_over.wait(max(0.0, due - time.monotonic())):
            node = agent.nodes[number % len(agent.nodes)]
            began = time.monotonic()
            batch = encode(_batch(agent.zone, node, number, random))
            client.post("/agent/v1/samples", content=batch).raise_for_status()
            posts.append(Post(time.time(), time.monotonic() - began))
            number += 1
            due += gap_s
    result.send(posts)


def _batch(zone: str, node: str, number: int, random: Random) -> SampleBatch:
    now = time.time()
    devices = [
        Sample(
            f"device:GPU-{node}-{index}",
            now,
            {
                "gpu_util_percent": random.uniform(0, 100),
                "memory_used_mib": random.uniform(0, MEMORY_MIB),
                "power_w": random.uniform(30, 300),
                "temperature_c": random.uniform(35, 80),
            },
        )
        for index in range(GPUS_PER_NODE)
    ]
    own = Sample(f"node:{node}", now, {"cpu_cores": random.uniform(0, 32)})
    return SampleBatch(zone, node, f"b{number}", [*devices, own])


def _node(name: str) -> NodeReport:
    return NodeReport(
        name=name,
        cpu_milli=32_000,
        memory_mib=131_072,
        labels={"allot/node-type": "t4"},
        devices=[
            DeviceReport(
                uuid=f"GPU-{name}-{index}", index=index, model="Tesla T4", memory_mib=MEMORY_MIB
            )
            for index in range(GPUS_PER_NODE)
        ],
        is_simulated=True,
        is_isolated=True,
    )


# ---------------------------------------------------------------- the web process


def web_process(stack: Stack) -> int:
    """The process that listens on the stack's port.

    Raises:
        LookupError: there is none among its children.
    """
    if stack.process is None:
        raise LookupError("the stack has not started")
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if parent == stack.process.pid and any(b"config.asgi" in word for word in words):
            return int(folder.name)
    raise LookupError("no child of the stack serves config.asgi")


def used_cpu_s(process: int) -> float:
    """CPU time of a process so far."""
    words = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def _add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--gpus", type=at_least(1), default=1000)
    parser.add_argument("--clients", type=at_least(1), default=100, help="so many open pages")
    parser.add_argument("--seconds", type=float, default=30.0, help="for so long it is measured")
    parser.add_argument("--every", type=float, default=5.0, help="s between samples of a node")
    parser.add_argument(
        "--agents", type=at_least(1), default=4, help="send them; each has its own nodes"
    )


BENCHES = {"stream": Bench("a thousand GPUs on a hundred open pages", _add_arguments, stream, 1, 0)}
