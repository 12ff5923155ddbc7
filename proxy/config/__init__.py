"""From flags, environment and files to one frozen `Config`, or a list of every error.

config ─▶ option_types ─▶ values, addresses           each option once, a field; its form (host_names)
variables ─▶ service_links                             variables that set no option: misspelt ones, those of a Service
toml_file, quotas_file ─▶ checks, ports ─▶ Config     the options together, or an `errors` list
given                                                 the values of all options, and every problem
quota_sources ◀─ cluster_entries                      the quotas of cluster, flags and file, as they apply together
connections ─▶ client_file ─▶ client_settings         connections: the options together, the file of --command-config
java_properties                                       what the values of that file may be
files, entry_lines                                    reads each of these files; the lines of its tables
cautions ◀─ floor ─▶ advice                           what is allowed but most likely not meant; settings of clients
other_formats                                         YAML, JSON and properties instead of TOML: what to write
effective                                             each option with the source of its value
exemptions                                            what is exempt, in words
limits_help, json_schema                              the keys of SPEC, for the help; all keys, for editors
"""
