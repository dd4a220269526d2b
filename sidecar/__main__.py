"""``python -m sidecar`` is ``goodput-sidecar``."""

import sys

from sidecar.cli import main

sys.exit(main())
