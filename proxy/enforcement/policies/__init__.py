"""The measures against debt: one file for each throttle mode.

- `policy`    the interface of a mode
- `auto`      the default: one of the following, by what the response to a request can do
- `notify`    responses contain `throttle_time_ms`
- `delay`     responses are sent when the debt is paid
- `pause`     neither
- `dry_run`   all requests pass unchanged; measures are counted and logged
- `table`     the policy of a mode, by its name

In all modes but `dry_run`, a data frame that finds debt is held.
"""
