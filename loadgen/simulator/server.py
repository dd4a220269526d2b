"""The simulator behind a socket: an aiohttp server around one engine that runs in real time.

One task runs the engine: it begins a step, sleeps until the step's end on the monotonic clock, and hands
out the tokens, one write to each connection that got any. A request costs no task of its own while it
streams; its handler only waits for the end. When the machine is late, the next step still begins where the
last one was due to end, so that the rate stays true, and how late it ever was is told at ``/simulator``.
"""

from __future__ import annotations

import asyncio
import platform
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from aiohttp import web
from aiohttp.http import HttpVersion11

from loadgen.simulator.engine import Emission, Engine, FinishReason
from loadgen.simulator.faults import HEADER, FaultPlan, Faults, parse_faults, plan_faults
from loadgen.simulator.metrics import CONTENT_TYPE, render_page
from loadgen.simulator.model import TruePoint, true_peak
from loadgen.simulator.profile import Profile
from loadgen.simulator.text import answer_token, chat_tokens, count_tokens, cut_at_stop, token_ids
from loadgen.simulator.wire import (
    Ask,
    Endpoint,
    RefusedError,
    Reply,
    check_model,
    error_body,
    message_texts,
    read_ask,
    read_object,
)
from sidecar.errors import UserError

VLLM_VERSION = "0.32.0"  # whose page and protocol this imitates
MAX_BODY_BYTES = 32 * 1024 * 1024
# Further behind than this the machine was stopped or hopeless: going on at the old pace would be a burst,
# not a rate.
MAX_BEHIND_NS = 250_000_000
_NEVER_NS = 2**63


def _product_version() -> str:
    try:
        return version("vllm-goodput")
    except PackageNotFoundError:
        return "0"


@dataclass(slots=True)
class _Plan:
    """What one choice will say."""

    start: int  # seed of its words
    tokens: int
    finish_reason: FinishReason
    stop_reason: str | None = None
    stop_text: str = ""  # with a stop string: the whole text up to it
    said: int = 0  # characters of it that are out

    def text(self, number: int) -> str:
        word = answer_token(self.start, number)
        if self.stop_reason is None:
            return word
        shown = self.stop_text[self.said : self.said + len(word)]
        self.said += len(shown)
        return shown


@dataclass(slots=True, eq=False)
class _Exchange:
    """One HTTP request that is being answered."""

    reply: Reply
    fault: FaultPlan
    done: asyncio.Event
    transport: asyncio.Transport | None
    chunked: bool
    plans: list[_Plan]
    sequence_ids: list[int] = field(default_factory=list)
    open_choices: int = 0
    tokens: int = 0
    pending: list[str] = field(default_factory=list)
    broken: bool = False

    def write(self, text: str) -> None:
        """Straight to the transport: aiohttp's own write is a coroutine with flow control for each chunk.

        None is needed here: what one answer can leave unread is bounded by the context length.
        """
        transport = self.transport
        if not text or transport is None or transport.is_closing():
            return
        data = text.encode("ascii")
        transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self.chunked else data)


class Simulator:
    """The server: ``await start()``, read ``port``, ``await close()``; ``failed`` set: the engine broke."""

    def __init__(
        self,
        profile: Profile,
        *,
        seed: int = 0,
        host: str = "127.0.0.1",
        port: int = 0,
        faults: Faults | None = None,
        max_queued: int | None = None,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.profile = profile
        self.engine = Engine(profile)
        self.failed: asyncio.Event = asyncio.Event()
        self._seed = seed
        self._host = host
        self._want_port = port
        self._faults = faults or Faults()
        self._max_queued = max_queued
        self._clock_ns = clock_ns
        self._owners: dict[int, tuple[_Exchange, int]] = {}
        self._wake = asyncio.Event()
        self._requests = 0
        self._http: Counter[tuple[str, str, str]] = Counter()
        self._behind_max_ns = 0
        self._step_ends_ns = _NEVER_NS
        self._started_wall_s = time.time()
        self._version = _product_version()
        self._runner: web.AppRunner | None = None
        self._task: asyncio.Task[None] | None = None
        self._port = 0
        self._true_peak: TruePoint | None = None

    @property
    def port(self) -> int:
        return self._port

    @property
    def url(self) -> str:
        return f"http://{self._host}:{self._port}"

    async def start(self) -> None:
        """Bind and begin; raises :class:`UserError` where the address cannot be had."""
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[self._count])
        app.on_response_prepare.append(self._name_server)
        app.router.add_get("/health", self._health)
        app.router.add_get("/version", self._get_version)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/simulator", self._about)
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_post("/v1/completions", self._completions)
        app.router.add_post("/v1/chat/completions", self._chat)
        # handler_cancellation: a client that leaves cancels its handler, queued or streaming.
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._host, self._want_port, backlog=1024)
        try:
            await site.start()
        except OSError as error:
            await self._runner.cleanup()
            raise UserError(f"cannot listen on {self._host}:{self._want_port}: {error.strerror}") from None
        self._port = self._runner.addresses[0][1]
        self._task = asyncio.create_task(self._run_engine(), name="simulator engine")
        self._task.add_done_callback(self._engine_ended)

    async def close(self) -> None:
        """Stop the engine and close every connection."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._runner is not None:
            await self._runner.cleanup()

    # --- the engine in real time
    # ---------------------------------------------------------------------------------

    def _engine_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self.failed.set()

    @property
    def failure(self) -> BaseException | None:
        """Why the engine task ended, where it did."""
        if self._task is None or not self._task.done() or self._task.cancelled():
            return None
        return self._task.exception()

    async def _run_engine(self) -> None:
        engine, clock_ns = self.engine, self._clock_ns
        at_ns = clock_ns()
        while True:
            step = engine.begin_step(at_ns)
            if step is None:
                self._step_ends_ns = _NEVER_NS
                await self._idle(engine.next_wake_ns())
                at_ns = clock_ns()
                continue
            at_ns += step.duration_ns
            self._step_ends_ns = at_ns
            # At least one turn of the event loop a step, however late, or no request would ever be read.
            await asyncio.sleep(max(0, at_ns - clock_ns()) / 1e9)
            self._deliver(engine.end_step(at_ns))
            behind_ns = clock_ns() - at_ns
            self._behind_max_ns = max(self._behind_max_ns, behind_ns)
            if behind_ns > MAX_BEHIND_NS:
                at_ns += behind_ns
                self._step_ends_ns = at_ns

    async def _idle(self, until_ns: int | None) -> None:
        self._wake.clear()
        timeout_s = None if until_ns is None else max(0, until_ns - self._clock_ns()) / 1e9
        try:
            await asyncio.wait_for(self._wake.wait(), timeout_s)
        except TimeoutError:
            pass

    def _deliver(self, emissions: list[Emission]) -> None:
        touched: dict[_Exchange, None] = {}
        for emission in emissions:
            exchange, index = self._owners[emission.sequence_id]
            if exchange.broken:
                continue
            plan = exchange.plans[index]
            event = exchange.reply.token(
                index,
                plan.text(emission.number),
                emission.finish_reason,
                plan.stop_reason if emission.finish_reason else None,
            )
            exchange.pending.append(event)
            exchange.tokens += 1
            touched[exchange] = None
            if emission.finish_reason is not None:
                exchange.open_choices -= 1
            self._break_if_planned(exchange)
        for exchange in touched:
            if exchange.open_choices == 0 and not exchange.broken and exchange.reply.ask.stream:
                exchange.pending.append(exchange.reply.end())
            exchange.write("".join(exchange.pending))
            exchange.pending.clear()
            if exchange.broken and exchange.fault.drop_after is not None and exchange.transport is not None:
                exchange.transport.close()
            if exchange.open_choices == 0 or exchange.broken:
                exchange.done.set()

    def _break_if_planned(self, exchange: _Exchange) -> None:
        fault = exchange.fault
        if fault.error_event_after is not None and exchange.tokens >= fault.error_event_after:
            if exchange.reply.ask.stream:
                exchange.pending.append(exchange.reply.error_event("injected fault"))
            exchange.broken = True
        elif fault.drop_after is not None and exchange.tokens >= fault.drop_after:
            exchange.broken = True

    # --- generating
    # ------------------------------------------------------------------------------------------------

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        return await self._generate("completions", request)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._generate("chat", request)

    async def _generate(self, endpoint: Endpoint, request: web.Request) -> web.StreamResponse:
        number = self._requests
        self._requests += 1
        rng = random.Random(f"{self._seed}:{number}")
        ask = read_ask(endpoint, await request.read(), self.profile)
        fault = self._fault_of(request, rng)
        if fault.status is not None:
            return self._refusal(fault.status, "injected fault", fault.retry_after_s)
        if self._max_queued is not None and len(self.engine.waiting) >= self._max_queued:
            self.engine.stats.queue_rejections += 1
            return self._refusal(503, "the queue is full", 1.0)
        reply = Reply(
            ask,
            request_id=f"{rng.getrandbits(64):016x}",
            created_s=int(time.time()),
            fingerprint=f"simulator-{self._version}",
        )
        exchange = _Exchange(
            reply=reply,
            fault=fault,
            done=asyncio.Event(),
            transport=request.transport,
            chunked=request.version >= HttpVersion11,
            plans=[self._plan(ask, prompt, rng) for prompt in ask.prompts for _ in range(ask.n)],
        )
        response: web.StreamResponse | None = None
        if ask.stream:
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
            if exchange.chunked:
                response.enable_chunked_encoding()
            else:
                response.force_close()
            await response.prepare(request)
        self.engine.stats.request_n.observe(ask.n)
        try:
            self._submit(exchange)
            await exchange.done.wait()
        finally:
            self._forget(exchange)
        if response is not None:
            if not exchange.broken or fault.error_event_after is not None:
                await response.write_eof()
            return response
        if exchange.broken:
            if fault.drop_after is not None:
                raise ConnectionResetError("injected fault")
            return self._refusal(500, "injected fault", None)
        return web.json_response(reply.whole())

    def _fault_of(self, request: web.Request, rng: random.Random) -> FaultPlan:
        faults = self._faults
        if (header := request.headers.get(HEADER)) is not None:
            try:
                faults = parse_faults(header, where=HEADER)
            except UserError as error:
                raise RefusedError(400, str(error)) from None
        return plan_faults(faults, rng)

    def _refusal(self, status: int, message: str, retry_after_s: float | None) -> web.Response:
        headers = {} if retry_after_s is None else {"Retry-After": f"{retry_after_s:g}"}
        return web.json_response(error_body(status, message), status=status, headers=headers)

    def _plan(self, ask: Ask, prompt_tokens: int, rng: random.Random) -> _Plan:
        room = self.profile.max_model_len - prompt_tokens
        limit = room if ask.max_tokens is None else ask.max_tokens
        answer = self.profile.answer_tokens
        natural = max(rng.randint(answer.low, answer.high), ask.min_tokens)
        start = rng.getrandbits(16)
        tokens, reason = limit, "length"
        if natural <= limit and not ask.ignore_eos:
            tokens, reason = natural, "stop"
        if ask.stops and (cut := cut_at_stop(start, tokens, ask.stops)) is not None:
            return _Plan(start, cut[0], "stop", stop_reason=cut[2], stop_text=cut[1])
        return _Plan(start, tokens, "stop" if reason == "stop" else "length")

    def _submit(self, exchange: _Exchange) -> None:
        # The next step may be due to begin in the past, when the machine is late: whoever takes part in it
        # has arrived by then, or would be answered before asking.
        now_ns = min(self._clock_ns(), self._step_ends_ns)
        ask = exchange.reply.ask
        for index, plan in enumerate(exchange.plans):
            sequence_id = self.engine.submit(
                prompt_tokens=ask.prompts[index // ask.n],
                output_tokens=plan.tokens,
                now_ns=now_ns,
                finish_reason=plan.finish_reason,
                max_tokens=ask.max_tokens,
                stall_after=exchange.fault.stall_after,
                stall_ns=exchange.fault.stall_ns,
            )
            exchange.sequence_ids.append(sequence_id)
            self._owners[sequence_id] = (exchange, index)
        exchange.open_choices = len(exchange.plans)
        self._wake.set()

    def _forget(self, exchange: _Exchange) -> None:
        """Give back what the request held; for one that is through, nothing is left to give."""
        failed = exchange.broken and exchange.fault.error_event_after is not None
        self.engine.abort(exchange.sequence_ids, reason="error" if failed else "abort")
        for sequence_id in exchange.sequence_ids:
            del self._owners[sequence_id]

    # --- everything else
    # -------------------------------------------------------------------------------------------

    @web.middleware
    async def _count(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        try:
            response = await handler(request)
        except RefusedError as refused:
            response = web.json_response(refused.body(), status=refused.status)
        except web.HTTPRequestEntityTooLarge:
            response = web.json_response(error_body(413, "the body is too large"), status=413)
        except web.HTTPException as error:
            response = web.json_response({"detail": error.reason}, status=error.status)
        resource = request.match_info.route.resource
        path = "none" if resource is None else resource.canonical
        self._http[path, request.method, f"{response.status // 100}xx"] += 1
        return response

    async def _name_server(self, request: web.Request, response: web.StreamResponse) -> None:
        response.headers["Server"] = f"goodput-simulator/{self._version}"

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(status=200 if not self.failed.is_set() else 503)

    async def _get_version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": VLLM_VERSION, "simulator": self._version})

    async def _models(self, request: web.Request) -> web.Response:
        model = {
            "id": self.profile.model_name,
            "object": "model",
            "created": int(self._started_wall_s),
            "owned_by": "goodput-simulator",
            "root": self.profile.model_name,
            "parent": None,
            "max_model_len": self.profile.max_model_len,
        }
        return web.json_response({"object": "list", "data": [model]})

    async def _tokenize(self, request: web.Request) -> web.Response:
        body = read_object(await request.read())
        check_model(body.get("model"), self.profile)
        if "messages" in body:
            texts = message_texts(body["messages"])
            text = " ".join(texts)
            count = chat_tokens(texts)
        else:
            prompt = body.get("prompt")
            if not isinstance(prompt, str):
                raise RefusedError(400, "prompt must be text.", param="prompt")
            text = prompt
            count = count_tokens(text)
        ids = token_ids(text)
        ids += [0] * (count - len(ids))  # the chat template's own tokens
        return web.json_response({"count": count, "max_model_len": self.profile.max_model_len, "tokens": ids})

    async def _metrics(self, request: web.Request) -> web.Response:
        waiting = self.engine.waiting
        page = render_page(
            self.profile,
            self.engine.stats,
            running=len(self.engine.running),
            waiting=len(waiting),
            deferred=sum(1 for sequence in waiting if sequence.preemptions),
            kv_usage=self.engine.kv_usage,
            started_wall_s=self._started_wall_s,
            cpu_s=time.process_time(),
            python_version=platform.python_version(),
            http_requests=self._http,
        )
        return web.Response(body=page.encode(), headers={"Content-Type": CONTENT_TYPE})

    async def _about(self, request: web.Request) -> web.Response:
        """What is simulated and what the truth is; no real vLLM has this."""
        profile = self.profile
        if self._true_peak is None:  # in a thread: the engine must not wait for it
            self._true_peak = await asyncio.to_thread(true_peak, profile, profile.workload, profile.slo)
        told: dict[str, Any] = {
            "profile": asdict(profile),
            "seed": self._seed,
            "faults": asdict(self._faults),
            "true_peak": asdict(self._true_peak),
            "steps": self.engine.stats.steps,
            "behind_max_s": self._behind_max_ns / 1e9,
        }
        return web.json_response(told)
