"""Frameworks that own the training loop: Lightning, accelerate and the Trainer of transformers.

Each needs an extra (`pip install dynamix-ps[lightning]`), and a script changes at most three lines:

    from dynamix_ps.integrations.lightning import DynamixStrategy
    trainer = Trainer(strategy=DynamixStrategy(), ...)

    from dynamix_ps.integrations.accelerate import Accelerator       # in place of accelerate's

    from dynamix_ps.integrations.transformers import Trainer         # in place of transformers'

workers.py and passes.py have what they share: the other workers, and the data in passes.
"""
