"""A page or report as a PNG, through headless Chromium.

``python -m tests.support.screenshot REPORT.html|REPORT.json OUT.png [--width 1200] [--height N] [--dark]``
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

LIMIT_S = 120


def chromium() -> str | None:
    """The browser's path, ``None`` where there is none."""
    return next(
        (
            found
            for name in ("chromium", "chromium-browser", "google-chrome")
            if (found := shutil.which(name))
        ),
        None,
    )


def shoot(page: Path, out: Path, *, width: int = 1200, height: int = 1600, dark: bool = False) -> None:
    """Render ``page`` into ``out``. The window is ``width`` x ``height`` CSS pixels.

    Headless Chromium has no window narrower than about 500 pixels, so a narrow page is shown in a frame of
    that width. Raises RuntimeError when the browser is missing or writes nothing.
    """
    browser = chromium()
    if browser is None:
        raise RuntimeError("no chromium, chromium-browser or google-chrome on PATH")
    with tempfile.TemporaryDirectory() as profile:
        shown = page.resolve()
        if width < 500:
            shown = Path(profile) / "frame.html"
            shown.write_text(
                f'<body style="margin:0"><iframe src="{page.resolve().as_uri()}" width="{width}" '
                f'height="{height}" style="border:0"></iframe>',
                encoding="utf-8",
            )
        command = [
            browser,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            f"--user-data-dir={profile}",
            f"--window-size={max(width, 500)},{height}",
            f"--screenshot={out.resolve()}",
        ]
        if dark:
            command.append("--blink-settings=preferredColorScheme=0")
        ran = subprocess.run(
            [*command, shown.as_uri()], capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    if not out.is_file():
        raise RuntimeError(f"chromium wrote no picture: {ran.stderr[-400:]}")


def main() -> int:
    """Command line: see the module's first lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--width", type=int, default=1200)
    parser.add_argument("--height", type=int, default=1600)
    parser.add_argument("--dark", action="store_true")
    args = parser.parse_args()
    page: Path = args.page
    with tempfile.TemporaryDirectory() as made:
        if page.suffix == ".json":
            from loadgen.report.html import to_html
            from loadgen.report.jsonio import load

            page = Path(made) / "report.html"
            page.write_text(to_html(load(args.page)), encoding="utf-8")
        shoot(page, args.out, width=args.width, height=args.height, dark=args.dark)
    print(args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
