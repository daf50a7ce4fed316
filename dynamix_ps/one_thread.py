"""The environment of processes that compute on small matrices: one thread for their matrix products.

NumPy's libraries read these variables when they are loaded, and by default start one thread per core. After every
product these threads wait in a busy loop, which takes CPU time from the training on the same machine.
"""

ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
