"""Commands that are more than a named report; each module registers its own."""
