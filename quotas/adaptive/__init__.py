"""Limits that move: their rates follow a measurement, not the configuration.

- `disk_guard`      how much producers may write while the disks of brokers fill up
- `producer_guard`  the limit that all producers share then, and open transactions
- `yielding`   a class of clients that uses what others leave
"""
