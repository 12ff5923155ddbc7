"""`python -m proxy`: the same as the command `kafka-quota-proxy`."""

from proxy.cli import main

main()
