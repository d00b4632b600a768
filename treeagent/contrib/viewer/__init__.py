"""The viewer: a run's trees and episodes as one self-contained page. ``make viewer`` builds its script and style."""
