"""The fingerprint of a trainer: its code, configuration, data and version."""

from dasktune.trainer.fingerprint.fingerprint import Fingerprint, fingerprint

__all__ = ["Fingerprint", "fingerprint"]
