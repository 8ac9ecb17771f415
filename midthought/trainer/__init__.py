"""The front door: one class that composes everything below it."""
