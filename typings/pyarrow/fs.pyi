# pyarrow ships no types; what is missing here is checked by the tests that run it.
from typing import Any

def __getattr__(name: str) -> Any: ...
