"""Limits that several proxies share, through a topic with one partition. docs/fleet.md; `quotas.fleet` has the rules.

    limits of the registry ◀─ shared_limits ◀─▶ quotas.fleet.member ◀─▶ fleet ◀─▶ topic_log

fleet          when to read, to state and to begin again, in the event loop
shared_limits  lends each shared limit what the member may use of it
use            samples how much of a limit is used, and whether clients wait
status         what /fleet, /metrics and the log show
log            what a log is, and its errors
topic_log      a Kafka topic, by aiokafka
topic_check    creates the topic, refuses one of another kind
clock          one that goes on while the machine sleeps
"""
