"""The environment of processes that compute on small matrices: one thread for their matrix products.

Numpy's libraries start a thread per core when they are loaded and read these variables then. After every product these
threads wait by yielding the core over and over, which takes it from the training beside them.
"""

ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
