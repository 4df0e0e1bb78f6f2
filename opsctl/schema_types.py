"""Types of values in files, for models."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, WithJsonSchema

from opsctl.quantities import seconds

Duration = Annotated[float, BeforeValidator(seconds), WithJsonSchema({"type": ["number", "string"]})]
"""Seconds, written as a number or with units: 90, 30s, 1h30m."""
