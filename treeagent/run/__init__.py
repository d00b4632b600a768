"""A run's folder: settings, finished stages, metrics, progress, alarms, trackers."""
