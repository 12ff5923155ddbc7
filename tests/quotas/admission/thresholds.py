"""Changes of single thresholds, as entries of a file that is replaced as a whole."""

from fractions import Fraction

from quotas.admission.topic_thresholds import Thresholds


def set_total(thresholds: Thresholds, total: int | Fraction | None) -> None:
    thresholds.replace(total, thresholds._explicit)


def set_topic(thresholds: Thresholds, topic: str, value: int | Fraction | None) -> None:
    explicit = {name: each for name, each in thresholds._explicit.items() if name != topic}
    thresholds.replace(thresholds.total, explicit if value is None else {**explicit, topic: value})
