"""OpenTelemetry: one gen_ai span for each request, vLLM's own spans joined to it, and the way out."""
