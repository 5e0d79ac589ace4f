"""`python -m stepmark.cli`: the command line, for launchers that start modules (`accelerate launch -m stepmark.cli train …`)."""

import sys

from stepmark.cli import main

sys.exit(main())
