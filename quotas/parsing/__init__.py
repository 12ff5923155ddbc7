"""Parses `--quota SPEC` and the tables of the quotas file.

- `parse`    the entry points: one SPEC, a file's tables, all together
- `text`     the syntax of a SPEC: keys, values, quotes
- `file`     the tables of a file
- `entry`    one entry, from its keys and values
- `names`    values of user, client-id, ip and the other entities
- `limits`   values of limits
- `options`  mode, action, algorithm, burst_seconds, scope, request_cost
- `moving`   rates that move between two bounds
- `batch`    checks of several entries together
- `help`     what the keys of a SPEC are, for `run --help`
"""
