"""A small general PPO in plain numpy; it knows nothing of workers or batch sizes.

In reading order: settings.py, network.py (policy and critic, and what normalises observations), actor_critic.py (acts
and learns), rollout.py and gae.py (experience and advantages), update.py and adam.py (learning), policy_file.py (on
disk), reward_scale.py (the unit of rewards), train.py (the whole loop on any gymnasium environment).
"""
