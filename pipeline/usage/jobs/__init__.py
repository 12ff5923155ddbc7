"""What runs: reads tables, calls transforms, writes tables."""
