"""`python -m stepmark`: the command line, for launchers that start modules (`accelerate launch -m stepmark train …`)."""

import sys

from stepmark.cli import main

if __name__ == "__main__":
    sys.exit(main())
