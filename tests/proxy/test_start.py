"""What the start of the process switches off is on again once it serves."""

import gc

from proxy.ticks import settle_garbage_collection


def test_garbage_is_collected_after_the_start() -> None:
    thresholds = gc.get_threshold()
    gc.disable()
    try:
        settle_garbage_collection()
        assert gc.isenabled()
    finally:
        gc.enable()
        gc.set_threshold(*thresholds)
        gc.unfreeze()
