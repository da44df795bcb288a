"""What messages say of a client: its recipe, and what it does to what it sends."""

from attacks.diagnosis.causes import diagnose
from attacks.diagnosis.diagnosis import Diagnosis
from attacks.diagnosis.numbers import Finding

__all__ = ["Diagnosis", "Finding", "diagnose"]
