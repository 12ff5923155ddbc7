"""`python -m pipeline.sink`, and the entry script for spark-submit: see `pipeline.sink.command`."""

import sys

from pipeline.sink.command import main

if __name__ == "__main__":
    sys.exit(main())
