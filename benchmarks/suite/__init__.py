"""Controllers side by side on real BytePS: what is run, how, and what is made of it."""
