"""One quota for many proxies: each advertises in a shared log the most that it will use of a quota.

Records come in; rates and the next record go out; the clock is passed in. Producing, fetching and applying the rates is
`proxy`'s business. docs/fleet.md describes the protocol. From the outside in; each module imports only those below it:

- `versions`    which version of the topic of quotas each member applies
- `member`      one proxy of a fleet: bytes of records in and out, the keys that take part, statistics
- `digest`      which limits a member has, in a short text that shows others what it lacks
- `roster`      who is there, and what each member advertises about itself
- `repeats`     what a record repeats, so that a large fleet writes and reads little
- `policy`      how much each proxy asks for. It may differ between versions: nothing in it can break the bound
- `caps`        how much each proxy may use: the rules S1 to S7 and why they hold
- `record`      a record of the log as bytes
- `parameters`  times and sizes, the same for all members
"""
