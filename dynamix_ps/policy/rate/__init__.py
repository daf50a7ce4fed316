"""What becomes of the factor on the script's learning rate, under `lr: decide`. In reading order:

limits    which factors the next plan may have
decay     the rule where the policy does not decide: linear decay to the end of the budget
decider   both, in the arbitrator
"""
