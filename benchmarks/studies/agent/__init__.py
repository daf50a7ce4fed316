"""What the agent is worth, and what its parts and settings are.

worth               what the agent is worth: all questions about it, with rehearsed runs
paper_mode          the agent of DYNAMIX under two readings of its reward, beside its claims (rehearsed)
transfer_rehearsed  policies trained on one family, used on real gradients of another (rehearsed)

cells               workloads, contenders and questions of `worth`; rehearsed studies ask as it does
clusters            scenarios that ship, for trainings of another size
sizes               the fixed sizes that it tries
answers             ratios over paired seeds, their two parts, and verdicts
page                its page
families            simulated clusters with other trainings, on which policies for it are trained
paper_mode_cells    workloads, rates, clusters and contenders of `paper_mode`
paper_mode_answers  its times and accuracies, pooled over groups
paper_mode_page     its page
transfer_rehearsed_cells  directions, policies, clusters and contenders of `transfer_rehearsed`
transfer_rehearsed_page   its page
"""
