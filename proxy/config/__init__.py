"""From what a user wrote to one frozen `Config`, or a list of every error.

options ─▶ option_types ─▶ values                     each option once; what its text must look like (host_names)
toml_file, quotas_file ─▶ checks ─▶ config            what options must be together, or an `errors` list
limits_help     what the help says about SPEC
"""
