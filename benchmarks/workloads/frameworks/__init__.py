"""Scripts in Lightning, accelerate and transformers, as people write them: `python -m NAME` under `dynamix launch`."""
