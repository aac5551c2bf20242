"""Recordings of agents and what their drivers make of them; see `compare`."""
