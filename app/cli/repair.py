"""`ncp repair`: make the log of the embedded Redis readable again, and keep a copy of it."""

from sparse_ncp.app.server.data_folder import lock_data_folder
from sparse_ncp.app.server.errors import StartupError
from sparse_ncp.app.server.redis_log import cut, find_damage, rebuild_manifest
from sparse_ncp.worker.config import Configuration
from sparse_ncp.worker.data_format import check_folder


def repair_records(configuration: Configuration) -> None:
    """Repair the log and print what was done. Records that were cut off are lost; the files of their jobs stay."""
    folder = configuration.data / "redis"
    if not folder.is_dir():
        raise StartupError(f"{configuration.data} has no folder redis to repair; name the data folder with --data")
    check_folder(configuration.data)
    with lock_data_folder(configuration.data, patience_seconds=0):
        rebuilt = rebuild_manifest(folder)
        damage = find_damage(folder)
        done = [rebuilt, damage and cut(folder, damage)]
    for sentence in filter(None, done):
        print(sentence)
    if any(done):
        print("start the server again with ncp serve")
    else:
        log = folder / "redis.log"
        print(f"the log is not damaged, and was not changed; if Redis does not start, see {log}")
