"""Commands that read what runs have written."""
