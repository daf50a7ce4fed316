"""Refuses what cannot work, before anything is started; the checks of `dynamix doctor`."""
