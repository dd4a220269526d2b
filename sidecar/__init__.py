"""Observability sidecar for vLLM: pass-through, token timing, canonical metrics, goodput."""

__version__ = "0.1.0"
