"""Workers find each other, whatever those before them have left behind."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist

from wasserball.evaluate.workers import Workers, meet

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch was built without torch.distributed")


@pytest.mark.parametrize("count", [2, 3, 5])
def test_workers_meet_and_the_dead_are_not_waited_for(count: int) -> None:
    store = dist.HashStore()  # type: ignore[attr-defined]
    for rank in range(count):  # what an earlier company has left, some of it half done
        store.set(f"word {rank}", f"dead{rank}")
    everybody = " ".join(f"dead{rank}" for rank in range(count))
    store.set("heard", everybody)
    store.set("company", everybody)
    for rank in range(1, count, 2):
        store.set(f"answer {rank}", everybody)
    names: list[str] = []
    for _ in range(3):  # each time the workers are started again
        with ThreadPoolExecutor(count) as threads:
            [name] = set(threads.map(lambda rank: meet(store, rank, count), range(count)))
        names.append(name)
    words = [word for name in names for word in name.split()]
    assert len(set(words)) == len(words) == 3 * count
    assert not any(word.startswith("dead") for word in words)


def test_alone_there_is_nobody_to_wait_for() -> None:
    workers = Workers()
    assert workers.leads
    assert workers.first(lambda: 5) == 5
    workers.wait()
