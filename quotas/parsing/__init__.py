"""What an operator writes: `--quota SPEC` and the tables of the quotas file.

- `parse`    the front: one SPEC, a file's tables, all together
- `text`     the syntax of a SPEC: keys, values, quotes
- `file`     the tables of a file
- `entry`    one entry, from its keys and values
- `names`    what may stand for a user, a client id, an address
- `limits`   what may stand for a limit
- `options`  mode, action, algorithm, burst_seconds
- `batch`    what can only be wrong about several entries together
- `errors`   what was wrong, where, and what is allowed
"""
