"""Makes the trace samples that are shipped: ``python -m tests.support.trace_samples`` writes them anew."""

from __future__ import annotations

import json
import random
from datetime import datetime, timedelta
from pathlib import Path

SAMPLES = Path(__file__).parents[2] / "loadgen" / "workload" / "samples"
ROWS = 120


def made() -> dict[str, str]:
    """File name -> content. Bursty gaps (CV 2, mean 0.5 s), log-normal lengths; nobody's traffic."""
    rng = random.Random(20260101)
    at_s = 0.0
    azure = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    burst = ["Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"]
    mooncake = []
    begin = datetime(2026, 1, 1, 12)
    blocks = 2
    for number in range(ROWS):
        prompt = max(1, min(3000, round(rng.lognormvariate(5.5, 0.8))))
        output = max(1, min(400, round(rng.lognormvariate(3.5, 0.7))))
        stamp = (begin + timedelta(seconds=at_s)).strftime("%Y-%m-%d %H:%M:%S.%f") + "0"
        azure.append(f"{stamp},{prompt},{output}")
        log, answered = ("API log", output) if number % 40 else ("Conversation log", 0)
        burst.append(f"{at_s:.3f},made-up,{prompt},{answered},{prompt + answered},{log}")
        ids = [0, 1] if number % 3 else [0]
        while len(ids) * 512 < prompt + 700:
            ids.append(blocks)
            blocks += 1
        length = (len(ids) - 1) * 512 + prompt % 512 + 1
        mooncake.append(
            json.dumps(
                {
                    "timestamp": round(at_s * 1e3),
                    "input_length": length,
                    "output_length": output,
                    "hash_ids": ids,
                }
            )
        )
        at_s += rng.gammavariate(0.25, 2.0)
    return {
        "azure.csv": "\n".join(azure) + "\n",
        "burstgpt.csv": "\n".join(burst) + "\n",
        "mooncake.jsonl": "\n".join(mooncake) + "\n",
    }


if __name__ == "__main__":
    SAMPLES.mkdir(exist_ok=True)
    for name, text in made().items():
        (SAMPLES / name).write_text(text)
