"""The package's main entry point: one class, `Trainer`, that combines all other parts."""
