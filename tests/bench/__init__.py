"""Tests of the benchmarks' own arithmetic, of the null broker, and runs of the whole that last a second."""
