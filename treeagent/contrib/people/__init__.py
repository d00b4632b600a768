"""Reviewers: marks on trees and the page where people make them."""
