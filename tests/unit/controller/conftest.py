"""Hypothesis without its deadline: a busy machine must not decide a test."""

from hypothesis import settings

settings.register_profile("controller", deadline=None)
settings.load_profile("controller")
