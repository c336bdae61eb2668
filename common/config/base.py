"""The base of all sections, and the types of their keys."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

NAME_PATTERN = r"^[a-z0-9][a-z0-9-]{0,31}$"

Port = Annotated[int, Meta(ge=0, le=65535)]
Count = Annotated[int, Meta(ge=1)]
Milliseconds = Annotated[float, Meta(ge=0)]
Positive = Annotated[float, Meta(gt=0)]


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all sections: frozen and strict."""
