"""Tests of `deploy`: the playground's parts alone, then with real brokers and real processes."""
