"""Before any load: is this a server worth measuring? Each way it may not be is one clear line.

Plain HTTP from the sweep's own process; nothing here is timed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import httpx

from loadgen.workload.prompts import WORDS, Calibration, fit
from sidecar.errors import UserError
from sidecar.requests.apis import api_of
from sidecar.requests.records import End, Outcome
from sidecar.requests.stream import StreamMeter

_LIMIT_S = 10.0
_PROBE_LIMIT_S = 60.0
_FEWEST_IDS = 20


class ServerUnfit(UserError):
    """The server cannot be measured; the message says what was tried and what came back."""


@dataclass(frozen=True, slots=True)
class Server:
    """What the preflight found."""

    model: str
    name: (
        str  # "vLLM 0.32.0", "goodput simulator 0.1.0", or what is known of another OpenAI-compatible server
    )
    calibration: Calibration
    max_model_len: int | None
    models: tuple[str, ...] = ()  # all that are served, adapters too


class Preflight:
    """Asks one server, in order: does it answer, does it speak the API, has it the model, can it answer
    once?
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str = "",
        headers: dict[str, str] | None = None,
        verify: bool | str = True,
    ) -> None:
        self._url = url.rstrip("/")
        auth = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._client = httpx.Client(
            headers=auth | (headers or {}), verify=verify, timeout=_LIMIT_S, trust_env=False
        )

    def check(
        self, *, model: str, api: str, path: str, probe: dict[str, Any], token_ids: bool = False
    ) -> Server:
        """All checks. ``probe`` is a small request body for ``path``, without a model.

        Raises `ServerUnfit` with one line; nothing else for whatever the server does.
        """
        try:
            with self._client:
                found, max_len, served = self._models(model)
                name = self._name()
                self._probe(path, {**probe, "model": found})
                calibration = self._calibrate(found, api)
                if token_ids:
                    calibration = replace(calibration, ids=self._token_ids(found))
                return Server(found, name, calibration, max_len, served)
        except httpx.HTTPError as error:
            raise ServerUnfit(f"{self._url} cannot be reached: {_reason(error)}") from None
        except httpx.InvalidURL as error:
            raise ServerUnfit(f"--url {self._url}: {error}") from None

    def _models(self, wanted: str) -> tuple[str, int | None, tuple[str, ...]]:
        answer = self._client.get(f"{self._url}/v1/models")
        if answer.status_code in (401, 403):
            raise ServerUnfit(
                f"{self._url}/v1/models answers {answer.status_code}: "
                "set an API key with --api-key-env VARIABLE"
            )
        if answer.status_code >= 500:
            raise ServerUnfit(
                f"{self._url}/v1/models answers {answer.status_code}; "
                "the server is failing, nothing was measured"
            )
        entries: Any = None
        if answer.status_code == 200:
            try:
                entries = answer.json()["data"]
            except (ValueError, KeyError, TypeError):
                entries = None
        if not isinstance(entries, list):
            raise ServerUnfit(
                f"{self._url} is no OpenAI-compatible server: /v1/models answers {answer.status_code}"
                + (" but not with a list of models" if answer.status_code == 200 else "")
            )
        models = {str(e["id"]): e for e in entries if isinstance(e, dict) and "id" in e}
        if not models:
            raise ServerUnfit(f"{self._url} serves no model: /v1/models lists none")
        if wanted == "auto":
            wanted = next(iter(models))
        if wanted not in models:
            raise ServerUnfit(f"--model {wanted}: not served at {self._url}; it has {', '.join(models)}")
        length = models[wanted].get("max_model_len")
        return wanted, length if isinstance(length, int) else None, tuple(models)

    def _name(self) -> str:
        """The server's name and version; never fails the check."""
        try:
            answer = self._client.get(f"{self._url}/version")
            said = answer.json() if answer.status_code == 200 else None
        except (httpx.HTTPError, ValueError):
            said = None
        return server_name(said)

    def _probe(self, path: str, body: dict[str, Any]) -> None:
        try:
            answer = self._client.post(f"{self._url}{path}", json=body, timeout=_PROBE_LIMIT_S)
        except httpx.TimeoutException:
            raise ServerUnfit(
                f"{self._url}{path} did not answer one request within {_PROBE_LIMIT_S:.0f} s"
            ) from None
        if answer.status_code != 200:
            raise ServerUnfit(
                f"{self._url}{path} answers {answer.status_code} to a first request"
                f"{_message(answer)}; nothing was measured"
            )
        # The same meter and the same meaning of "completed" as in every level.
        meter = StreamMeter(api_of("POST", path), start_ns=0)
        meter.on_headers(answer.status_code, answer.headers.items(), 0)
        meter.feed(answer.content, 0)
        record = meter.finish(End.EOF, 0)
        if record.outcome is not Outcome.COMPLETED:
            why = record.error or record.outcome.value
            raise ServerUnfit(
                f"{self._url}{path} did not complete a first request ({why}); nothing was measured"
            )
        if not record.streamed:
            raise ServerUnfit(f"{self._url}{path} does not stream its answers; nothing was measured")

    def _calibrate(self, model: str, api: str) -> Calibration:
        """Ask ``/tokenize`` how words become tokens; where there is none, one token a word is assumed."""
        samples = []
        for words in (20, 100, 400):
            text = " ".join(WORDS[i % len(WORDS)] for i in range(words))
            body: dict[str, Any] = {"model": model}
            if api == "chat":
                body |= {"messages": [{"role": "user", "content": text}], "add_generation_prompt": True}
            else:
                body |= {"prompt": text}
            try:
                answer = self._client.post(f"{self._url}/tokenize", json=body)
                count = answer.json()["count"] if answer.status_code == 200 else None
            except (httpx.HTTPError, ValueError, KeyError, TypeError):
                count = None
            if not isinstance(count, int):
                return Calibration()
            samples.append((words, count))
        return fit(samples, "tokenize")

    def _token_ids(self, model: str) -> tuple[int, ...]:
        """Ids of the server's own vocabulary: those of our words, as its ``/tokenize`` says."""
        try:
            answer = self._client.post(
                f"{self._url}/tokenize",
                json={"model": model, "prompt": " ".join(WORDS), "add_special_tokens": False},
            )
            ids = _ids_of(answer.json()) if answer.status_code == 200 else ()
        except ValueError:
            ids = ()
        if len(ids) < _FEWEST_IDS:
            raise ServerUnfit(
                f"--token-ids: {self._url}/tokenize does not tell token ids; leave the flag out"
            )
        return ids


def _ids_of(value: Any) -> tuple[int, ...]:
    """Distinct token ids of a tokenizer's answer, in order."""
    tokens = value.get("tokens") if isinstance(value, dict) else None
    if not isinstance(tokens, list):
        return ()
    return tuple(sorted({t for t in tokens if isinstance(t, int) and not isinstance(t, bool)}))


def server_name(said: Any) -> str:
    """Name and version from what ``/version`` answered (vLLM says only a version; our simulator gives itself
    away, whatever version it pretends to).
    """
    version = said.get("version") if isinstance(said, dict) else None
    simulator = said.get("simulator") if isinstance(said, dict) else None
    if isinstance(simulator, str):
        return f"goodput simulator {simulator}"
    if not isinstance(version, str):
        return "OpenAI-compatible server, version unknown"
    return version if " " in version else f"vLLM {version}"


def _reason(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:200]


def _message(answer: httpx.Response) -> str:
    """The server's own words about an error, where they are in the usual place, cut short."""
    try:
        body = answer.json()
        message = (
            body.get("error", {}).get("message")
            if isinstance(body.get("error"), dict)
            else body.get("message")
        )
    except (ValueError, AttributeError):
        return ""
    return (
        f" ({message.strip().splitlines()[0][:160]})" if isinstance(message, str) and message.strip() else ""
    )


def must_be_reachable(url: str) -> None:
    """Raise `ServerUnfit` unless something answers HTTP at this address, whatever it says."""
    try:
        httpx.get(f"{url}/health", timeout=_LIMIT_S, trust_env=False)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ServerUnfit(f"{url} cannot be reached: {_reason(error)}") from None
