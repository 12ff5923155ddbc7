"""A reserved port can be listened on by the broker, again and again, and is given to nobody else."""

import socket

from deploy.local.node import PortReservation


def test_a_reserved_port_is_free_for_the_broker_only() -> None:
    reservation = PortReservation("127.0.0.2")
    try:
        for _ in range(2):  # also after a bounce
            with (
                socket.create_server(reservation.address) as listener,
                socket.create_connection(reservation.address, timeout=5),
            ):
                listener.accept()[0].close()
        others = [PortReservation("127.0.0.2") for _ in range(200)]
        try:
            assert reservation.address not in {other.address for other in others}
            assert len({other.address for other in others}) == len(others)
        finally:
            for other in others:
                other.close()
    finally:
        reservation.close()
