"""What can go wrong in the playground.

PlaygroundError
├── JavaMissing       no Java, or one that is too old
├── DownloadFailed    jars could not be fetched, or are not the pinned ones
├── BrokerFailed      a broker did not start, or ended by itself
├── BrokerQuotaError  a broker refused a quota, or does not show it
└── TapFailed         the measuring tap's process ended
"""


class PlaygroundError(Exception):
    """Base of all errors of the playground; its text is one line for a person, with the next step to take."""


class JavaMissing(PlaygroundError):
    """No usable Java runtime was found."""


class DownloadFailed(PlaygroundError):
    """A set of jars is still incomplete, or not what the checksums say, after all attempts."""


class BrokerFailed(PlaygroundError):
    """A broker did not answer in time or its process ended; the text ends with the last lines of its log."""


class BrokerQuotaError(PlaygroundError):
    """The broker refused the quota, or does not show it in time."""


class TapFailed(PlaygroundError):
    """The tap's relay process is gone, so its measurements are lost."""
