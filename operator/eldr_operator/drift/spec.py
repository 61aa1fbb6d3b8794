"""``spec.refit.drift``: what a person may set. Pure."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from eldr_operator.camel import CamelModel


class MaintenanceWindow(CamelModel):
    """``spec.refit.drift.maintenanceWindow``: when drift fits may start."""

    schedule: str
    duration_minutes: int = Field(default=60, ge=1, le=10_080)
    time_zone: str = "Etc/UTC"


class DriftSpec(CamelModel):
    """``spec.refit.drift``."""

    mode: Literal["Enabled", "Observe", "Disabled"] = "Enabled"
    window_requests: int = Field(default=500, ge=50, le=1_000_000)
    window_seconds: int = Field(default=60, ge=1, le=86_400)
    consecutive_windows: int = Field(default=3, ge=2, le=20)
    cool_down_minutes: int = Field(default=60, ge=0, le=10_080)
    max_per_day: int = Field(default=4, ge=0, le=100)
    maintenance_window: MaintenanceWindow | None = None
