"""`python -m mesa_lens`."""

import sys

from mesa_lens.cli import main

sys.exit(main())
