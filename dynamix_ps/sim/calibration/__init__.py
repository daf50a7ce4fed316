"""Fits a scenario to recorded runs of one cluster. In reading order:

calibrate     from recorded runs to a scenario
series        a recorded run as arrays
fit_cost      fits the times of computing and network
fit_training  fits loss, accuracy and noise scale
fitting       robust least squares with weak priors
prediction    how well a calibrated scenario predicts real runs
"""
