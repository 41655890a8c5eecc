"""Fixtures for all tests. The servers come from tests.servers, before this is read."""
