"""``goodput-sidecar run``: the sidecar itself."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from sidecar.config import ENV_PREFIX, KEYS, SECRETS, load_settings


def add_parser(subparsers: Any) -> None:
    """Add ``run`` with a flag for each setting."""
    parser = subparsers.add_parser(
        "run",
        help="stand in front of a vLLM server and measure every request",
        description="Passes requests through to vLLM and measures each against its SLO. Settings come from "
        f"the file, then {ENV_PREFIX}* environment variables, then flags. A token for the engine's page "
        f"comes from --engine-token-file or from {ENV_PREFIX}ENGINE_TOKEN, never from the command line.",
    )
    parser.add_argument(
        "--config", metavar="FILE", type=Path, help="settings as YAML, keys as the flags below"
    )
    for name, setting in KEYS.items():
        text = setting.metadata["help"]
        if setting.default not in ("", None):
            text += f" (default: {setting.default})"
        if name in SECRETS:
            text = argparse.SUPPRESS  # taken only to be refused with a word on where it belongs
        # Checked with all other sources, so that every error reads the same.
        parser.add_argument("--" + name.replace("_", "-"), dest=name, metavar="VALUE", help=text)
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    flags = {name: value for name in KEYS if (value := getattr(args, name)) is not None}
    settings = load_settings(flags, file=args.config)
    # Imported late: the other commands need neither server nor event loop.
    from sidecar.runtime import run

    return run(settings)
