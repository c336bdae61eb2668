"""Hostile request bodies against a gateway that carries a healthy stream. Run: `make hostile`."""
