"""Every published or derived vector: energy, tokens per joule, cost, roofline, MFU, MBU, stragglers."""

import random
from statistics import fmean

import pytest

from sidecar.derive import economics as eco
from sidecar.derive import roofline as roof
from sidecar.derive import utilisation as use
from sidecar.engine.cardinality import count
from sidecar.engine.exposition import parse
from sidecar.engine.series import increase
from sidecar.requests.records import Api, End
from sidecar.requests.stream import StreamMeter
from tests.support.engine_cases import cases
from tests.support.gpu_pages import seed_vectors

S = seed_vectors()
EXACT = 1e-9
LLAMA = roof.ModelShape(
    params=S["roofline"]["model"]["params"],
    weight_bytes=S["roofline"]["model"]["weight_bytes"],
    kv_bytes_per_token=S["roofline"]["model"]["kv_bytes_per_token"],
)
H100 = roof.Roofs(S["constants"]["peak_bf16_flops"], S["constants"]["hbm_bytes_per_s"])


def near(value):
    return None if value is None else pytest.approx(value, rel=EXACT)


def test_counters_of_the_published_program():
    given = S["part1_counters"]
    want, printed = given["expect"], given["printed"]
    energy_mj, tokens = increase(given["energy_mj"]), increase(given["tokens"])
    assert energy_mj.value == near(want["energy_increase_mj"])
    watts = eco.mean_watts([(t, mj / 1000) for t, mj in given["energy_mj"]])
    assert watts == near(want["watts"])
    assert f"{watts:.1f}" == printed["watts"] == "597.3"
    assert (tokens.value, tokens.resets) == (near(want["token_increase"]), 1)
    assert tokens.rate == near(want["tokens_per_s"])
    assert f"{tokens.rate:.1f}" == printed["tokens_per_s"] == "2426.1"
    per_joule = eco.tokens_per_joule(tokens.rate, watts)
    assert per_joule == near(want["tokens_per_joule"])
    assert f"{per_joule:.2f}" == printed["tokens_per_joule"] == "4.06"
    assert eco.joules_per_token(tokens.rate, watts) == near(want["joules_per_token"])
    for occupancy, usd in want["usd_per_million_tokens"].items():
        cost = eco.usd_per_million_tokens(S["constants"]["gpu_hour_usd"], 1, tokens.rate, float(occupancy))
        assert cost == near(usd)
        assert f"{cost:.2f}" == printed["usd_per_million_tokens"][occupancy]


@pytest.mark.parametrize("vector", S["rate_vectors"], ids=lambda v: v["name"])
def test_reset_aware_rates(vector):
    found = increase(vector["samples"])
    assert found.value == near(vector["expect_increase"])
    if "expect_rate" in vector:
        assert found.rate == near(vector["expect_rate"])
    else:
        assert found.rate is None


@pytest.mark.parametrize(
    "rows", [S["roofline"]["rows"], S["exercise_context_8192"]["rows"]], ids=["2k", "8k"]
)
def test_roofline_rows(rows):
    for row in rows:
        one = roof.step(LLAMA, H100, row["batch"], row["context"])
        assert one.bytes_moved == near(row["bytes_per_step"])
        assert one.kv_bytes == row["kv_bytes"]
        assert one.memory_s == near(row["memory_s"])
        assert one.compute_s == near(row["compute_s"])
        assert one.step_s * 1000 == near(row["step_ms"])
        assert one.tokens_per_s == near(row["tokens_per_s"])
        assert one.tensor_busy == near(row["tensor_busy"])
        assert one.memory_busy == near(row["memory_busy"])
        assert one.bound == row["bound"]


def test_roofline_as_printed():
    for row in S["roofline"]["printed"]:
        one = roof.step(LLAMA, H100, row["batch"], 2048)
        assert f"{one.step_s * 1000:.2f}" == row["step_ms"]
        assert f"{one.tokens_per_s:,.0f}" == row["tokens_per_s"]
        assert f"{one.tensor_busy:.1%}" == row["tensor_busy"]
        assert f"{one.memory_busy:.1%}" == row["memory_busy"]


def test_roofline_in_words_and_derived():
    model, facts, derived = S["roofline"]["model"], S["roofline"]["text_facts"], S["roofline"]["derived"]
    kv = roof.kv_bytes_per_token(
        model["layers"], model["kv_heads"], model["head_dim"], model["kv_dtype_bytes"]
    )
    assert kv == model["kv_bytes_per_token"] == facts["kv_kib_per_token"] * 1024
    assert LLAMA.flops_per_token == model["flops_per_token"]
    assert 16e9 / H100.bandwidth_bytes_per_s * 1000 == near(
        facts["weights_read_ms"]["value_16GB_over_3.35TBps"]
    )
    alone = roof.step(LLAMA, H100, 1, 2048)
    assert alone.compute_s * 1000 == near(facts["arithmetic_ms_batch1"]["value"])
    assert alone.tensor_busy == near(facts["tensor_busy_batch1"]["value"])
    assert roof.step(LLAMA, H100, 128, 2048).kv_bytes / 1e9 == near(facts["kv_gb_batch128_ctx2048"])
    assert H100.ridge_flops_per_byte == near(derived["ridge_flops_per_byte"])
    assert roof.batch_where_kv_equals_weights(LLAMA, 2048) == near(
        derived["batch_where_kv_reads_equal_weights_ctx2048"]
    )
    assert roof.context_below_which_compute_bound(LLAMA, H100) == near(
        derived["context_below_which_compute_bound_is_reachable"]
    )
    assert roof.batch_compute_bound(LLAMA, H100, 0) == near(derived["batch_compute_bound_ctx0"])
    assert roof.batch_compute_bound(LLAMA, H100, 2048) is None


def test_context_of_8192():
    given = S["exercise_context_8192"]
    fits = given["max_batch_that_fits"]
    each = given["kv_bytes_per_sequence"]
    assert LLAMA.kv_bytes_per_token * 8192 == each
    assert roof.sequences_that_fit(LLAMA, 80e9, 8192) == fits["weights_plus_kv_in_80e9_bytes"] == 59
    assert roof.sequences_that_fit(LLAMA, 80 * 2**30, 8192) == fits["weights_plus_kv_in_80GiB"]
    assert (
        roof.sequences_that_fit(LLAMA, 0.9 * 81559 * 2**20, 8192)
        == fits["weights_plus_kv_in_0.9_of_81559MiB"]
    )
    bare = roof.ModelShape(LLAMA.params, 0.0, LLAMA.kv_bytes_per_token)
    assert roof.sequences_that_fit(bare, 80e9, 8192) == fits["kv_alone_in_80e9_bytes"]
    assert roof.sequences_that_fit(LLAMA, 80e9, 2048) == given["max_batch_at_2048"]
    short, long = roof.step(LLAMA, H100, 32, 2048), roof.step(LLAMA, H100, 32, 8192)
    want = given["batch32"]
    assert (short.tokens_per_s, long.tokens_per_s) == (
        near(want["tokens_per_s_2048"]),
        near(want["tokens_per_s_8192"]),
    )
    assert long.tokens_per_s / short.tokens_per_s - 1 == near(want["throughput_change"])


def test_a_stall_shows_in_the_longest_gap_only():
    given = S["stall_stream"]
    want, printed = given["expect"], given["printed"]
    meter = StreamMeter(Api.CHAT, start_ns=0)
    meter.on_headers(200, [("content-type", "text/event-stream")], 1)
    times_ns = [round(t * 1e9) for t in given["token_times_s"]]
    for at, t in enumerate(times_ns):
        finish = '"stop"' if at == len(times_ns) - 1 else "null"
        event = f'data: {{"choices":[{{"index":0,"delta":{{"content":"a"}},"finish_reason":{finish}}}]}}\n\n'
        meter.feed(event.encode(), t)
    meter.feed(b"data: [DONE]\n\n", times_ns[-1])
    record = meter.finish(End.EOF, times_ns[-1])
    assert record.ttft_ns / 1e9 == pytest.approx(want["ttft_s"])
    assert record.tpot_ns / 1e9 == pytest.approx(want["tpot_s"])
    assert f"{record.ttft_ns / 1e6:.0f}" == printed["ttft_ms"]
    assert f"{record.tpot_ns / 1e6:.1f}" == printed["tpot_ms"]
    gaps_s = sorted(gap / 1e9 for gap in record.gaps_ns)
    assert len(gaps_s) == want["itl_count"]
    assert f"{gaps_s[len(gaps_s) // 2] * 1000:.0f}" == printed["itl_p50_ms"]
    assert f"{gaps_s[296] * 1000:.0f}" == "25"  # nearest rank of p99
    assert f"{gaps_s[-1] * 1000:.0f}" == printed["itl_max_ms"]
    assert record.max_gap_ns / 1e9 == pytest.approx(want["itl_max_s"])


def program_steps(given):
    """The published program: ranks draw their compute times, a throttled one is slower by a factor."""
    at = given["input"]
    rng = random.Random(at["seed"])
    for run in given["runs"]:
        steps = []
        for _ in range(at["steps"]):
            times = [rng.gauss(at["compute_s_mean"], at["compute_s_sd"]) for _ in range(at["gpus"])]
            times[at["throttled_rank"]] *= run["slow_factor"]
            steps.append(times)
        yield run, steps


@pytest.mark.parametrize("name", ["training_mfu", "exercise_throttle_95"])
def test_training_mfu_and_the_slowest_rank(name):
    given = S[name]
    at = given["input"]
    mfus = []
    for run, steps in program_steps(given):
        step_s = use.mean_step_s(steps, at["all_reduce_s"])
        assert step_s == near(run["mean_step_s"])
        assert [max(one) + at["all_reduce_s"] for one in steps] == pytest.approx(run["steps_s"], abs=1e-6)
        rate = at["tokens_per_step"] / step_s
        assert rate == near(run["tokens_per_s"])
        flops = use.training_flops_per_token(at["params"])
        mfus.append(use.mfu(rate, flops, at["gpus"], S["constants"]["peak_bf16_flops"]))
        assert mfus[-1] == near(run["mfu"])
        slow = use.slowest_rank(steps)
        assert slow.median_s == near(run["fleet_median_compute_s"])
        throttled = fmean(one[at["throttled_rank"]] for one in steps)
        assert throttled == near(run["rank17_mean_compute_s"])
        if run["slow_factor"] == 1.0:
            assert slow.z < 5
        else:
            assert slow.rank == at["throttled_rank"]
            assert slow.steps_slowest == run["steps_where_rank17_is_slowest"]
            assert slow.z > 20
    if "printed" in given:
        assert [f"{m:.1%}" for m in mfus] == [row["mfu"] for row in given["printed"]] == ["32.4%", "27.4%"]
        assert 1 - mfus[1] / mfus[0] == near(given["lost_share_of_throughput"])
    else:
        assert 100 * (mfus[0] - mfus[1]) == near(given["mfu_cost_points"])
        (_, _), (_, throttled_steps) = program_steps(given)
        slow = use.slowest_rank(throttled_steps, at["compute_s_sd"])
        assert slow.z == near(given["z_of_mean_over_50_steps"])


@pytest.mark.parametrize("vector", S["mfu_vectors"], ids=lambda v: v["name"])
def test_mfu_vectors(vector):
    name = vector["name"]
    if name == "training_6N":
        flops = use.training_flops_per_token(vector["params"])
        got = use.mfu(vector["tokens_per_s"], flops, vector["gpus"], vector["peak_flops"])
        assert got == near(vector["expect"])
    elif "achieved_flops" in vector:
        assert use.mfu(1.0, vector["achieved_flops"], 1, vector["peak_flops"]) == near(vector["expect"])
    elif "verdict" in vector:
        assert use.training_verdict(vector["mfu"]) == vector["verdict"]
        if "band" in vector:
            assert list(use.TRAINING_NORMAL) == vector["band"]
    elif name.startswith("attention_term"):
        at = (vector["N"], vector["L"], vector["H"], vector["S"])
        assert use.training_flops_per_token(*at) == near(vector["expect_flops_per_token"])
        assert use.attention_share(*at) == near(vector["attention_share"])
    elif name == "attention_equals_weights_context":
        got = use.context_where_attention_equals_weights(vector["N"], vector["L"], vector["H"])
        assert got == near(vector["expect_S"])
    else:
        at = (vector["N"], vector["L"], vector["H"], vector["S"])
        flops = use.decode_flops_per_token(*at)
        assert flops == near(vector["expect_flops_per_token"])
        rate, peak = vector["tokens_per_s"], vector["peak_flops"]
        assert use.mfu(rate, flops, vector["gpus"], peak) == near(vector["expect_mfu"])
        plain = use.decode_flops_per_token(vector["N"])
        assert use.mfu(rate, plain, vector["gpus"], peak) == near(vector["expect_mfu_without_attention"])
        batch = int(name.split("_b")[1].split("_")[0])
        one = roof.step(LLAMA, H100, batch, vector["S"])
        got = use.mbu(one.bytes_moved / one.step_s, 1, H100.bandwidth_bytes_per_s)
        assert got == near(vector["expect_mbu"])


@pytest.mark.parametrize("vector", S["economics_vectors"], ids=lambda v: v["name"])
def test_economics_vectors(vector):
    if "peak_to_average" in vector:
        got = eco.highest_mean_occupancy(vector["peak_to_average"])
        assert got == near(vector["expect_max_mean_occupancy"])
    elif "pue" in vector:
        watts = eco.facility_watts(
            vector["gpu_board_watts"], server_factor=vector["server_overhead_factor"], pue=vector["pue"]
        )
        assert watts == near(vector["expect_facility_watts"])
        rate = S["part1_counters"]["expect"]["tokens_per_s"]
        assert eco.tokens_per_joule(rate, watts) == near(vector["expect_facility_tokens_per_joule"])
    else:
        got = eco.usd_per_million_tokens(
            vector["usd_per_gpu_hour"], vector["gpus"], vector["tokens_per_s"], vector["occupancy"]
        )
        assert got == near(vector["expect_usd_per_million"])


@pytest.mark.parametrize("vector", S["power_plausibility"]["vectors"], ids=lambda v: str(v["watts"]))
def test_power_is_the_quick_check(vector):
    assert use.dense_arithmetic(vector["watts"], vector["limit_w"]) is vector["dense_arithmetic"]


def test_sm_active_thresholds():
    fact = next(f for f in S["seed_facts"] if f["fact"].startswith("SM_ACTIVE"))
    for vector in fact["vectors"]:
        assert use.sm_active_verdict(vector["sm_active"]) == vector["verdict"]


def test_series_are_counted_as_they_stand_not_as_they_could():
    fact = next(f for f in S["seed_facts"] if f["fact"].startswith("active series"))
    for vector in fact["vectors"]:
        lines = [f'{name}{{l="{i}"}} 1\n' for name, n in vector["families"].items() for i in range(n)]
        assert count(parse("".join(lines).encode()), None).series == vector["expect"]


@pytest.mark.parametrize("case", cases("energy"))
def test_energy_case(case):
    given, want = case["input"], case["expect"]
    joules = increase([(t, mj / 1000) for t, mj in given["energy_mj"]])
    watts = eco.mean_watts([(t, mj / 1000) for t, mj in given["energy_mj"]])
    assert joules.value == near(want["joules"])
    assert watts == near(want["watts_mean"])
    made, good = increase(given["output_tokens"]).rate, increase(given["good_output_tokens"]).rate
    assert eco.tokens_per_joule(made, watts) == near(want["tokens_per_joule"])
    assert eco.tokens_per_joule(good, watts) == near(want["good_tokens_per_joule"])
