"""`python -m pipeline.demo`: see `pipeline.demo.command`."""

import sys

from pipeline.demo.command import main

if __name__ == "__main__":
    sys.exit(main())
