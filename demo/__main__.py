"""`python -m demo`: see `demo.command`."""

import sys

from demo.command import main

if __name__ == "__main__":
    sys.exit(main())
