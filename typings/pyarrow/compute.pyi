# pyarrow fills this module at import, so a type checker sees none of its functions.
from typing import Any

def __getattr__(name: str) -> Any: ...
