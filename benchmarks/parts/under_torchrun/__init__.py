"""Jobs that torchrun starts: `python -m benchmarks.parts.under_torchrun.NAME --json FILE`.

first_plan      seconds from `pip install` of a wheel to the first adapted plan, in a fresh environment
beside_ddp      start and iterations of a job with the hook, beside torch's DistributedDataParallel

job             a job of two workers, which both start
"""
