"""Names of the lives of process groups: new each time, whatever the store still holds."""

import re
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist

from torch_tpu.distributed import session


def names(store, ranks, size, timeout=20):
    with ThreadPoolExecutor(len(ranks)) as pool:
        futures = [pool.submit(session.agree, store, rank, size, timeout) for rank in ranks]
        return [f.result() for f in futures]


def test_each_life_has_its_own_name():
    store = dist.HashStore()
    lives = [names(store, (0, 1, 2), 3) for _ in range(3)]
    assert all(len(set(life)) == 1 for life in lives)
    assert len({life[0] for life in lives}) == 3


def test_ranks_that_died_before_all_had_come_do_not_count():
    store = dist.HashStore()
    with pytest.raises(dist.DistStoreError, match="rank 0 did not come"):
        names(store, (2,), 3, timeout=0.1)
    # What rank 2 has asked is still in the store, but nobody is there who would answer.
    with pytest.raises(dist.DistStoreError, match=re.escape("missing: 2") + "$"):
        names(store, (0, 1), 3, timeout=2)
    assert len(set(names(store, (0, 1, 2), 3))) == 1
