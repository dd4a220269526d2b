"""A request's record, its stream meter and its judge: used by the sidecar and the load generator alike."""
