"""The entry script for spark-submit, with the package as a zip: docs/pipeline/README.md#run-it."""

import sys

from pipeline.usage.cli import main

if __name__ == "__main__":
    sys.exit(main())
