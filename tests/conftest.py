"""Settings of the test tools."""

from hypothesis import settings

# The machine may be busy: no test fails for having been slow.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")
