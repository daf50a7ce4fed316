"""Scripts in Lightning, accelerate and transformers, as people write them; test_frameworks.py launches them."""
