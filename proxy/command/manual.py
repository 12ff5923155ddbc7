"""The man page and the completions of bash, zsh and fish, from the definitions of the commands."""

import re

import click
import cloup
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete


def files(main: click.Group, name: str, version: str) -> dict[str, str]:
    """The text of each file by its path below share/."""
    narrow = cloup.HelpFormatter.settings(col1_max_width=4)
    root = cloup.Context(main, info_name=name, terminal_width=70, formatter_settings=narrow)
    page = f'.TH {name.upper()} 1 "" "{name} {version}"\n.SH NAME\n{name} \\- smooth quotas for Kafka clients\n'
    for title, command in [("description", main), *main.commands.items()]:
        shown = command.get_help(root if command is main else cloup.Context(command, root, title))
        shown = re.sub("^(?=[.'])", r"\\&", shown.replace("\\", "\\e").replace("-", "\\-"), flags=re.MULTILINE)
        headings = re.sub(r"^\n(\w.*):$", r".SS \1", shown, flags=re.MULTILINE)
        page += f".SH {title.upper()}\n.nf\n{headings}\n.fi\n"
    found = {f"man/man1/{name}.1": page}
    for kind, path in (
        (BashComplete, f"bash-completion/completions/{name}"),
        (ZshComplete, f"zsh/site-functions/_{name}"),
        (FishComplete, f"fish/vendor_completions.d/{name}.fish"),
    ):
        # BashComplete's own `source` asks the bash of this machine.
        text = ShellComplete.source(kind(main, {}, name, f"_{name}_complete".replace("-", "_").upper()))
        # Click's script for fish cuts a description at its comma; that for zsh loses the flag of --flag=value.
        text = text.replace('split ","', 'split -m 1 ","').replace("compadd -U", "compadd")
        found[path] = text.replace("    for type key", "    compset -P '--*='\n    for type key")
    return found
