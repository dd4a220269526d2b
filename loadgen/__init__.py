"""Load generator for vLLM: sweeps load to find where goodput peaks."""

from sidecar import __version__

__all__ = ["__version__"]
