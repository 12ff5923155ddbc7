"""Tests that need three brokers, in one process of `make test`: these start once. One file for each client library."""
