"""Learners: each reads one view of stored trees and improves the policy or its value head. Only they import TRL."""
