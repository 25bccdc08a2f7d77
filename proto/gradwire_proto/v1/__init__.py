"""Generated from proto/gradwire/v1 by `make proto`."""
