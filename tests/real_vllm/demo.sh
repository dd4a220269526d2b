#!/usr/bin/env bash
# The demo against a real vLLM on the CPU: starts it, puts the sidecar in front, sweeps 1..32, ends both.
# usage: demo.sh OUT_DIR
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
out=${1:?usage: demo.sh OUT_DIR}
port=$("$root/.venv/bin/python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')

echo "Starting a real vLLM on 127.0.0.1:$port (the first time installs it) ..."
pid=
stop() { if [ -n "$pid" ]; then kill "$pid" 2>/dev/null || true; fi; }
trap stop EXIT
pid=$("$here/real_vllm.sh" serve "$port" | tail -n 1)
"$root/.venv/bin/goodput-loadgen" demo --attach "http://127.0.0.1:$port" --levels 1..32 --window-s 10 --warmup-s 1.5 \
  --max-seconds 170 --out "$out"
