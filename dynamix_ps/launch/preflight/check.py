"""One finding of `dynamix doctor` or of the preflight of several hosts, a line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warning", "blocker"]


@dataclass(frozen=True, slots=True)
class Check:
    """One finding. With a blocker, training cannot work here."""

    name: str
    status: Status
    detail: str
    fix: str = ""

    def __str__(self) -> str:
        return f"{self.name}: {self.detail}{self.fix and f'; {self.fix}'}"
