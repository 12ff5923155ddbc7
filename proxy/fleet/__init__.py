"""Limits that several proxies share, through a topic with one partition. docs/fleet.md; `quotas.fleet` has the rules.

    limits of the registry ◀─ shared_limits ◀─▶ quotas.fleet.member ◀─▶ fleet ◀─▶ topic_log

fleet          when to read, when to advertise and when to start again, in the event loop
shared_limits  grants each shared limit the rate that the member may use
use            samples how much of a limit is used, and whether clients wait
differences    reports what is wrong: quotas that differ, limits that a member lacks, too many members
status         what /fleet, /metrics and the log show
admin_address  where the admin port of a member can be reached
followers      the members that follow a topic of quotas, for the command `quotas`
log            the interface of a log, and its errors
topic_log      a Kafka topic, by aiokafka
fleet_topic    creates the topic, and refuses a topic with other settings
clock          a clock that continues while the machine sleeps
"""
