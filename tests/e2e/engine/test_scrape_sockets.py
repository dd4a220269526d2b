"""The scraper against real sockets: whole, cut, slow, foreign and missing pages, restarts, tokens, TLS."""

import asyncio
import gzip
import random
import shutil
import ssl
import subprocess
import threading
from pathlib import Path

import pytest

from sidecar.engine.scrape import EngineSnapshot, Scraper, ScrapeSettings, fetch_view
from sidecar.engine.series import History
from sidecar.errors import SettingsError
from tests.support.metrics_server import MetricsServer, answer

FIXTURES = Path(__file__).parents[2] / "fixtures" / "vllm" / "0.32.0"
BUSY = (FIXTURES / "metrics_busy.txt").read_bytes()
RESTARTED = (FIXTURES / "metrics_after_restart.txt").read_bytes()
VERSION = answer(b'{"version":"0.32.0"}', content_type="application/json")


def scraper_of(url: str, **settings) -> Scraper:
    settings = {"interval_s": 30.0, "timeout_s": 10.0, **settings}
    return Scraper(url, settings=ScrapeSettings(url, **settings))


async def one(server: MetricsServer, **settings) -> EngineSnapshot:
    return await asyncio.wait_for(scraper_of(server.url, **settings).scrape_once(), 30)


async def test_a_whole_page_is_up_and_mapped_with_the_version():
    async with MetricsServer({"/metrics": [answer(BUSY)], "/version": [VERSION]}) as server:
        scraper = scraper_of(server.url)
        snapshot = await scraper.scrape_once()
        assert (snapshot.up, snapshot.reason, snapshot.version) == (True, "", "0.32.0")
        assert snapshot.view.total("generation_tokens") == 25634
        assert (snapshot.bytes, snapshot.lines, snapshot.samples) == (len(BUSY), 678, 494)
        assert snapshot.duration_s > 0
        await scraper.scrape_once()
        assert [head.split(" ")[1] for head in server.requests] == ["/metrics", "/version", "/metrics"]
        assert scraper.stats.scrapes == 2
        assert scraper.stats.failures == {}
        assert scraper.stats.last_lines == 678
        assert scraper.stats.age_s(scraper.last.at_ns + 5_000_000_000) == 5.0


async def test_a_gzip_page_is_read_and_asked_for():
    packed = answer(gzip.compress(BUSY), more="content-encoding: gzip\r\n")
    async with MetricsServer({"/metrics": [packed]}) as server:
        snapshot = await one(server)
        assert snapshot.view.total("generation_tokens") == 25634
        assert "accept-encoding: gzip" in server.requests[0].lower()
        assert snapshot.version is None  # no /version here, and no harm


def chunked(body: bytes, *, end: bool) -> bytes:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ntransfer-encoding: chunked\r\n\r\n"
    return head + f"{len(body):x}\r\n".encode() + body + b"\r\n" + (b"0\r\n\r\n" if end else b"")


HALF = BUSY[: BUSY.index(b"\n", len(BUSY) // 2) + 1]


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (answer(b"<html>Sign in</html>\n", content_type="text/html"), "not_metrics"),
        (answer(b"<html>Sign in</html>\n"), "not_metrics"),
        (answer(b'{"detail":"Not Found"}\n', content_type="application/json"), "not_metrics"),
        (answer(HALF, length=len(BUSY)), "cut"),
        (chunked(HALF, end=False), "cut"),
        (answer(HALF[:-9]), "cut"),
        (answer(gzip.compress(BUSY)[:-20], more="content-encoding: gzip\r\n"), "cut"),
        (answer(BUSY, content_type="application/openmetrics-text; version=1.0.0"), "cut"),
        (answer(b"starting\n", status="503 Service Unavailable"), "status"),
        (answer(b"", status="302 Found", more="location: /login\r\n"), "status"),
        (answer(b"", status="401 Unauthorized"), "auth"),
        (answer(b"x", more="content-encoding: br\r\n"), "encoding"),
        (b"", "cut"),
        (b"not http at all\r\n\r\n", "cut"),
    ],
    ids=lambda v: v if isinstance(v, str) else None,
)
async def test_what_is_no_whole_page_is_down_with_a_reason_and_no_values(raw, code):
    async with MetricsServer({"/metrics": [answer(BUSY), raw, answer(BUSY)]}) as server:
        scraper = scraper_of(server.url)
        assert (await scraper.scrape_once()).up
        snapshot = await scraper.scrape_once()
        assert (snapshot.up, snapshot.view, snapshot.code) == (False, None, code)
        assert snapshot.reason
        assert scraper.last is snapshot
        assert (await scraper.scrape_once()).up
        assert scraper.stats.failures == {code: 1}


async def test_a_page_above_the_limit_is_refused():
    async with MetricsServer({"/metrics": [answer(BUSY)]}) as server:
        assert (await one(server, max_bytes=10_000)).code == "too_large"


async def test_a_page_that_drips_is_a_timeout_as_a_whole():
    async def drip(writer: asyncio.StreamWriter) -> None:
        writer.write(answer(BUSY)[:200])
        for _ in range(400):
            writer.write(b"#\n")
            await writer.drain()
            await asyncio.sleep(0.05)

    async with MetricsServer({"/metrics": [drip, answer(BUSY)]}) as server:
        scraper = scraper_of(server.url, timeout_s=0.4)
        snapshot = await asyncio.wait_for(scraper.scrape_once(), 15)
        assert (snapshot.up, snapshot.code) == (False, "timeout")


async def test_a_version_that_never_comes_costs_the_version_and_not_the_page():
    async def silent(writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(20)

    answers = {"/metrics": [answer(BUSY)], "/version": [silent, VERSION]}
    async with MetricsServer(answers) as server:
        scraper = scraper_of(server.url, interval_s=10.0, timeout_s=8.0)
        first = await asyncio.wait_for(scraper.scrape_once(), 15)
        assert (first.up, first.version) == (True, None)
        assert (await scraper.scrape_once()).version == "0.32.0"


async def test_nobody_listens_then_the_engine_comes_up():
    async with MetricsServer({}) as server:
        port = server.port
    scraper = scraper_of(f"http://127.0.0.1:{port}")
    snapshot = await scraper.scrape_once()
    assert (snapshot.up, snapshot.code) == (False, "connect")
    async with MetricsServer({"/metrics": [answer(BUSY)]}, port=port):
        assert (await scraper.scrape_once()).up


async def test_a_sleeping_engine_is_down_with_a_reason_and_an_awake_one_beside_it_is_not():
    def page(*states: int) -> bytes:
        return "".join(
            f'vllm:engine_sleep_state{{engine="{i}",sleep_state="awake"}} {s}\n'
            f'vllm:num_requests_running{{engine="{i}"}} 0\n'
            for i, s in enumerate(states)
        ).encode()

    async with MetricsServer({"/metrics": [answer(page(0, 0)), answer(page(0, 1))]}) as server:
        scraper = scraper_of(server.url)
        asleep = await scraper.scrape_once()
        assert (asleep.up, asleep.view, asleep.code) == (False, None, "sleeping")
        half = await scraper.scrape_once()
        assert half.up
        assert half.view.sleeping == {"0"}


async def test_a_dead_engine_behind_a_living_front_end_is_down_where_health_is_asked():
    answers = {"/metrics": [answer(BUSY)], "/health": [answer(b"", status="503 Service Unavailable")]}
    async with MetricsServer(answers) as server:
        assert (await one(server)).up
        assert (await one(server, health_path="/health")).code == "unhealthy"


async def test_a_late_or_absent_health_answer_says_nothing_and_other_servers_are_not_asked():
    async def silent(writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(20)

    other = answer(b"sglang:num_running_reqs 1\n")
    answers = {
        "/metrics": [answer(BUSY), answer(BUSY), other],
        "/health": [silent, answer(b"", status="404 No")],
    }
    async with MetricsServer(answers) as server:
        scraper = scraper_of(
            server.url, interval_s=4.0, timeout_s=3.0, version_path=None, health_path="/health"
        )
        for _ in range(3):
            assert (await asyncio.wait_for(scraper.scrape_once(), 15)).up
        assert [head.split(" ")[1] for head in server.requests] == ["/metrics", "/health"] * 2 + ["/metrics"]


@pytest.mark.parametrize("text", [b"a b", b"a\r\nx-evil: 1", b"\xff\xfe", b"", b" \n"])
async def test_a_token_that_is_none_is_never_sent_nor_shown(tmp_path, text):
    token = tmp_path / "token"
    token.write_bytes(text)
    async with MetricsServer({"/metrics": [answer(BUSY)]}) as server:
        snapshot = await one(server, bearer_token_file=token)
        assert (snapshot.up, snapshot.code) == (False, "auth")
        assert snapshot.reason in (
            f"token file {token}: is empty",
            f"token file {token}: is no bearer token, which is one word of ASCII without blanks",
        )
        assert server.requests == []


def test_settings_never_show_their_token():
    assert "s3cret" not in repr(ScrapeSettings("http://h:1", bearer_token="s3cret"))


async def test_a_restart_is_one_reset_and_the_version_is_asked_for_again():
    newer = answer(b'{"version":"0.33.0"}', content_type="application/json")
    answers = {"/metrics": [answer(BUSY), answer(RESTARTED)], "/version": [VERSION, newer]}
    async with MetricsServer(answers) as server:
        scraper = scraper_of(server.url)
        history = History(interval_s=30)
        before = await scraper.scrape_once()
        history.add(before.at_ns, before.view, before.wall_s)
        after = await scraper.scrape_once()
        history.add(after.at_ns, after.view, after.wall_s)
        assert (before.version, after.version) == ("0.32.0", "0.33.0")
        got = history.increase("generation_tokens", after.at_ns)
        assert got.value == after.view.total("generation_tokens")
        assert got.resets == 1
        assert not got.hidden_restart_possible


async def test_never_two_scrapes_at_a_time():
    async def slow(writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.2)
        writer.write(answer(BUSY))
        await writer.drain()

    async with MetricsServer({"/metrics": [slow], "/version": [VERSION]}) as server:
        scraper = scraper_of(server.url)
        both = await asyncio.gather(scraper.scrape_once(), scraper.scrape_once())
        assert both[0] is both[1]
        assert server.most_at_once == 1


async def test_the_token_is_sent_and_read_anew_from_its_file(tmp_path):
    token = tmp_path / "token"
    token.write_text("first\n")
    async with MetricsServer({"/metrics": [answer(BUSY)]}) as server:
        scraper = scraper_of(server.url, bearer_token_file=token, version_path=None)
        await scraper.scrape_once()
        token.write_text("second")
        await scraper.scrape_once()
        heads = [head.lower() for head in server.requests]
        assert "authorization: bearer first\r\n" in heads[0]
        assert "authorization: bearer second\r\n" in heads[1]
        token.unlink()
        assert (await scraper.scrape_once()).code == "auth"


async def test_run_goes_on_through_failures_and_a_consumer_that_raises_until_told_to_stop():
    async with MetricsServer({"/metrics": [answer(b"", status="500 Oh"), answer(BUSY)]}) as server:
        scraper = scraper_of(server.url, interval_s=0.5, timeout_s=0.45, version_path=None)
        seen: list[bool] = []
        stop = asyncio.Event()

        def take(snapshot: EngineSnapshot) -> None:
            seen.append(snapshot.up)
            if sum(seen) >= 2:
                stop.set()
            raise RuntimeError("a consumer's own fault")

        # A busy machine may miss the short limit now and then: what counts is that it goes on.
        await asyncio.wait_for(scraper.run(take, stop), 60)
        assert seen[0] is False
        assert seen.count(True) == 2
        assert scraper.stats.callback_errors == len(seen)


def test_back_off_doubles_with_jitter_up_to_a_limit():
    scraper = Scraper("http://127.0.0.1:1", interval_s=5.0, rng=random.Random(0))
    assert scraper.delay_s(0) == 5.0
    for failures, longest in ((1, 5), (2, 10), (3, 20), (4, 30), (50, 30)):
        delays = [scraper.delay_s(failures) for _ in range(50)]
        assert longest / 2 <= min(delays) < max(delays) <= longest
    assert len(set(delays)) > 10


@pytest.mark.parametrize(
    ("url", "settings", "says"),
    [
        ("127.0.0.1:8000", {}, "must look like"),
        ("ftp://x", {}, "must look like"),
        ("http://127.0.0.1", {"interval_s": 0.0}, "above 0"),
        ("http://127.0.0.1", {"interval_s": 5.0, "timeout_s": 5.0}, "below"),
        ("https://127.0.0.1", {"ca_file": Path("no-such-file.pem")}, "TLS"),
    ],
)
def test_settings_that_cannot_work_are_refused(url, settings, says):
    with pytest.raises(SettingsError, match=says):
        Scraper(url, settings=ScrapeSettings(url, **settings))


def test_the_base_url_may_be_that_of_the_page_itself():
    for url in ("http://h:1", "http://h:1/", "http://h:1/metrics", "http://h:1/metrics/"):
        assert ScrapeSettings(url).url("/metrics") == "http://h:1/metrics"
    assert ScrapeSettings("http://h/a").url("/version") == "http://h/a/version"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory) -> tuple[Path, Path]:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("a certificate has to be made with openssl")
    folder = tmp_path_factory.mktemp("tls")
    cert_file, key_file = folder / "cert.pem", folder / "key.pem"
    made = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=engine -addext subjectAltName=IP:127.0.0.1"
    command = [openssl, *made.split(), "-keyout", str(key_file), "-out", str(cert_file)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return cert_file, key_file


async def test_tls_is_verified_against_the_given_ca(certificate):
    cert_file, key_file = certificate
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert_file, key_file)
    async with MetricsServer({"/metrics": [answer(BUSY)]}, tls=context) as server:
        assert (await one(server, ca_file=cert_file)).up
        assert (await one(server, verify_tls=False)).up
        assert (await one(server)).code == "tls"


async def test_a_client_certificate_is_shown_to_an_engine_that_asks_for_one(certificate):
    cert_file, key_file = certificate
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert_file, key_file)
    context.load_verify_locations(cert_file)
    context.verify_mode = ssl.CERT_REQUIRED
    async with MetricsServer({"/metrics": [answer(BUSY)]}, tls=context) as server:
        assert (await one(server, ca_file=cert_file, cert_file=cert_file, key_file=key_file)).up
        assert not (await one(server, ca_file=cert_file)).up


def test_tls_files_that_cannot_work_are_named_and_nobody_is_asked_for_a_password(certificate, tmp_path):
    cert_file, key_file = certificate
    locked, garbage = tmp_path / "locked.pem", tmp_path / "garbage.pem"
    garbage.write_text("no PEM here\n")
    lock = ["openssl", "rsa", "-aes128", "-passout", "pass:x", "-in", str(key_file), "-out", str(locked)]
    subprocess.run(lock, check=True, capture_output=True, timeout=60)
    for files in (
        {"ca_file": garbage},
        {"cert_file": garbage},
        {"cert_file": cert_file, "key_file": locked},
        {"cert_file": cert_file, "key_file": garbage},
    ):
        with pytest.raises(SettingsError, match=f"TLS: .*{list(files.values())[-1].name}: not usable as PEM"):
            ScrapeSettings("https://h", **files).tls()


def in_background(server: MetricsServer, ready: threading.Event, done: threading.Event) -> threading.Thread:
    async def serve() -> None:
        async with server:
            ready.set()
            await asyncio.to_thread(done.wait, 60)

    thread = threading.Thread(target=asyncio.run, args=(serve(),), daemon=True)
    thread.start()
    assert ready.wait(10)
    return thread


def test_one_synchronous_scrape():
    server = MetricsServer(
        {"/metrics": [answer(BUSY), answer(HALF, length=len(BUSY))], "/version": [VERSION]}
    )
    ready, done = threading.Event(), threading.Event()
    thread = in_background(server, ready, done)
    try:
        snapshot = fetch_view(server.url, timeout_s=10)
        assert (snapshot.up, snapshot.version) == (True, "0.32.0")
        assert snapshot.view.total("generation_tokens") == 25634
        cut = fetch_view(server.url, timeout_s=10)
        assert (cut.up, cut.view, cut.code) == (False, None, "cut")
    finally:
        done.set()
        thread.join(10)
    assert fetch_view(server.url, timeout_s=2).code == "connect"
    with pytest.raises(SettingsError):
        fetch_view("nonsense")
