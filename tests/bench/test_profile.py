"""Which functions use the CPU, out of py-spy's collapsed stacks."""

from bench.profile import own_shares

STACKS = """main (cli.py:9);on_readable (pump.py:230);take (request_stream.py:70) 60
main (cli.py:9);on_readable (pump.py:221);recv_into (socket.c) 20
main (cli.py:9);on_readable (pump.py:233);take (request_stream.py:71) 20
main (cli.py:9);import_module (importlib.py:1) 900
"""


def test_lines_of_a_function_are_added_up_and_other_stacks_left_out() -> None:
    assert own_shares(STACKS).splitlines()[2:] == [
        "| take (request_stream.py) | 80% |",
        "| recv_into (socket.c) | 20% |",
    ]
