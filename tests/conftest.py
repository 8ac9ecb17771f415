"""Property tests draw the same examples on every run and every machine, however slow it is."""

from hypothesis import HealthCheck, settings

settings.register_profile("house", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("house")
