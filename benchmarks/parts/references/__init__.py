"""What benchmarks of parts compare with: floors and limits of sums, and trainings with another PPO."""
