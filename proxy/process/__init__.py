"""One running proxy.

server          binds the ports, serves, drains on SIGTERM and SIGINT
ports           one port to bootstrap from, and one for each broker
assemble        makes the objects that all sessions share
ticks           the work that is done ten times a second
active_config   the configuration in force, which may change while the proxy runs
start_log       what the log contains about the start
config_watch    reads `--config` and `--quotas-file` again when they change
"""
