"""Execute the notebooks of the documentation; ``python tests/notebooks.py`` writes their outputs into them."""

import os
import sys
import tempfile
from pathlib import Path

import matplotlib.font_manager  # noqa: F401 — it builds its cache now, and tells us instead of the reader of a notebook
import nbformat
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbformat import NotebookNode

PATHS = sorted((Path(__file__).parents[1] / "docs" / "notebooks").glob("*.ipynb"))
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
SECONDS = 600
"""For one cell: where nothing is cached yet, wasserball's own kernels are compiled in it."""


class OwnInterpreter(KernelSpecManager):
    """Whatever kernel a notebook asks for, it gets this interpreter, not one that somebody has installed."""

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        """The only one."""
        command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        return KernelSpec(argv=command, display_name=kernel_name, language="python")


def read(path: Path) -> NotebookNode:
    """A notebook as it is in the repository."""
    notebook: NotebookNode = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    return notebook


def execute(path: Path) -> NotebookNode:
    """The same with fresh outputs, made in an empty folder on one core."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder) / "work"
        work.mkdir()
        manager = AsyncKernelManager(
            kernel_spec_manager=OwnInterpreter(),
            connection_file=f"{folder}/kernel.json",
            transport="ipc",  # not TCP, whose ports several test processes would have to share
        )
        client = NotebookClient(
            read(path),
            km=manager,
            timeout=SECONDS,
            record_timing=False,
            coalesce_streams=True,
            resources={"metadata": {"path": str(work)}},
        )
        client.owns_km = True  # to stop the kernel at the end
        places = {"IPYTHONDIR": f"{folder}/ipython", "TMPDIR": folder}  # whatever it leaves there is gone with the rest
        notebook = client.execute(env=os.environ | places | {"OMP_NUM_THREADS": "1"})
    notebook.metadata = nbformat.from_dict(METADATA)  # type: ignore[no-untyped-call]
    return notebook


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:] or PATHS):
        nbformat.write(execute(path), path)  # type: ignore[no-untyped-call]
