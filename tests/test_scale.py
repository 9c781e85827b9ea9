"""Many samples: what an evaluation holds in memory does not grow with them."""

import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

SCRIPT = """
import resource, sys, torch
from torch.utils.data import Dataset
import wasserball as wb

class Synthetic(Dataset):
    def __len__(self):
        return 50_000

    def __getitem__(self, index):
        return torch.rand(1, 16, 16, generator=torch.Generator().manual_seed(index)), index % 10

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(256, 10))
attacks = [wb.PGD(eps=0, steps=2)]
wb.evaluate(model, Synthetic(), attacks=attacks, eps=[0.05, 0.1], out=sys.argv[1], batch_size=500, probes=8)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
def test_50_000_samples_in_less_than_2_gigabytes(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    kilobytes = int(done.stdout)
    assert kilobytes < 2_000_000
    counted = duckdb.sql(
        f"select eps, count(distinct index) from '{tmp_path}/run/shards/*.parquet' group by all order by 1"
    )
    assert counted is not None
    assert counted.fetchall() == [(0.05, 50_000), (0.1, 50_000)]
    assert (tmp_path / "run" / "report.html").stat().st_size < 15e6
