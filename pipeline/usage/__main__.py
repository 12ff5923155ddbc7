"""`python -m pipeline.usage`: see `pipeline.usage.cli`."""

import sys

from pipeline.usage.cli import main

if __name__ == "__main__":
    sys.exit(main())
