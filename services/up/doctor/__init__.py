"""`baton doctor`: is this host fit for its fleet file? One line per check, with the fix."""
