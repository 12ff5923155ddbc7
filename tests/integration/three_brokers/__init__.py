"""Tests that need three brokers, in one process of `make test`: these start once. Client libraries, and the rest."""
