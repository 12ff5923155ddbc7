"""One quota for many proxies: each states in a shared log how much of a quota it will use at most.

Records in; rates and the next record out; the clock is passed in. Who produces, fetches and applies the rates is
`proxy`'s business. docs/fleet.md has the protocol. From the outside in; each imports only what is listed after it:

- `member`      one proxy of a fleet: bytes of records in and out, the keys that take part, statistics
- `policy`      who should ask for what. May differ between versions: nothing in it can break the bound
- `caps`        who may use how much: the rules S1 to S7 and why they hold
- `record`      a record of the log as bytes
- `parameters`  times and sizes, the same for all members
"""
