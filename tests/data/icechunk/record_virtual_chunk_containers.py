"""Write the repositories of tests/data/icechunk/virtual-chunk-containers. Needs icechunk 2.x and zarr.

Usage: python record_virtual_chunk_containers.py DIRECTORY
"""

import sys
from pathlib import Path

import icechunk
import numpy as np
import zarr

root = Path(sys.argv[1]).resolve()
source = icechunk.Repository.create(icechunk.local_filesystem_storage(str(root / "source")), spec_version=1)
session = source.writable_session("main")
zarr.open_group(session.store, mode="a").create_array("x", shape=(2048,), chunks=(512,), dtype="i8", compressors=None)[:] = np.arange(2048)
session.commit("old")
chunks = root / "source" / "chunks"
first, second, third, _ = sorted(path.name for path in chunks.iterdir())
session = source.writable_session("main")
zarr.open_group(session.store, mode="a")["x"][:] = 5
session.commit("new")

config = icechunk.RepositoryConfig.default()
access = {}
for name, directory in (("box", chunks), ("my box", chunks.parent)):
    prefix = f"file://{directory}/"
    config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(prefix, icechunk.local_filesystem_store(f"{directory}/"), name=name))
    access[prefix] = icechunk.credentials.LocalFileSystemAccess
reader = icechunk.Repository.create(
    icechunk.local_filesystem_storage(str(root / "reader")), config=config, spec_version=1, authorize_virtual_chunk_access=access
)
reader.save_config()
session = reader.writable_session("main")
locations = [f"vcc://box/{first}", f"vcc://box/x/../{second}", f"vcc://my box/chunks/./{third}"]
group = zarr.open_group(session.store, mode="a")
group.create_array("v", shape=(3 * 512,), chunks=(512,), dtype="i8", compressors=None, filters=None)
for number, location in enumerate(locations):
    session.store.set_virtual_ref(f"v/c/{number}", location, offset=0, length=4096)
session.commit("virtual")
