"""Compares policies on scenarios by the time to the target accuracy. In reading order:

contest         several policies on several scenarios
evaluate        one policy on one scenario, over several seeds
oracle          sizes from perfect knowledge: what can be won
comparison      robust means, probabilities of improvement and their intervals
contest_report  table, CSV file and plot of a contest
pictures        plots of learning and of contests
"""
