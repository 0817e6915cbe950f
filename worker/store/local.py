"""A store in a folder of this machine, or of a file system that all machines of the server share."""

from pathlib import Path

from sparse_ncp.worker.config import Configuration
from sparse_ncp.worker.store.files import private_folder
from sparse_ncp.worker.store.local_blobs import LocalBlobs
from sparse_ncp.worker.store.store import Store

KINDS = ("tensors", "jobs", "uploads")


class LocalStore(Store):
    """A store below one folder, private to the server's account."""

    def __init__(self, root: Path, create: bool = True) -> None:
        blobs = LocalBlobs(root, create)
        super().__init__(blobs, blobs)
        self.root = blobs.root
        if create:
            for kind in KINDS:
                private_folder(self.root / kind)

    def tensor_path(self, sha256: str) -> Path:
        """Return the file of a tensor's bytes."""
        content = self._tensors.find(sha256)
        return self.root / (f"tensors/{sha256}.npy" if content is None else content.blob)


def open_store(configuration: Configuration) -> Store:
    """Open the store of a server, and create it if it is missing."""
    return LocalStore(configuration.data)
