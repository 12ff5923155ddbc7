"""What may be wrong with a topic or a file that proxies write to or read.

LogFailed          it cannot be read or written now, or created
├── LogRefused     it has the wrong settings, which someone must change
└── LogChanged     it is not the log that was read so far
"""


class LogFailed(Exception):
    """`reason` is the label of the metric. `message` is what happened and what to do."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(reason, message)
        self.reason = reason
        self.message = message


class LogRefused(LogFailed):
    """The settings of the log do not work. The message contains what to change."""


class LogChanged(LogFailed):
    """Records that were read are missing: the log was created again, or its end was lost."""
