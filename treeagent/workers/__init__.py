"""Run the jobs of a stage: in processes of this machine, on a Ray cluster, or in processes that train together."""
