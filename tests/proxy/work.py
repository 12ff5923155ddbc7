"""A clock on which each step of a turn takes a fixed time."""


class WorkClock:
    """Nanoseconds, of which `step_ns` pass with each call: the pump calls once before a turn and once in each step but
    the first.
    """

    def __init__(self, step_ns: int) -> None:
        self.step_ns = step_ns
        self.now_ns = 0

    def __call__(self) -> int:
        self.now_ns += self.step_ns
        return self.now_ns
