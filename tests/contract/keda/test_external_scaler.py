"""KEDA's external scaler contract over real gRPC, with messages put together by hand from KEDA's numbers."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from tests.support.sidecar_process import sidecar_process, wait_for
from tests.support.simulated import simulate_process


def text(number: int, value: bytes | str) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    assert len(data) < 128
    return bytes([number << 3 | 2, len(data)]) + data


def reference(**metadata: str) -> bytes:
    entries = b"".join(text(3, text(1, key) + text(2, value)) for key, value in metadata.items())
    return text(1, "vllm") + text(2, "default") + entries


def fields(data: bytes) -> dict[int, Any]:
    """Field number -> value: ints, doubles and bytes; a message has each field once here."""
    found: dict[int, Any] = {}
    at = 0
    while at < len(data):
        number, kind = data[at] >> 3, data[at] & 7
        at += 1
        if kind == 1:
            found[number], at = struct.unpack("<d", data[at : at + 8])[0], at + 8
            continue
        size = shift = 0
        while True:
            byte = data[at]
            at += 1
            size |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        if kind == 0:
            found[number] = size
        else:
            found[number], at = data[at : at + size], at + size
    return found


Call = Callable[..., dict[int, Any]]


@pytest.fixture(scope="module")
def scaler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Call, grpc.Channel]]:
    capacity = tmp_path_factory.mktemp("capacity") / "capacity.json"
    capacity.write_text(json.dumps({"format": 1, "peak_load_per_replica": 4, "target_saturation": 0.7}))
    with (
        simulate_process("--profile", "fast", "--max-seconds", "200") as (_, url),
        sidecar_process(
            url, *("--scaler", "127.0.0.1:0", "--scrape-interval-s", "0.5", "--capacity", str(capacity))
        ) as sidecar,
    ):
        assert sidecar.process.stdout is not None
        line = sidecar.process.stdout.readline()
        assert line.startswith("scaler listening on 127.0.0.1:")
        wait_for(lambda: sidecar.get("/readyz").status_code == 200)
        with grpc.insecure_channel(line.split()[-1]) as channel:

            def call(method: str, request: bytes) -> dict[int, Any]:
                ask = channel.unary_unary(f"/externalscaler.ExternalScaler/{method}")
                return fields(ask(request, timeout=20))

            yield call, channel


def test_the_spec_names_the_metric_and_both_targets(scaler: tuple[Call, grpc.Channel]) -> None:
    call, _ = scaler
    spec = fields(call("GetMetricSpec", reference())[1])
    assert spec == {1: b"goodput-saturation", 2: 1, 3: 0.7}
    spec = fields(call("GetMetricSpec", reference(metric="in_flight"))[1])
    assert (spec[1], spec[2], spec[3]) == (b"goodput-in_flight", 3, pytest.approx(2.8))
    assert fields(call("GetMetricSpec", reference(target="0.5"))[1])[3] == 0.5


def test_idle_is_a_true_zero_and_not_active(scaler: tuple[Call, grpc.Channel]) -> None:
    call, _ = scaler
    value = fields(call("GetMetrics", text(1, reference()) + text(2, "goodput-saturation"))[1])
    # proto3 leaves zeros out of the message: 0 and 0.0.
    assert value == {1: b"goodput-saturation"}
    assert call("IsActive", reference()) == {}


def test_the_stream_begins_with_how_it_stands(scaler: tuple[Call, grpc.Channel]) -> None:
    _, channel = scaler
    stream = channel.unary_stream("/externalscaler.ExternalScaler/StreamIsActive")(reference(), timeout=20)
    assert fields(next(stream)) == {}
    stream.cancel()


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        ({"metric": "queue"}, "saturation, in_flight"),
        ({"target": "0"}, "above 0"),
        ({"target": "x"}, "above 0"),
    ],
)
def test_wrong_metadata_is_named(
    scaler: tuple[Call, grpc.Channel], metadata: dict[str, str], said: str
) -> None:
    call, _ = scaler
    with pytest.raises(grpc.RpcError) as error:
        call("GetMetricSpec" if "target" in metadata else "IsActive", reference(**metadata))
    assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert said in error.value.details()


def test_an_unreleased_method_is_unimplemented(scaler: tuple[Call, grpc.Channel]) -> None:
    call, _ = scaler
    with pytest.raises(grpc.RpcError) as error:
        call("StreamMetricSpec", reference())
    assert error.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_no_data_is_an_error_and_load_is_told(tmp_path: Path) -> None:
    capacity = tmp_path / "capacity.json"
    capacity.write_text(json.dumps({"format": 1, "peak_load_per_replica": 4}))
    with sidecar_process(
        "http://127.0.0.1:9", *("--scaler", "127.0.0.1:0", "--capacity", str(capacity))
    ) as sidecar:
        assert sidecar.process.stdout is not None
        address = sidecar.process.stdout.readline().split()[-1]
        with grpc.insecure_channel(address) as channel:
            for method, request in (("IsActive", reference()), ("GetMetrics", text(1, reference()))):
                with pytest.raises(grpc.RpcError) as error:
                    channel.unary_unary(f"/externalscaler.ExternalScaler/{method}")(request, timeout=20)
                assert error.value.code() is grpc.StatusCode.UNAVAILABLE
                assert "cannot be read" in error.value.details()
        assert httpx.get(sidecar.admin + "/autoscale", trust_env=False).status_code == 503
        assert sidecar.end() == 0
