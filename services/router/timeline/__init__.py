"""Where requests spent their time: one record for each that is over, and which of them are kept."""
