"""Where pieces of a stage run: processes of this machine, a Ray cluster, processes that train together."""
