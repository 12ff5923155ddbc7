"""The measures against debt: one file for each throttle mode.

- `policy`    the interface of a mode
- `auto`      the default
- `notify`    responses contain `throttle_time_ms`; a frame that finds debt is held
- `dry_run`   all requests pass unchanged; measures are counted and logged
- `table`     the policy of a mode, by its name
"""
