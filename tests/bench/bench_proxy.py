"""What the proxy costs: CPU for each streamed chunk, added delay, memory. Peers take turns in the same run.

The floor is a raw byte relay on the same event loop (uvloop); beside it stand nginx (buffering off, when
installed) and aiohttp, used in the plain way (web.run_app's: the standard loop) and on uvloop; "pass-only" is
the sidecar without its meter. CPU is the whole process's
(the clock of that process). Delays are from the source's write to the client's read, so "added" is the
difference to the same load without anything between.

On a starved machine chunks of a stream run together and pass as one, which tells nothing about the cost of
one: such windows are taken again, and where none was clean the figure is marked with a star.

Options: ``--long`` sends a million chunks for the memory line (else 100,000).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median

import uvloop

from tests.bench.proxy_peers import open_files

STREAMS, PERIOD_MS = 64, 20
ROUNDS, WINDOW_S, RETAKES = 4, 0.6, 2
WINDOWS, DELAY_LIMIT_S = 10, 4.0  # for delays: so many windows, but no more begun after the limit
TOGETHER = 1.02  # chunks to a read, at most
_MARK = b'"content":" '


@dataclass
class Process:
    """Something that listens; ``errors`` is what it wrote to standard error."""

    name: str
    port: int
    pids: list[int]
    errors: Path | None = None

    def cpu_ns(self) -> int:
        """CPU time so far. Linux makes a clock id of a pid: (~pid << 3) | 2, where 2 is CPUCLOCK_SCHED."""
        return sum(time.clock_gettime_ns((~pid << 3) | 2) for pid in self.pids)

    def rss_mb(self) -> float:
        """Resident memory in MB."""
        pages = int(Path(f"/proc/{self.pids[0]}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


@contextmanager
def python_peer(kind: str, upstream: int = 0) -> Iterator[Process]:
    """One of the kinds of proxy_peers."""
    with tempfile.NamedTemporaryFile("w+") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.bench.proxy_peers", kind, str(upstream)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
        )  # fmt: skip
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            yield Process(kind, int(process.stdout.readline()), [process.pid], Path(errors.name))
        finally:
            process.stdin.close()
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()


_NGINX = """
daemon off; master_process off; pid {dir}/pid; error_log {dir}/error.log;
events {{ worker_connections 8192; }}
http {{
  access_log off; client_body_temp_path {dir}/b; proxy_temp_path {dir}/p; fastcgi_temp_path {dir}/f;
  uwsgi_temp_path {dir}/u; scgi_temp_path {dir}/s;
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://127.0.0.1:{upstream}; proxy_http_version 1.1; proxy_buffering off;
      proxy_request_buffering off; proxy_set_header Connection ""; proxy_read_timeout 600s;
    }}
  }}
}}
"""


@contextmanager
def nginx_peer(upstream: int) -> Iterator[Process | None]:
    """nginx as one process, or None where it is not installed."""
    if shutil.which("nginx") is None:
        yield None
        return
    port = _free_port()
    with tempfile.TemporaryDirectory() as folder:
        conf = Path(folder) / "nginx.conf"
        conf.write_text(_NGINX.format(dir=folder, port=port, upstream=upstream))
        process = subprocess.Popen(["nginx", "-c", str(conf)], stderr=subprocess.DEVNULL)
        try:
            for _ in range(100):
                if Path(f"{folder}/pid").exists():
                    break
                time.sleep(0.02)
            time.sleep(0.1)
            yield Process("nginx", port, [process.pid])
        finally:
            process.terminate()
            process.wait(5)


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Tally:
    """What the client side of a run counted."""

    chunks: int = 0
    reads: int = 0
    ended: int = 0
    cut: int = 0
    delays_ns: list[int] = field(default_factory=list)


class Reader(asyncio.Protocol):
    """One stream: counts its chunks."""

    def __init__(self, target: str, tally: Tally) -> None:
        self.request = (
            f"POST {target}/v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 15\r\n\r\n".encode()
        )
        self.request += b'{"stream":true}'
        self.tally = tally
        self.transport: asyncio.Transport
        self.timed = False  # note each chunk's delay
        self.first_ns = 0
        self.sent_ns = 0
        self.started = asyncio.get_running_loop().create_future()
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self.sent_ns = time.monotonic_ns()
        self.transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        now = time.monotonic_ns()
        tally = self.tally
        tally.reads += 1
        passed = data.count(_MARK)
        tally.chunks += passed
        if passed and not self.first_ns:
            self.first_ns = now
            self.started.set_result(None)
        if self.timed and passed == 1:
            at = data.find(_MARK)
            if len(data) >= at + 32:
                tally.delays_ns.append(now - int(data[at + 12 : at + 32]))
        if data.endswith(b"0\r\n\r\n") and not self.done.done():
            tally.ended += 1
            self.done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self.tally.cut += not self.done.done()
        for future in (self.started, self.done):
            if not future.done():
                future.set_exception(exc or ConnectionError("the stream was cut"))
                future.exception()


async def open_streams(port: int, targets: list[str], tally: Tally) -> list[Reader]:
    """Connect all and wait for each one's first chunk."""
    loop = asyncio.get_running_loop()
    readers = []
    for target in targets:
        _, reader = await loop.create_connection(partial(Reader, target, tally), "127.0.0.1", port)
        readers.append(reader)
    async with asyncio.timeout(60):
        for reader in readers:
            await reader.started
    return readers


def close(readers: list[Reader]) -> None:
    """Leave."""
    for reader in readers:
        reader.done.cancel()
        reader.transport.abort()


def paced(streams: int, spread: bool) -> list[str]:
    """Targets of streams that tick together (as an engine does), or spread over the period."""
    return [f"/paced/{PERIOD_MS}/100000/{n * 1000 // streams if spread else 0}" for n in range(streams)]


async def cpu_per_chunk_us(process: Process, streams: int) -> tuple[float, bool]:
    """CPU of ``process`` for each chunk that passes, in microseconds; and whether chunks came one by one."""
    tally = Tally()
    readers = await open_streams(process.port, paced(streams, spread=False), tally)
    await asyncio.sleep(0.3)
    best = (float("inf"), 0.0)
    for _ in range(RETAKES):
        cpu, chunks, reads = process.cpu_ns(), tally.chunks, tally.reads
        await asyncio.sleep(WINDOW_S)
        passed = tally.chunks - chunks
        if not passed:
            continue
        best = min(best, (passed / (tally.reads - reads), (process.cpu_ns() - cpu) / passed / 1000))
        if best[0] <= TOGETHER:
            break
    close(readers)
    await asyncio.sleep(0.05)
    if tally.cut or not best[1]:
        raise SystemExit(f"{process.name}: {tally.cut} streams were cut, {tally.chunks} chunks came")
    return best[1], best[0] <= TOGETHER


def p99(values: list[int]) -> float:
    """Nearest rank, in milliseconds."""
    return sorted(values)[-(-99 * len(values) // 100) - 1] / 1e6


async def delays_ms(port: int, streams: int) -> tuple[float, float]:
    """p99 of a chunk's delay and of a new connection's time to first byte under that load, best window."""
    tally, side = Tally(), Tally()
    readers = await open_streams(port, paced(streams, spread=True), tally)
    for reader in readers[::4]:
        reader.timed = True
    await asyncio.sleep(0.3)
    chunk = first = float("inf")
    limit = time.monotonic() + DELAY_LIMIT_S
    for _ in range(WINDOWS):
        tally.delays_ns.clear()
        firsts: list[int] = []
        while len(firsts) < 40 and (len(firsts) < 10 or time.monotonic() < limit):
            (one,) = await open_streams(port, ["/paced/1/1/0"], side)
            firsts.append(one.first_ns - one.sent_ns)
            close([one])
            await asyncio.sleep(0.008)
        chunk, first = min(chunk, p99(tally.delays_ns)), min(first, p99(firsts))
        if time.monotonic() > limit:
            break
    close(readers)
    await asyncio.sleep(0.05)
    return chunk, first


async def many_chunks(process: Process, total: int) -> tuple[float, float, float]:
    """RSS (MB) after the first third of the chunks and after all of them, and chunks per second.

    Answers of 400 tokens, 64 at a time, as fast as they go: what an answer holds while it runs is let go.
    """
    tally = Tally()
    begin, before = time.monotonic(), 0.0
    while tally.chunks < total:
        readers = await open_streams(process.port, ["/fast/0/400/0"] * STREAMS, tally)
        await asyncio.gather(*(reader.done for reader in readers))
        close(readers)
        await asyncio.sleep(0.01)
        if not before and tally.chunks >= total / 3:
            before = process.rss_mb()
    return before, process.rss_mb(), tally.chunks / (time.monotonic() - begin)


async def open_memory(process: Process, count: int) -> float:
    """RSS (MB) with so many streams open, each after its first chunks."""
    readers = await open_streams(process.port, ["/paced/500/100000/0"] * count, Tally())
    await asyncio.sleep(1.2)
    rss = process.rss_mb()
    close(readers)
    return rss


def ratio(values: list[float], floors: list[float]) -> float:
    """Median of the rounds' ratios: what else the machine does weighs on both of a round."""
    return median(value / floor for value, floor in zip(values, floors, strict=True))


def line(name: str, figure: str, ratio: str, target: str, ok: bool | None) -> bool:
    """Print one row; what has no target is always fine."""
    print(
        f"{name:<46} {figure:>12} {ratio:>9}  {target:<18} {'' if ok is None else 'ok' if ok else 'MISSED'}"
    )
    return ok is not False


async def bench(total: int) -> bool:
    """Run everything; True when every target is met."""
    ok = True
    with ExitStack() as stack:
        source = stack.enter_context(python_peer("source"))
        peers = [
            stack.enter_context(python_peer(kind, source.port))
            for kind in ("relay", "sidecar", "pass-only", "aiohttp", "aiohttp-uvloop")
        ]
        nginx = stack.enter_context(nginx_peer(source.port))
        if nginx is not None:
            peers.append(nginx)
        own = peers[1]
        used: dict[str, list[float]] = {peer.name: [] for peer in peers}
        starved: set[str] = set()
        for _ in range(ROUNDS):
            for peer in peers:
                value, clean = await cpu_per_chunk_us(peer, STREAMS)
                used[peer.name].append(value)
                starved |= set() if clean else {peer.name}
        print(f"CPU per chunk, {STREAMS} streams x {1000 // PERIOD_MS} chunks/s, median of {ROUNDS} rounds")
        labels = {
            "relay": "relay (uvloop)",
            "aiohttp": "aiohttp (standard loop)",
            "aiohttp-uvloop": "aiohttp (uvloop)",
        }
        for name, values in used.items():
            floor = ratio(values, used["relay"])
            good = floor <= 1.5 if name == "sidecar" else None
            target = "<= 1.5x relay" if name == "sidecar" else ""
            shown = f"{median(values):.1f} us{'*' if name in starved else ''}"
            ok &= line(f"  {labels.get(name, name)}", shown, f"{floor:.2f}x", target, good)
        share = ratio(used["sidecar"], used["aiohttp"])
        ok &= line("  sidecar to plain aiohttp (standard loop)", "", f"{share:.2f}x", "<= 0.5x", share <= 0.5)
        share = ratio(used["sidecar"], used["aiohttp-uvloop"])
        ok &= line("  sidecar to aiohttp on uvloop", "", f"{share:.2f}x", "", None)
        if nginx is None:
            print("nginx: skipped, it is not installed")

        rate = 1e6 / median(used["sidecar"])
        streams = max(8, int(rate / 2 * PERIOD_MS / 1000))
        direct, through = await delays_ms(source.port, streams), await delays_ms(own.port, streams)
        print(f"own maximum {rate:.0f} chunks/s on one core; delays at half of it ({streams} streams), p99")
        for name, before, after in zip(("chunk", "first byte"), direct, through, strict=True):
            ok &= line(f"  {name}: direct", f"{before:.2f} ms", "", "", None)
            ok &= line(f"  {name}: added", f"{after - before:.2f} ms", "", "<= 1 ms", after - before <= 1)

        before, after, rate = await many_chunks(own, total)
        name = f"memory growth over {total:,} chunks"
        ok &= line(name, f"{after - before:+.1f} MB", "", "<= 5 MB", after - before <= 5)
        print(f"{'chunks/s while doing so, 64 streams':<46} {rate:>12,.0f}")
        rss = await open_memory(own, 2000)
        ok &= line("memory, 2,000 open streams", f"{rss:.0f} MB", "", "< 150 MB", rss < 150)
        said = own.errors.read_text() if own.errors else ""
        ok &= line("everything was observed", said.strip() or "yes", "", "", not said)
    return ok


def main() -> int:
    """Print the table; 1 when a target is missed."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--long", action="store_true", help="a million chunks for the memory line")
    long = options.parse_args().long
    open_files()
    return 0 if uvloop.run(bench(1_000_000 if long else 100_000)) else 1


if __name__ == "__main__":
    sys.exit(main())
