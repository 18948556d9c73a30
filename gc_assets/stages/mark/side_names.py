"""The side tables of `live_files` whose rows are like its own: files that are named and not live, or
lie in no storage.
"""

from __future__ import annotations

from typing import Final

EXPIRED_SIDE, DANGLING_SIDE, EXTERNAL_SIDE = "_expired", "_dangling", "_external"
# Files of retained commits that their owner's lifecycle rules release (lakeFS).
LIFECYCLE_SIDE: Final = "_lifecycle"
ROUTED_SIDES: Final = (EXPIRED_SIDE, DANGLING_SIDE, LIFECYCLE_SIDE, EXTERNAL_SIDE)
