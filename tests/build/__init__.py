"""The compiled build: what is compiled, and what is missing for it. `make check-compiled` tests the result."""
