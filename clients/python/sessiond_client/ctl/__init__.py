"""sessionctl: sessions from the command line."""
