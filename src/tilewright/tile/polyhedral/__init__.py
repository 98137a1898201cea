"""Tile IR as integer sets, by ``islpy`` (extra ``poly``): exact dependences, and why a step would break one."""
