"""The brokers, as the proxy knows them.

nodes       which broker stands behind which port
upstream    connects to them
readiness   do they answer?
"""
