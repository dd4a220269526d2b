"""A sweep's result as files: HTML for people, JSON for programs, CSV for spreadsheets."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from loadgen.report.csvio import to_csv
from loadgen.report.html import to_html
from loadgen.report.jsonio import to_json
from loadgen.results import SweepReport
from sidecar.errors import UserError


def write_all(report: SweepReport, out_dir: Path) -> dict[str, Path]:
    """Write the three files into ``out_dir`` (made if missing) and return their paths by kind.

    Each is written whole beside its name and then renamed, all writes before the first rename: a full disk
    or a crash leaves the previous files, never half a file. Raises `UserError` when the folder cannot be
    written.
    """
    texts = {"json": to_json(report), "csv": to_csv(report), "html": to_html(report)}
    return write_files({kind: out_dir / f"report.{kind}" for kind in texts}, texts)


def write_files(paths: dict[str, Path], texts: dict[str, str]) -> dict[str, Path]:
    """Write each text to the path of the same key, atomically as `write_all` says."""
    waiting: list[tuple[str, Path]] = []
    target = Path()
    try:
        for kind, target in paths.items():
            target.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
            waiting.append((name, target))
            with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
                file.write(texts[kind])
                file.flush()
                os.fsync(file.fileno())
            os.chmod(name, 0o644)
        while waiting:
            name, target = waiting[0]
            os.replace(name, target)
            waiting.pop(0)
    except OSError as e:
        raise UserError(
            f"{target}: cannot be written ({e.strerror}); free space or choose another folder"
        ) from None
    finally:
        for name, _ in waiting:
            Path(name).unlink(missing_ok=True)
    return paths
