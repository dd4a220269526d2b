"""A vLLM look-alike on a roofline: its step times, its goodput curve and its page are known exactly."""
