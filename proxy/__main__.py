"""`python -m proxy`: the same as the command `kafka-quota-proxy`."""

from proxy.command.cli import main

main()
