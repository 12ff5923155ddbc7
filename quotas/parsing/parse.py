"""Parses `--quota SPEC` and the tables of the quotas file, and collects every error.

    SPEC      key=value[,key=value...]; a value may be in double quotes, with \\" and \\\\ inside
    entity    user, client-id, or both; or one of ip, topic, listener, total=true, resource-group. The bare value
              <default> is Kafka's default entity ("<default>" in quotes is a real name)
    limits    those of `quotas.limit_kinds`, each for its scopes. Bytes per second are plain or with a unit, "/s" may
              follow
    options   mode, action, algorithm, burst_seconds, scope, request_cost

A resource group has its members in the same entry: `resource-group=etl,client-id=spark-*,user=alice,...`; in a file it
is a `[[resource-group]]` table, in which each kind of member is a name or a list (`quotas.resource_groups`).

Other entries of a file are `[[quota]]` tables; there `'"<default>"'` is the real name. Values of later versions are
refused: an accepted limit is enforced.
"""

from quotas.entry import QuotaEntry
from quotas.parsing.entry import read_entry
from quotas.parsing.names import Resolve
from quotas.parsing.text import split_spec
from quotas.problems import InvalidValues


def parse_spec(text: str, resolve: Resolve | None = None) -> QuotaEntry:
    """Parse one SPEC. Raises InvalidValues, with empty places. `resolve` finds the address of a host name."""
    reading = read_entry("", split_spec(text), resolve)
    if reading.entry is None:
        raise InvalidValues(reading.errors)
    return reading.entry
