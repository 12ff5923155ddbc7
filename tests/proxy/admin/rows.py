"""Rows of the pages that `explain` reads."""

from typing import Any


def client(client_id: str, states: dict[str, float], size: int, rate: float, **changes: Any) -> dict[str, Any]:
    """A client with requests of `size` bytes, `rate` of them a second."""
    return {
        "client_id": client_id,
        "user": "ANONYMOUS",
        "connections": 1,
        "produce_bytes_per_second": round(size * rate),
        "fetch_bytes_per_second": 0,
        "requests_per_second": rate,
        "produces_per_second": rate,
        "bytes_per_request": size,
        "states": states,
        "unused_ratio": 0,
        "recent_states": states,
        "recent_unused_ratio": 0,
        "recent_seconds": 12.0,
        "oldest_request_seconds": 0.0,
        "window_seconds": 60.0,
        "waits": [],
        "limits": [],
        "brokers": ["broker-1:9092"],
        "broker_throttled_seconds": 0.0,
        "in_flight": 1,
        "reported": {},
        "outlook": None,
        **changes,
    }
