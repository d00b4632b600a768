"""The viewer: a run's trees and episodes as one self-contained page, which needs neither a server nor a network.

``pack`` turns trees into the rows that the page draws, ``collect`` gathers those of whole runs, and ``page`` writes
them into one file, together with ``viewer.js`` and ``viewer.css``. ``make viewer`` builds these two from ``viewer/`` at
the root of the repository.
"""
