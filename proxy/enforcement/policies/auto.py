"""Mode `auto`, the default: `notify` in every version that has the field."""

from proxy.enforcement.policies.notify import Notify

POLICY = Notify
