"""The check that a trainer resumes exactly."""

from dasktune.trainer.check_resume.check import ResumeReport, check_resume

__all__ = ["ResumeReport", "check_resume"]
