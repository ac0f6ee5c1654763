"""What a cluster is, and what is planned for it, in sentences. Pure; for commands and for the page."""
