"""Studies: each answers one question, and writes a CSV file, a picture and a page. `python -m benchmarks.studies.NAME`.

In the simulator
  policies             time to accuracy of all policies on all scenarios
  scaling              trained with 8 workers, used with up to 1,024
  transfer             trained on one family of clusters, used on another
  clip_simple          the two learners
  reward_k             parts of the reward, and how often to decide
  learned              what learning adds to the model of the cluster
  pid_published        `pid` beside its published figures
  calibration          how well the calibrated simulator predicts real runs
  calibration_record   the real runs for it

One process, real training
  epoch_end            what a last batch of a few samples does
  growth               when the global batch should grow
  finish               whether it should change near the end

Shared
  study                what a study writes
  trainings            policies trained for a study
"""
